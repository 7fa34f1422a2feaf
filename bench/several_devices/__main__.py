"""`make bench-array`: stores and retrieves by each mechanism over six small drives, a rebuild, and memory.

    python3 bench/several_devices BINARY [--quick] [--rounds N] [--dir DIR] [--out DIR] [--pages ROOT]

Role: the command line, and what is measured in which order. Six files are drives of so many requests and
bytes a second (`[throttle]`), so that they are the limit and not the one processor of the server.
Invariant: shares are made within a round, whose mechanisms take turns.
"""

import os
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from several_devices import pages  # noqa: E402
from several_devices.servers import Several, lay_all  # noqa: E402
from side_by_side import load  # noqa: E402
from side_by_side.children import Failed  # noqa: E402
from side_by_side.flags import Flags  # noqa: E402
from side_by_side.run import MIB, Run  # noqa: E402

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
    "packing 4+2": ['mechanism = "packing"', "data = 4", "parities = 2"],
}
# It goes on behind the acknowledgement, and what is read before says what copies do.
PACKING = "packing 4+2"
ROUNDS, STORED_BYTES, SECONDS = 3, 24 * MIB, 4
QUICK_STORED_BYTES, QUICK_SECONDS = 2 * MIB, 0.5
# Of each device, so that all have more than ten million: what does not grow with them weighs little there.
MEMORY_RECORDS, QUICK_MEMORY_RECORDS = 1_700_000, 5000
MEMORY_VALUE_BYTES = 16
# Records of a key. When all is packed: value, stubs, and a part of those of a set.
PIECES = {"hashing": 1, "replication 3": 3, "splitting 4+2": 6, PACKING: 1 + 2 + (2 + 1) / 4}


class Array(Run):
    """With how much is stored and asked."""

    def __init__(self, said, directory):
        super().__init__(said, directory)
        self.stored_bytes = QUICK_STORED_BYTES if said.quick else STORED_BYTES
        self.seconds = QUICK_SECONDS if said.quick else SECONDS
        self.memory_records = QUICK_MEMORY_RECORDS if said.quick else MEMORY_RECORDS

    def lay_devices(self):
        """One more than are served: what takes the place of another."""
        each = QUICK_DEVICE_BYTES if self.is_quick else DEVICE_BYTES
        self.room((DEVICES + 1) * each, "the devices")
        return lay_all(os.path.join(self.directory, "devices"), DEVICES + 1, each)


def server_of(run, paths, mechanism, more=()):
    """A server that has just been started."""
    server = Several(run, "server", paths[:DEVICES], [*more, "[array]", *MECHANISMS[mechanism]])
    server.name = mechanism
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


def packed(run, server, stored_bytes):
    """Waits for what is behind the acknowledgements; how long that took, and what is kept for each byte."""
    told = server.packed()
    told["kept"] = told.pop("live_bytes") / stored_bytes
    left = f"{told['waiting']:.0f} keys wait, {told['kept']:.2f} bytes are kept for each"
    run.say(f"{server.name}: packs no more {told['seconds']:.1f} s after the stores: {left}")
    return told


def measured(run, paths, mechanism, value_bytes):
    """Stores every key, has them packed, retrieves some, and fills a new device: a sample of each."""
    server = server_of(run, paths, mechanism, throttled(value_bytes))
    keys = run.stored_bytes // value_bytes

    def ask(seconds, connections, workload):
        sample = load.ask(run, server, seconds, keys, value_bytes, connections, workload=workload)
        return busy(sample, value_bytes)

    samples = {"store": ask(0.1, STORING, "fillseq")}
    if samples["store"]["count"] != keys:
        raise Failed(f"{mechanism}: {samples['store']['count']} of {keys} keys were stored")
    if mechanism == PACKING:
        samples["packed"] = packed(run, server, keys * value_bytes)
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
    """Memory for each key: what the process grew by at most, and what the index is by its account."""
    keys = int(run.memory_records * DEVICES / PIECES[mechanism])
    # Known keys are a cache of bounded size: they are no part of what a key costs.
    server = server_of(run, paths, mechanism, ['known-keys = "0B"'])
    before = server.child.peak_bytes()
    server.store_scattered(keys, MEMORY_VALUE_BYTES)
    if mechanism == PACKING:
        packed(run, server, keys * MEMORY_VALUE_BYTES)
    peak = server.child.peak_bytes()
    told = {
        "keys": keys,
        "records": server.metric("plimsoll_partition_objects") / keys,
        "index_bytes": server.metric("plimsoll_partition_index_bytes") / keys,
        "grown_bytes": (peak - before) / keys,
        "peak_bytes": peak,
    }
    server.stop()
    run.say(f"{mechanism}: {told['grown_bytes']:.1f} bytes a key, {told['records']:.2f} records")
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
            "minutes": round(run.passed() / 60, 1),
        },
        "rounds": [
            {"mechanism": name, "value_bytes": size, "samples": samples}
            for (name, size), samples in taken.items()
        ],
        "memory": kept,
    }


def main():
    said = Flags("several_devices", __doc__, ROUNDS, "bench-array").said()
    with Array.of(said) as run:
        paths = run.lay_devices()
        taken = measure_all(run, paths)
        kept = {name: memory(run, paths, name) for name in MECHANISMS}
        told = result(run, taken, kept)
    written = pages.write(told, said.out, said.pages)
    print("\n".join(pages.block(pages.summary(told))))
    print("written: " + ", ".join(written))


if __name__ == "__main__":
    main()
