"""Runs a program without some system calls, as a container's seccomp profile does.

    forbid.py io_uring_setup=EPERM ... -- PROGRAM ARGUMENTS

The calls named fail with the error named; all others are allowed. The program takes this process's place.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# The same everywhere since Linux 5.1; older calls by machine.
NUMBERS = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "epoll_pwait2": 441,
    "pwritev2": {"x86_64": 328, "aarch64": 287}[platform.machine()],
}

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000


def instruction(code, if_true, if_false, operand):
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def main():
    end = sys.argv.index("--")
    program = [instruction(LOAD_NUMBER, 0, 0, 0)]
    for rule in sys.argv[1:end]:
        name, error = rule.split("=")
        program.append(instruction(JUMP_IF_EQUAL, 0, 1, NUMBERS[name]))
        program.append(instruction(RETURN, 0, 0, ERROR | getattr(errno, error)))
    program.append(instruction(RETURN, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    for call in [
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero),
        (PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_void_p(ctypes.addressof(head)), zero, zero),
    ]:
        if libc.prctl(*call) != 0:
            sys.exit(f"forbid.py: prctl: {os.strerror(ctypes.get_errno())}")
    os.execv(sys.argv[end + 1], sys.argv[end + 1 :])


main()
