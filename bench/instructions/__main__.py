"""`make instructions`: how many instructions an operation takes, and whose they are.

    python3 bench/instructions BINARY COUNTED [--quick] [--dir DIR] [--out DIR] [--pages ROOT]

Role: the command line and the operations. The server's own instructions are counted by callgrind, function
by function; beside stands what the processor counts, the kernel's part included, where perf can ask it.
COUNTED is built with `--cfg rustix_use_libc`, as callgrind hides what the fast way to the clock looks for,
and runs without io_uring, which callgrind cannot follow: but for the reactor's part that changes nothing.
Invariants: nothing is installed; what is missing is named.
"""

import os
import shutil
import sys

if __package__ in (None, ""):
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from instructions import counts, pages  # noqa: E402
from side_by_side import children  # noqa: E402
from side_by_side.flags import Flags  # noqa: E402
from side_by_side.run import MIB, Run  # noqa: E402
from side_by_side.servers import Ours, lay  # noqa: E402

KEYS, OPERATIONS, QUICK = 20_000, 40_000, 2_000
DEVICE_BYTES = 512 * MIB
# Name, workload, bytes of a value, connections, pipeline, cache.
LOADS = [
    ("GET 1 KiB from flash, 50 connections", "get", 1024, 50, 1, "0"),
    ("GET 1 KiB from flash, 50 connections, pipeline 16", "get", 1024, 50, 16, "0"),
    ("GET 1 KiB from memory, 50 connections", "get", 1024, 50, 1, "256MiB"),
    ("GET 1 KiB from memory, 50 connections, pipeline 16", "get", 1024, 50, 16, "256MiB"),
    ("SET 1 KiB, sync, 64 connections", "set", 1024, 64, 1, "0"),
    ("SET 16 KiB, sync, 64 connections", "set", 16384, 64, 1, "0"),
]


def bench(run, server, workload, value_bytes, connections, pipeline, operations, keys):
    """The command of a load of so many operations."""
    words = {
        "address": f"127.0.0.1:{server.port}",
        "cores": run.load_on,
        "workload": workload,
        "keys": keys,
        "values": value_bytes,
        "connections": connections,
        "pipeline": pipeline,
        "requests": operations,
        "warmup": 0,
        "seed": run.seed(),
    }
    return [run.binary, "bench", *(str(word) for name in words for word in (f"--{name}", words[name]))]


def measured(run, device, load, keys, operations):
    """One operation: its instructions by part, and by the processor's own account."""
    name, workload, value_bytes, connections, pipeline, cache = load
    keys = keys * 1024 // max(value_bytes, 1024)

    def ask(server, what, count):
        return bench(run, server, what, value_bytes, connections, pipeline, count, keys)

    def ran(command):
        return children.run("plimsoll bench", command, {run.load_on}, counts.SECONDS_MAX)

    told = {"name": name}
    for kind in (Ours, counts.Counted):
        lay(device, DEVICE_BYTES)
        server = kind(run, f"server-{kind.__name__}", [device], cache=cache)
        server.start()
        ran(ask(server, "fillseq", keys))
        # What is read from memory was read before, and what is written is known.
        for _ in range(4 if cache != "0" else 1):
            ran(ask(server, workload, 2 * keys))
        if kind is Ours:
            command = ask(server, workload, 10 * operations)
            told["processor"] = counts.by_processor(server, command, {run.load_on}, 10 * operations)
        else:
            found = server.count(lambda: ran(ask(server, workload, operations)))
            told["parts"] = counts.by_part(found, operations)
        server.stop()
    run.say(f"{name}: {sum(told['parts'].values()):,.0f} instructions")
    return told


def main():
    words = Flags("instructions", __doc__, 1, "instructions")
    words.add_argument("counted", help="the same, built to be counted")
    said = words.said()
    wanted = ["valgrind", "callgrind_control", "callgrind_annotate"]
    missing = [name for name in wanted if not shutil.which(name)]
    if missing:
        raise SystemExit(f"{', '.join(missing)} cannot be found: the package valgrind has them")
    with Run.of(said) as run:
        run.counted = os.path.abspath(said.counted)
        if not shutil.which("perf"):
            run.say("perf is missing: the kernel's instructions are left out")
        keys, operations = (QUICK, QUICK) if said.quick else (KEYS, OPERATIONS)
        run.room(2 * DEVICE_BYTES, "the device")
        device = os.path.join(run.directory, "device")
        version = children.run("valgrind", ["valgrind", "--version"], counts.ALL, 30).words.strip()
        told = {
            "machine": run.facts,
            "valgrind": version,
            "keys": keys,
            "operations": operations,
            "loads": [measured(run, device, load, keys, operations) for load in LOADS],
        }
    written = pages.write(told, said.out, said.pages)
    print("\n".join(pages.block(told)))
    print("written: " + ", ".join(written))


if __name__ == "__main__":
    main()
