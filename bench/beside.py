#!/usr/bin/env python3
"""GETs of 1 KiB at half of what the server can, alone and beside a client that moves 10 MiB values.

Server on processor 0, load on processor 1, every GET reads flash (the cache is off). In each round the
closed loop tells what the server can; half of that is the open loop's rate. The client of long values makes
no pause; it is a process of its own, less urgent than the one that is measured. Prints each round and the
median of the ratios of p99.9.

    bench/beside.py target/release/plimsoll [--rounds N] [--seconds N] [--dir DIR]
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile

LONG_BYTES = 10 << 20
SHORT = ["--connections", "32", "--cores", "1"]
LONG = ["--cores", "1", "--connections", "1", "--database", "1", "--keys", "4", "--values", str(LONG_BYTES)]


def start(binary, directory):
    """The server, and where it listens."""
    server = subprocess.Popen(
        ["taskset", "-c", "0", binary, "serve", "--device", os.path.join(directory, "device"),
         "--size", "4GiB", "--cores", "0", "--cache", "0",
         "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        ready = re.search(r"ready resp=(\S+)", line)
        if ready:
            return server, ready.group(1)
    raise SystemExit("the server did not start")


class Load:
    def __init__(self, binary, address, directory):
        self.binary, self.address, self.directory = binary, address, directory

    def begin(self, name, flags, urgent=True):
        command = [self.binary, "bench", "--address", self.address, "--json", self.path(name), *flags]
        nice = [] if urgent else ["nice", "-n", "19"]
        return subprocess.Popen([*nice, *command], stdout=subprocess.DEVNULL)

    def path(self, name):
        return os.path.join(self.directory, f"{name}.json")

    def end(self, name, process):
        if process.wait() != 0:
            raise SystemExit(f"{name}: the load failed")
        with open(self.path(name), encoding="utf-8") as report:
            return json.load(report)["tenants"][0]["rows"][-1]

    def run(self, name, flags):
        return self.end(name, self.begin(name, flags))


def main():
    form = argparse.RawDescriptionHelpFormatter
    words = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    words.add_argument("binary")
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--seconds", type=float, default=6)
    words.add_argument("--dir", default=None, help="where the device is made")
    said = words.parse_args()
    with tempfile.TemporaryDirectory(dir=said.dir) as directory:
        server, address = start(said.binary, directory)
        try:
            measure(Load(said.binary, address, directory), said)
        finally:
            server.kill()
            server.wait()


def measure(load, said):
    load.run("store", [*SHORT, "--load", "--seconds", "1"])
    load.run("store-long", [*LONG, "--load", "--seconds", "1"])
    ratios = []
    for number in range(said.rounds):
        rate = int(load.run("most", [*SHORT, "--seconds", "3"])["per_second"] / 2)
        measured = [*SHORT, "--rate", str(rate), "--seconds", str(said.seconds)]
        alone = load.run("alone", measured)
        moving = load.begin(
            "moving",
            [*LONG, "--workload", "read=1,update=1", "--seconds", str(said.seconds + 2), "--warmup", "0"],
            urgent=False)
        beside = load.run("beside", measured)
        moved = load.end("moving", moving)["per_second"] * LONG_BYTES / 1e6
        percentiles = [row["percentiles_us"] for row in (alone, beside)]
        times = [each[name] / 1000 for each in percentiles for name in ("50", "99", "99.9")]
        ratios.append(times[5] / times[2])
        print("round %d: %d a second; alone p50 %.2f p99 %.2f p99.9 %.2f ms; beside %.2f %.2f %.2f ms; "
              "%.0f MB/s moved; ratio %.2f" % (number, rate, *times, moved, ratios[-1]), flush=True)
    print(f"p99.9 beside / alone: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
