"""A run from its command line to its end: what all have in common, whatever they measure.

Role: between the command lines and what they measure. Invariants: an error ends the run with status 1, and
nothing is written to the pages; that a server died is said before anything else; processes and data are
gone at the end, in whatever way it comes.
"""

import contextlib
import os
import signal
import sys
import tempfile
import time

from side_by_side import flags, machine
from side_by_side.children import Children, Failed
from side_by_side.flags import ROOT

MIB = 1 << 20


def stopped(number, _frame):
    raise SystemExit(128 + number)


class Run:
    """What loads and servers are given: settings, the machine, processes."""

    def __init__(self, said, directory):
        self.directory, self.binary = directory, os.path.abspath(said.binary)
        self.rounds, self.is_quick = said.rounds, said.quick
        self.server_on, self.load_on = machine.processors()
        self.children, self.seeds, self.begun = Children(), 0, time.monotonic()
        self.facts = machine.facts(directory, ROOT)

    @classmethod
    @contextlib.contextmanager
    def of(cls, said):
        """A run in a directory of its own, until what stands below is done."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stopped)
        flags.check(said)
        os.makedirs(said.dir, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=said.dir) as directory:
            run = cls(said, directory)
            try:
                yield run
            except Exception as failed:
                # A server that died is why, whatever noticed it first: a load, or a question to its ports.
                words = run.children.fallen() or (str(failed) if isinstance(failed, Failed) else None)
                if words is None:
                    raise
                raise SystemExit(f"bench: {words}") from failed
            except KeyboardInterrupt as stop:
                raise SystemExit("bench: stopped; nothing is written") from stop
            finally:
                run.children.kill()

    def passed(self):
        """Seconds since it began."""
        return time.monotonic() - self.begun

    def say(self, words):
        print(f"[{self.passed():6.1f} s] {words}", file=sys.stderr, flush=True)

    def seed(self):
        """Another one for each load: no two ask for the same keys in the same order."""
        self.seeds += 1
        return self.seeds

    def room(self, size, purpose):
        """Fails if the file system has no room."""
        free = machine.free_bytes(self.directory)
        if free < size + 512 * MIB:
            raise Failed(
                f"{purpose} needs {size / MIB:,.0f} MiB, and {self.directory} has {free / MIB:,.0f}: name "
                "another place with --dir, or measure less"
            )
