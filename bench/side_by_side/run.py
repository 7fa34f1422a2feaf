"""A run from its command line to its end: what all have in common, whatever they measure.

Role: between the command lines and what they measure. Invariants: an error ends the run with status 1, and
nothing is written to the pages; processes and data are gone at the end, in whatever way it comes.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time

from side_by_side import machine
from side_by_side.children import Children, Failed

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"))
MIB = 1 << 20
QUICK_ROUNDS = 1


class Flags(argparse.ArgumentParser):
    """What every run can be told; each adds its own."""

    def __init__(self, name, about, rounds, out):
        super().__init__(
            prog=f"bench/{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.rounds, self.out = rounds, out
        self.add_argument("binary", help="plimsoll, a release build")
        self.add_argument("--quick", action="store_true", help="little data, one short round: does it run?")
        self.add_argument("--rounds", type=int, help=f"default {rounds}")
        self.add_argument("--dir", default=TARGET, help="where data is put; default %(default)s")
        self.add_argument("--out", help=f"where the result goes, as JSON; default target/{out}")
        self.add_argument("--pages", help="the checkout whose pages and plots are written; default none")

    def said(self):
        """What was said, and what follows from it."""
        said = self.parse_args()
        said.rounds = said.rounds or (QUICK_ROUNDS if said.quick else self.rounds)
        said.out = said.out or os.path.join(TARGET, self.out + ("-quick" if said.quick else ""))
        if said.pages and said.quick:
            self.error("a quick run measures nothing that belongs on pages")
        return said


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
        if not os.access(said.binary, os.X_OK):
            raise SystemExit(f"{said.binary} is not there: make build")
        os.makedirs(said.dir, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="bench-", dir=said.dir) as directory:
            run = cls(said, directory)
            try:
                yield run
            except Failed as failed:
                raise SystemExit(f"bench: {failed}") from failed
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
