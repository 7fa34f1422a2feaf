"""`make bench`: runs the rows that are asked for, and writes what came of them.

    python3 bench/side_by_side BINARY [--quick] [--rows 1,4] [--rounds N] [--seconds S] [--keys N]
                               [--dir DIR] [--out DIR] [--pages ROOT]

Role: the command line, and what all rows have in common. Invariants: nothing is installed; a peer that is
not there is named, and the rest goes on.
"""

import os
import shutil
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from side_by_side import children, load, machine, report, rows_get, rows_set  # noqa: E402
from side_by_side.measure import Table  # noqa: E402
from side_by_side.flags import Flags, count, seconds  # noqa: E402
from side_by_side.run import MIB, Run  # noqa: E402

# Seconds of one measure, by row.
SECONDS = {1: 8, 2: 5, 4: 5, 5: 5, 6: 5, 7: 8, 8: 5}
ROUNDS, KEYS = 5, 2 << 20
QUICK_SECONDS, QUICK_KEYS = 0.5, 20_000
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


class Compared(Run):
    """What the rows are given: the peers and the drive too, and where results go."""

    def __init__(self, said, directory):
        super().__init__(said, directory)
        self.keys, self.said_seconds = said.keys, said.seconds
        self.found, self.missing = machine.peers()
        self.drive = machine.Drive(directory)
        self.tables, self.rocks_filled = {}, {}

    def has(self, program):
        return program in self.found

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
    words = Flags("side_by_side", __doc__, ROUNDS, "bench")
    words.add_argument("--rows", default=",".join(map(str, sorted(ROWS))), help="default: %(default)s")
    words.add_argument("--seconds", type=seconds, help=f"of one measure; default by row: {SECONDS}")
    words.add_argument("--keys", type=count, help=f"of 1 KiB; longer values have fewer; default {KEYS}")
    said = words.said()
    said.keys = said.keys or (QUICK_KEYS if said.quick else KEYS)
    said.seconds = said.seconds or (QUICK_SECONDS if said.quick else None)
    try:
        said.rows = {int(row) for row in said.rows.split(",")}
    except ValueError:
        words.error(f"rows {said.rows}: numbers with commas are wanted")
    if not said.rows <= ROWS:
        words.error(f"rows {sorted(said.rows - ROWS)}: there are {sorted(ROWS)}")
    return said


def has_driver(binary):
    """True if this Plimsoll can do without io_uring."""
    ran = children.run("plimsoll", [binary, "serve", "--help"], os.sched_getaffinity(0), 30)
    return "--driver" in ran.words


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
            "minutes": round(run.passed() / 60, 1),
        },
        "tables": [table.plain() for table in run.tables.values() if table.measures],
    }


def main():
    said = arguments()
    with Compared.of(said) as run:
        for program, lack in run.missing.items():
            run.say(f"{program} is missing (package {lack['package']}): left out is {lack['purpose']}")
        if run.server_on == run.load_on:
            run.say("there is one processor: server and load share it, and take from each other")
        share = DISK if said.rows & {5, 6, 9} else DISK_OF_GETS
        run.room(share * run.keys * 1024, "the run")
        measured(run, said.rows)
        told = result(run, said)
    pages = said.pages if said.rows == ROWS else None
    paths = report.write(told, said.out, pages)
    print(report.terminal(told))
    print("written: " + ", ".join(paths))
    if said.pages and not pages:
        print(f"only some rows were measured: the pages of {said.pages} stay as they are")


if __name__ == "__main__":
    main()
