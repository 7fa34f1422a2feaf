#!/usr/bin/env python3
"""First look at speed: GET and SET of 1 KiB beside redis-server and fio, in one run.

Server on core 0, load (redis-benchmark, 50 connections) on core 1; both servers are up all the time and
take turns, ROUNDS rounds; medians are printed. Every GET of plimsoll reads flash (its value cache is off),
redis answers from RAM. Needs redis-server, redis-benchmark and fio.

    bench/first_look.py target/release/plimsoll [--keys N] [--rounds N] [--operations N] [--dir DIR]
"""
import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

VALUE_BYTES = 1024
CONNECTIONS = 50


def wait_ready(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(64).startswith(b"+PONG"):
                    return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"the server on port {port} did not become ready")


def load(port, keys):
    """Stores every key once, with values cut at random places from random bytes."""
    generator = random.Random(1)
    base = os.urandom(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for first in range(0, keys, 200):
            batch = []
            for number in range(first, min(first + 200, keys)):
                at = generator.randrange(0, len(base) - VALUE_BYTES)
                value = base[at:at + VALUE_BYTES]
                batch.append(b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (number, len(value), value))
            connection.sendall(b"".join(batch))
            missing = 5 * len(batch)
            while missing > 0:
                missing -= len(connection.recv(1 << 16))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port, pid, command, keys, operations):
    before = cpu_seconds(pid)
    run = subprocess.run(
        ["taskset", "-c", "1", "redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(operations),
         "-r", str(keys), "-t", command, "-d", str(VALUE_BYTES), "--csv"],
        check=True, capture_output=True, text=True)
    cpu = cpu_seconds(pid) - before
    row = run.stdout.strip().splitlines()[-1].replace('"', "").split(",")
    rate, p50, p99 = float(row[1]), float(row[4]), float(row[6])
    return {"rate": rate, "p50_ms": p50, "p99_ms": p99, "cpu_us": cpu / operations * 1e6}


def fio_reads(path, seconds):
    run = subprocess.run(
        ["taskset", "-c", "1", "fio", "--name=reads", f"--filename={path}", "--rw=randread", "--bs=4k",
         "--ioengine=io_uring", "--direct=1", "--iodepth=32", f"--runtime={seconds}", "--time_based",
         "--size=256m", "--readonly", "--output-format=json"],
        check=True, capture_output=True, text=True)
    job = json.loads(run.stdout)["jobs"][0]
    return job["read"]["iops"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("binary")
    arguments.add_argument("--keys", type=int, default=300_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--operations", type=int, default=200_000)
    arguments.add_argument("--dir", default=".")
    options = arguments.parse_args()
    for tool in ("redis-server", "redis-benchmark", "fio", "taskset"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        run(options, directory)


def run(options, directory):
    ours, theirs = 7101, 7103
    plimsoll = subprocess.Popen(
        ["taskset", "-c", "0", options.binary, "serve", "--data", directory, "--cores", "0",
         "--cache", "0", "--resp", f"127.0.0.1:{ours}", "--admin", f"127.0.0.1:{ours + 1}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    redis = subprocess.Popen(
        ["taskset", "-c", "0", "redis-server", "--port", str(theirs), "--save", "", "--appendonly", "no",
         "--dir", directory], stdout=subprocess.DEVNULL)
    rows = {("plimsoll", "get"): [], ("redis", "get"): [], ("plimsoll", "set"): [], ("redis", "set"): []}
    reads = []
    try:
        for port in (ours, theirs):
            wait_ready(port)
            load(port, options.keys)
        device = os.path.join(directory, next(name for name in os.listdir(directory) if name.endswith(".plimsoll")))
        for _ in range(options.rounds):
            for command in ("get", "set"):
                rows["plimsoll", command].append(
                    measure(ours, plimsoll.pid, command, options.keys, options.operations))
                rows["redis", command].append(measure(theirs, redis.pid, command, options.keys, options.operations))
            reads.append(fio_reads(device, 3))
    finally:
        plimsoll.terminate()
        redis.terminate()
        plimsoll.wait()
        redis.wait()
    report(rows, reads, options)


def report(rows, reads, options):
    print(f"{options.keys} keys of {VALUE_BYTES} bytes, {CONNECTIONS} connections, no pipeline, "
          f"medians of {options.rounds} alternating rounds\n")
    print("| what | ops/s | p50 ms | p99 ms | server CPU us/op |")
    print("|---|---|---|---|---|")
    for (server, command), measured in rows.items():
        median = {name: statistics.median(row[name] for row in measured) for name in measured[0]}
        durable = " (sync)" if (server, command) == ("plimsoll", "set") else ""
        print(f"| {server} {command.upper()}{durable} | {median['rate']:.0f} | {median['p50_ms']:.2f} | "
              f"{median['p99_ms']:.2f} | {median['cpu_us']:.1f} |")
    iops = statistics.median(reads)
    print(f"| fio random read 4 KiB, QD 32 | {iops:.0f} | | | |\n")
    ratios = []
    for ours, theirs, limit in zip(rows["plimsoll", "get"], rows["redis", "get"], reads):
        ratios.append(ours["rate"] / min(theirs["rate"], limit))
    print("GET, ratio to the smaller of redis and fio, by round: "
          + ", ".join(f"{ratio:.2f}" for ratio in ratios) + f"; median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
