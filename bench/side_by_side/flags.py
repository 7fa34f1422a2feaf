"""The command line that all runs have in common, and what a word of it may be.

Role: before anything is started or made. Invariants: what cannot be is refused with status 2 and the
reason; a directory that is asked for can be written, and looking leaves it as it was.
"""

import argparse
import math
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"))
QUICK_ROUNDS = 1


def count(text):
    """A number of things, of which there is one at least."""
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text}: a whole number above 0 is wanted")


def seconds(text):
    """A time that passes, and ends."""
    try:
        if 0 < float(text) < math.inf:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text}: a number above 0 is wanted")


def write_into(path):
    """Finds out whether a directory can be made and written; what was made for that is gone again."""
    missing, at = [], os.path.abspath(path)
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    made = []
    try:
        for each in reversed(missing):
            os.mkdir(each)
            made.append(each)
        with tempfile.TemporaryFile(dir=path):
            pass
    finally:
        for each in reversed(made):
            os.rmdir(each)


class Flags(argparse.ArgumentParser):
    """What every run can be told; each adds its own."""

    def __init__(self, name, about, rounds, out):
        super().__init__(
            prog=f"bench/{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.rounds, self.out = rounds, out
        self.add_argument("binary", help="plimsoll, a release build")
        self.add_argument("--quick", action="store_true", help="little data, one short round: does it run?")
        self.add_argument("--rounds", type=count, help=f"default {rounds}")
        self.add_argument("--dir", default=TARGET, help="where data is put; default %(default)s")
        self.add_argument("--out", help=f"where the result goes, as JSON; default target/{out}")
        self.add_argument("--pages", help="the checkout whose pages and plots are written; default none")

    def said(self):
        """What was said, and what follows from it."""
        said = self.parse_args()
        said.rounds = said.rounds or (QUICK_ROUNDS if said.quick else self.rounds)
        if "" in (said.out, said.dir):
            self.error("--dir and --out: a directory is wanted")
        said.out = said.out or os.path.join(TARGET, self.out + ("-quick" if said.quick else ""))
        if said.pages and said.quick:
            self.error("a quick run measures nothing that belongs on pages")
        return said


def check(said):
    """Ends the run if there is no binary, or no place for data or result: before anything is made."""
    if not (os.path.isfile(said.binary) and os.access(said.binary, os.X_OK)):
        raise SystemExit(f"{said.binary} is not there: make build")
    for flag, path in (("--dir", said.dir), ("--out", said.out)):
        try:
            write_into(path)
        except OSError as error:
            where = f" ({error.filename})" if error.filename not in (None, path) else ""
            print(f"bench: {flag} {path} cannot be written: {error.strerror}{where}", file=sys.stderr)
            raise SystemExit(2) from error
