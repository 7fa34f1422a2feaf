"""`make bench-array`: stores and retrieves by each mechanism over six small drives, a rebuild, and memory.

    python3 bench/several_devices BINARY [--quick] [--rounds N] [--dir DIR] [--out DIR] [--pages ROOT]

Role: the command line, and what is measured in which order. Six files are drives of so many requests and
bytes a second (`[throttle]`), so that they are the limit and not the one processor of the server.
Invariants: shares are made within a round, whose mechanisms take turns; an error ends the run with status 1
and nothing is written to the pages; processes and data are gone at the end, in whatever way it comes.
"""

import argparse
import os
import signal
import sys
import tempfile
import time

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from several_devices import pages  # noqa: E402
from several_devices.servers import Several, lay_all  # noqa: E402
from side_by_side import load, machine  # noqa: E402
from side_by_side.__main__ import ROOT, TARGET, stopped  # noqa: E402
from side_by_side.children import Children, Failed  # noqa: E402

MIB = 1 << 20
DEVICES = 6
# So large that a value of 64 KiB is one record: segments of small devices are small.
DEVICE_BYTES, QUICK_DEVICE_BYTES = 1024 * MIB, 128 * MIB
# Of each drive, in a second: requests, and bytes by the length of values, as the processor has to keep up.
REQUESTS = 1000
BYTES = {1024: 4 * MIB, 4096: 4 * MIB, 16384: 8 * MIB, 65536: 8 * MIB}
SIZES = list(BYTES)
# Connections of stores, and of retrieves: few, as a read that waits 20 ms asks another copy as well.
STORING = 96
RETRIEVING = {1024: 16, 4096: 16, 16384: 12, 65536: 6}
REBUILT = 4096
MECHANISMS = {
    "hashing": ['mechanism = "hashing"'],
    "replication 3": ['mechanism = "replication"', "copies = 3"],
    "splitting 4+2": ['mechanism = "splitting"', "data = 4", "parities = 2"],
}
ROUNDS, STORED_BYTES, SECONDS, MEMORY_RECORDS = 3, 24 * MIB, 4, 100_000
QUICK_ROUNDS, QUICK_STORED_BYTES, QUICK_SECONDS, QUICK_MEMORY_RECORDS = 1, 2 * MIB, 0.5, 5000
MEMORY_VALUE_BYTES = 16
# Records of a key; of one device the same.
PIECES = {None: 1, "hashing": 1, "replication 3": 3, "splitting 4+2": 6}


class Run:
    """What loads and servers are given."""

    def __init__(self, said, directory):
        self.directory, self.binary = directory, os.path.abspath(said.binary)
        self.server_on, self.load_on = machine.processors()
        self.children, self.seeds, self.begun = Children(), 0, time.monotonic()
        self.facts = machine.facts(directory, ROOT)
        self.is_quick, self.rounds = said.quick, said.rounds
        self.stored_bytes = QUICK_STORED_BYTES if said.quick else STORED_BYTES
        self.seconds = QUICK_SECONDS if said.quick else SECONDS
        self.memory_records = QUICK_MEMORY_RECORDS if said.quick else MEMORY_RECORDS

    def say(self, words):
        print(f"[{time.monotonic() - self.begun:6.1f} s] {words}", file=sys.stderr, flush=True)

    def seed(self):
        """Another one for each load."""
        self.seeds += 1
        return self.seeds

    def lay_devices(self):
        """One more than are served: what takes the place of another."""
        each = QUICK_DEVICE_BYTES if self.is_quick else DEVICE_BYTES
        size = (DEVICES + 1) * each
        if machine.free_bytes(self.directory) < size + 512 * MIB:
            raise Failed(f"{self.directory} has no room for {size // MIB} MiB: name another with --dir")
        return lay_all(os.path.join(self.directory, "devices"), DEVICES + 1, each)


def server_of(run, paths, mechanism, more=()):
    """A server that has just been started; over one device if no mechanism is named."""
    array = ["[array]", *MECHANISMS[mechanism]] if mechanism else []
    server = Several(run, "server", paths, [*more, *array])
    server.name = mechanism or "one device"
    return server.start()


def throttled(value_bytes):
    return ["[throttle]", f"requests = {REQUESTS}", f'bytes = "{BYTES[value_bytes]}B"']


def busy(sample, value_bytes):
    """Adds which part of its processor the server used, and which part of their bytes the drives."""
    moved = sample["read_bytes"] + sample["written_bytes"]
    return sample | {
        "server_busy": sample["cpu_us"] * sample["per_second"] / 1e6,
        "of_bytes": moved * sample["per_second"] / (DEVICES * BYTES[value_bytes]),
    }


def measured(run, paths, mechanism, value_bytes):
    """Stores every key, retrieves some, and fills a new device: a sample of each."""
    server = server_of(run, paths[:DEVICES], mechanism, throttled(value_bytes))
    keys = run.stored_bytes // value_bytes

    def ask(seconds, connections, workload):
        sample = load.ask(run, server, seconds, keys, value_bytes, connections, workload=workload)
        return busy(sample, value_bytes)

    samples = {"store": ask(0.1, STORING, "fillseq")}
    if samples["store"]["count"] != keys:
        raise Failed(f"{mechanism}: {samples['store']['count']} of {keys} keys were stored")
    samples["retrieve"] = ask(run.seconds, RETRIEVING[value_bytes], "get")
    if value_bytes == REBUILT and mechanism != "hashing":
        samples["rebuild"] = server.replace_first(paths[DEVICES])
        run.say(f"{mechanism}: rebuilt in {samples['rebuild']['seconds']:.1f} s")
    server.stop()
    return samples


def measure_all(run, paths):
    """All rounds: by mechanism and length, the samples of each."""
    taken = {(name, size): [] for name in MECHANISMS for size in SIZES}
    names = list(MECHANISMS)
    for number in range(run.rounds):
        first = number % len(names)
        for size in SIZES:
            for name in names[first:] + names[:first]:
                taken[name, size].append(measured(run, paths, name, size))
    return taken


def memory(run, paths, mechanism):
    """Memory for each key, by the index's account: as many records on each device by any mechanism."""
    served = paths[:DEVICES] if mechanism else paths[:1]
    keys = run.memory_records * len(served) // PIECES[mechanism]
    # Known keys are a cache of bounded size: they are no part of what a key costs.
    server = server_of(run, served, mechanism, ['known-keys = "0B"'])
    load.fill(run, server, keys, MEMORY_VALUE_BYTES)
    told = {
        "keys": keys,
        "records": server.metric("plimsoll_partition_objects") / keys,
        "index_bytes": server.metric("plimsoll_partition_index_bytes") / keys,
        "resident_bytes": server.child.resident_bytes(),
    }
    server.stop()
    return told


def result(run, taken, kept):
    """All that is known at the end, as plain data."""
    return {
        "machine": run.facts,
        "settings": {
            "quick": run.is_quick,
            "rounds": run.rounds,
            "stored_bytes": run.stored_bytes,
            "seconds": run.seconds,
            "devices": DEVICES,
            "requests": REQUESTS,
            "bytes": BYTES,
            "storing": STORING,
            "retrieving": RETRIEVING,
            "rebuilt": REBUILT,
            "memory_records": run.memory_records,
            "memory_value_bytes": MEMORY_VALUE_BYTES,
            "minutes": round((time.monotonic() - run.begun) / 60, 1),
        },
        "rounds": [
            {"mechanism": name, "value_bytes": size, "samples": samples}
            for (name, size), samples in taken.items()
        ],
        "memory": kept,
    }


def arguments():
    words = argparse.ArgumentParser(
        prog="bench/several_devices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words.add_argument("binary", help="plimsoll, a release build")
    words.add_argument("--quick", action="store_true", help="little data, one round: proves that it runs")
    words.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    words.add_argument("--dir", default=TARGET, help="where data is put; default %(default)s")
    words.add_argument("--out", help="where the result goes, as JSON; default target/bench-array")
    words.add_argument("--pages", help="the checkout whose page and plot are written; default none")
    said = words.parse_args()
    said.rounds = said.rounds or (QUICK_ROUNDS if said.quick else ROUNDS)
    said.out = said.out or os.path.join(TARGET, "bench-array")
    if said.pages and said.quick:
        words.error("a quick run measures nothing that belongs on pages")
    return said


def main():
    said = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stopped)
    if not os.access(said.binary, os.X_OK):
        return f"{said.binary} is not there: make build"
    os.makedirs(said.dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="several-devices-", dir=said.dir) as directory:
        run = Run(said, directory)
        try:
            paths = run.lay_devices()
            taken = measure_all(run, paths)
            kept = {name or "one device": memory(run, paths, name) for name in [None, *MECHANISMS]}
        except Failed as failed:
            return f"bench: {failed}"
        except KeyboardInterrupt:
            return "bench: stopped; nothing is written"
        finally:
            run.children.kill()
        told = result(run, taken, kept)
    written = pages.write(told, said.out, said.pages)
    print("\n".join(pages.block(pages.summary(told))))
    print("written: " + ", ".join(written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
