"""What the programs for Python share: waiting, and asking for a restart of the server.

The test that starts a program kills the server when it reads "restart", starts it again at the same
address, and answers "restarted". Anything that is not as expected ends the program with an error.
"""
import sys
import time

#: Two MiB in which every byte and no period of a record's size occurs.
LARGE = bytes((at * 31 + (at >> 8) * 7 + (at >> 16)) & 255 for at in range(2 << 20))


def restart():
    print("restart", flush=True)
    answer = sys.stdin.readline()
    assert answer == "restarted\n", f"not restarted: {answer!r}"


def until(what, done):
    """Waits until `done` gives something true, and gives it."""
    deadline = time.monotonic() + 60
    while True:
        given = done()
        if given:
            return given
        assert time.monotonic() < deadline, f"it does not come: {what}"
        time.sleep(0.005)


def raises(kind, call, *args, **kwargs):
    """The text of the exception of just this kind that the call ends with."""
    try:
        call(*args, **kwargs)
    except kind as error:
        assert type(error) is kind, f"{type(error)} is no {kind}"
        return str(error)
    raise AssertionError(f"{kind.__name__} was expected")
