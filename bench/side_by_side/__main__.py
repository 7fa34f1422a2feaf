"""`make bench`: runs the rows that are asked for, and writes what came of them.

    python3 bench/side_by_side BINARY [--quick] [--rows 1,4] [--rounds N] [--seconds S] [--keys N] [--dir DIR]
                               [--out DIR] [--pages ROOT]

Role: the command line, and what all rows have in common: the directory, the processors, the processes.
Invariants: nothing is installed; a peer that is not there is named, and the rest goes on; an error ends the
run with status 1 and nothing is written to the pages; processes and data are gone at the end, in whatever
way it comes.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from side_by_side import children, load, machine, report, rows_get, rows_set  # noqa: E402
from side_by_side.children import Children, Failed  # noqa: E402
from side_by_side.measure import Table  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"))
MIB = 1 << 20
# Seconds of one measure, by row.
SECONDS = {1: 8, 2: 5, 4: 5, 5: 5, 6: 5, 7: 8, 8: 5}
ROUNDS, KEYS = 5, 2 << 20
QUICK_ROUNDS, QUICK_SECONDS, QUICK_KEYS = 1, 0.5, 20_000
# Bytes of disk for each byte of values, with durable SETs, for which Redis' file only grows, and without.
DISK, DISK_OF_GETS = 13, 7
# What runs, and for which rows.
SECTIONS = [
    (lambda run, wanted: rows_get.flash(run, wanted, 1024), {1, 2, 3, 9}),
    (lambda run, wanted: rows_get.flash(run, wanted, 4096), {2}),
    (lambda run, wanted: rows_get.flash(run, wanted, 16384), {2}),
    (rows_get.cached, {4}),
    (rows_set.sync_small, {5, 9}),
    (rows_set.sync_large, {5, 6}),
    (rows_set.overwrite, {7, 9}),
    (rows_get.portable, {8}),
    (lambda run, wanted: rows_set.costs_loads(run), {9}),
    (lambda run, wanted: rows_set.rocks_costs(run), {9}),
]
ROWS = set().union(*(rows for _, rows in SECTIONS))


class Run:
    """What the rows are given: settings, the machine, processes, and where results go."""

    def __init__(self, said, directory):
        self.directory, self.binary = directory, os.path.abspath(said.binary)
        self.rounds, self.keys, self.is_quick = said.rounds, said.keys, said.quick
        self.said_seconds = said.seconds
        self.server_on, self.load_on = machine.processors()
        self.found, self.missing = machine.peers()
        self.drive = machine.Drive(directory)
        self.children, self.tables, self.rocks_filled, self.seeds = Children(), {}, {}, 0
        self.facts = machine.facts(directory, ROOT)
        self.begun = time.monotonic()

    def say(self, words):
        print(f"[{time.monotonic() - self.begun:6.1f} s] {words}", file=sys.stderr, flush=True)

    def has(self, program):
        return program in self.found

    def seed(self):
        """Another one for each load: no two ask for the same keys in the same order."""
        self.seeds += 1
        return self.seeds

    def note(self, program, words):
        """Adds to what is said of a program's version."""
        if words not in self.found[program]:
            self.found[program] += f" ({words})"

    def seconds(self, row):
        return self.said_seconds or SECONDS[row]

    def table(self, name, title, seconds=None):
        return self.tables.setdefault(name, Table(name, title, seconds))

    def costs(self):
        return self.table("costs", "Memory, write amplification and restart")

    def room(self, size, purpose):
        """Fails if the file system has no room."""
        free = machine.free_bytes(self.directory)
        if free < size + 512 * MIB:
            raise Failed(
                f"{purpose} needs {size / MIB:,.0f} MiB, and {self.directory} has {free / MIB:,.0f}: name "
                "another place with --dir, or fewer --keys"
            )

    def memory(self, size, program):
        """True if so much memory is there; tells if not."""
        is_there = machine.memory_available() > size
        if not is_there:
            self.leave_out(program, f"want of {size / MIB:,.0f} MiB of memory")
        return is_there

    def leave_out(self, program, why):
        """Goes on without a peer, and lets the pages say so."""
        self.say(f"{program} is left out for {why}")
        self.missing.setdefault(program, {"package": None, "purpose": why})

    def written(self):
        """Bytes that the drive was given so far; nothing if it does not tell."""
        told = self.drive.counters()
        return told[1] if told else None

    def rocks(self, value_bytes):
        """The directory of a RocksDB that holds every key of such values; made once."""
        folder = os.path.join(self.directory, f"rocksdb-{value_bytes}")
        if value_bytes not in self.rocks_filled:
            keys = self.keys * 1024 // value_bytes
            self.room(4 * keys * value_bytes, "RocksDB")
            self.rocks_filled[value_bytes] = load.db_bench_writes(
                self, folder, "filluniquerandom", keys, value_bytes, []
            )
        return folder

    def rocks_fill(self, value_bytes):
        """What filling it cost."""
        return self.rocks_filled[value_bytes]

    def clear(self):
        """Between sections: processes are ended and their files removed; fio's and RocksDB's stay."""
        self.children.kill()
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            if os.path.isdir(path) and not name.startswith("rocksdb-"):
                shutil.rmtree(path)


def arguments():
    words = argparse.ArgumentParser(
        prog="bench/side_by_side", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("binary", help="plimsoll, a release build")
    words.add_argument("--quick", action="store_true", help="few keys, one short round: proves that it runs")
    words.add_argument("--rows", default=",".join(map(str, sorted(ROWS))), help="default: %(default)s")
    words.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    words.add_argument("--seconds", type=float, help=f"of one measure; default by row: {SECONDS}")
    words.add_argument("--keys", type=int, help=f"of 1 KiB; longer values have fewer; default {KEYS}")
    words.add_argument("--dir", default=TARGET, help="where data is put; default %(default)s")
    words.add_argument("--out", help="where the result goes, as JSON; default target/bench")
    words.add_argument("--pages", help="the checkout whose pages and plots are written; default none")
    said = words.parse_args()
    said.rounds = said.rounds or (QUICK_ROUNDS if said.quick else ROUNDS)
    said.keys = said.keys or (QUICK_KEYS if said.quick else KEYS)
    said.seconds = said.seconds or (QUICK_SECONDS if said.quick else None)
    said.out = said.out or os.path.join(TARGET, "bench-quick" if said.quick else "bench")
    try:
        said.rows = {int(row) for row in said.rows.split(",")}
    except ValueError:
        words.error(f"rows {said.rows}: numbers with commas are wanted")
    if not said.rows <= ROWS:
        words.error(f"rows {sorted(said.rows - ROWS)}: there are {sorted(ROWS)}")
    if said.pages and said.quick:
        words.error("a quick run measures nothing that belongs on pages")
    return said


def has_driver(binary):
    """True if this Plimsoll can do without io_uring."""
    return (
        "--driver" in children.run("plimsoll", [binary, "serve", "--help"], os.sched_getaffinity(0), 30).words
    )


def measured(run, rows):
    """Takes all that is wanted."""
    for section, gives in SECTIONS:
        wanted = gives & rows
        if wanted == {8} and not has_driver(run.binary):
            run.leave_out("row 8", "want of --driver in this plimsoll")
        elif wanted:
            section(run, wanted)
            run.clear()


def result(run, said):
    """All that is known at the end, as plain data."""
    return {
        "machine": run.facts,
        "versions": run.found,
        "missing": run.missing,
        "settings": {
            "rows": sorted(said.rows),
            "rounds": run.rounds,
            "keys": run.keys,
            "quick": run.is_quick,
            "is_whole": (said.rows, run.rounds, run.keys, said.seconds) == (ROWS, ROUNDS, KEYS, None),
            "seconds": said.seconds,
            "minutes": round((time.monotonic() - run.begun) / 60, 1),
        },
        "tables": [table.plain() for table in run.tables.values() if table.measures],
    }


def stopped(number, _frame):
    raise SystemExit(128 + number)


def main():
    said = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stopped)
    if not os.access(said.binary, os.X_OK):
        return f"{said.binary} is not there: make build"
    os.makedirs(said.dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="side-by-side-", dir=said.dir) as directory:
        run = Run(said, directory)
        for program, lack in run.missing.items():
            run.say(f"{program} is missing (package {lack['package']}): left out is {lack['purpose']}")
        if run.server_on == run.load_on:
            run.say("there is one processor: server and load share it, and take from each other")
        try:
            share = DISK if said.rows & {5, 6, 9} else DISK_OF_GETS
            run.room(share * run.keys * 1024, "the run")
            measured(run, said.rows)
        except Failed as failed:
            return f"bench: {failed}"
        except KeyboardInterrupt:
            return "bench: stopped; nothing is written"
        finally:
            run.children.kill()
        told = result(run, said)
    pages = said.pages if said.rows == ROWS else None
    paths = report.write(told, said.out, pages)
    print(report.terminal(told))
    print("written: " + ", ".join(paths))
    if said.pages and not pages:
        print(f"only some rows were measured: the pages of {said.pages} stay as they are")
    return 0


if __name__ == "__main__":
    sys.exit(main())
