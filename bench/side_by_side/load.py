"""The loads: `plimsoll bench` for servers, fio for the drive, db_bench for RocksDB; each gives a sample.

Role: between the rows and the programs. A sample is a dictionary: per_second, mean_us, p50_us, p99_us,
p99_9_us; cpu_us, read_bytes and written_bytes an operation, of the server's process; resident_bytes; busy,
the load's share of its processor; count. What a program does not tell is absent.
Invariants: a wrong value, an absent key, an error or a status that is not 0 ends the run.
"""

import json
import os
import re

from side_by_side.children import Failed, run

# On top of the seconds that are asked for: connecting, warming up, checking.
GRACE_SECONDS = 240
WARMUP_SECONDS = 1.0


def of_report(report, tenant):
    """The sample of one tenant of a report of `plimsoll bench`."""
    told = next(each for each in report["tenants"] if each["name"] == tenant)
    row = told["rows"][-1]
    sample = {"count": row["count"], "per_second": row["per_second"], "mean_us": row["mean_us"]}
    if row["count"] == 0:
        raise Failed(f"the load did nothing at all: {told}")
    for name in ("50", "99", "99.9"):
        sample[f"p{name.replace('.', '_')}_us"] = row["percentiles_us"][name]
    if len(report["tenants"]) == 1 and report["server"]:
        server = report["server"]
        sample |= {
            "cpu_us": server["cpu_us_per_operation"],
            "read_bytes": server["read_bytes_per_operation"],
            "written_bytes": server["written_bytes_per_operation"],
            "resident_bytes": server["resident_bytes"],
        }
    return sample


def bench(context, server, seconds, flags, seconds_max=None):
    """Runs `plimsoll bench` against a server; its report, and how busy the load was."""
    path = os.path.join(context.directory, "load.json")
    command = [
        context.binary,
        "bench",
        "--address",
        f"127.0.0.1:{server.port}",
        "--protocol",
        server.protocol,
        "--cores",
        str(context.load_on),
        "--server-pid",
        str(server.child.pid),
        "--json",
        path,
        "--seed",
        str(context.seed()),
        "--seconds",
        str(seconds),
        "--warmup",
        str(min(WARMUP_SECONDS, seconds)),
        *map(str, flags),
    ]
    context.children.check()
    context.say(f"{server.name}: {' '.join(map(str, flags))}")
    ran = run(
        f"the load of {server.name}", command, {context.load_on}, seconds_max or seconds + GRACE_SECONDS
    )
    context.children.check()
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    os.remove(path)
    if not report["clean"]:
        raise Failed(f"{server.name}: the load is not clean: {report}")
    return report, ran.busy


def ask(context, server, seconds, keys, value_bytes, connections=50, pipeline=1, workload="get", more=()):
    """A sample of one load; how busy the load was is told where it is a closed loop."""
    flags = [
        "--workload",
        workload,
        "--keys",
        keys,
        "--values",
        value_bytes,
        "--connections",
        connections,
        "--pipeline",
        pipeline,
        *more,
    ]
    report, busy = bench(context, server, seconds, flags)
    return of_report(report, "load") | {"busy": busy}


def fill(context, server, keys, value_bytes, rate=None):
    """Stores every key once."""
    more = ["--rate", rate] if rate else []
    sample = ask(
        context, server, 0.1, keys, value_bytes, pipeline=1 if rate else 16, workload="fillseq", more=more
    )
    if sample["count"] != keys:
        raise Failed(f"{server.name}: {sample['count']} of {keys} keys were stored")
    return sample


def fio(context, path, seconds, flags):
    """A sample of fio, one job with direct I/O on the servers' processor."""
    command = [
        "fio",
        "--name=job",
        f"--filename={path}",
        "--direct=1",
        "--ioengine=io_uring",
        "--thread=0",
        f"--size={os.path.getsize(path)}",
        f"--runtime={seconds}",
        "--time_based",
        f"--ramp_time={min(WARMUP_SECONDS, seconds)}",
        "--randrepeat=0",
        "--overwrite=1",
        "--output-format=json",
        *flags,
    ]
    context.children.check()
    context.say(f"fio: {' '.join(flags)}")
    ran = run("fio", command, {context.server_on}, seconds + GRACE_SECONDS)
    job = json.loads(ran.words[ran.words.index("{") :])["jobs"][0]
    side = job["read"] if "read" in flags[0] else job["write"]
    if job["error"] != 0 or side["total_ios"] == 0:
        raise Failed(f"fio: error {job['error']}, {side['total_ios']} operations")
    percentiles = side["clat_ns"]["percentile"]
    cpu_us = (job["usr_cpu"] + job["sys_cpu"]) / 100 * side["runtime"] * 1000 / side["total_ios"]
    return {
        "count": side["total_ios"],
        "per_second": side["iops"],
        "mean_us": side["lat_ns"]["mean"] / 1000,
        "p50_us": percentiles["50.000000"] / 1000,
        "p99_us": percentiles["99.000000"] / 1000,
        "p99_9_us": percentiles["99.900000"] / 1000,
        "cpu_us": cpu_us,
        "bytes_per_second": side["bw_bytes"],
    }


def of_db_bench(words, name):
    """The sample of one of db_bench's benchmarks, and its statistics."""
    line = re.search(
        rf"^{name}\s*:\s*([\d.]+) micros/op (\d+) ops/sec ([\d.]+) seconds (\d+) operations",
        words,
        re.MULTILINE,
    )
    if line is None:
        raise Failed(f"db_bench tells nothing of {name}: {words[-1500:]}")
    for found, asked in re.findall(r"\((\d+) of (\d+) found\)", words):
        if found != asked:
            raise Failed(f"db_bench found {found} of {asked} keys")
    times = re.search(r"Percentiles: P50: ([\d.]+) P75: [\d.]+ P99: ([\d.]+) P99.9: ([\d.]+)", words)
    sample = {"count": int(line.group(4)), "per_second": float(line.group(2))}
    if times:
        sample |= dict(zip(("p50_us", "p99_us", "p99_9_us"), map(float, times.groups())))
    return sample


def counter(words, name):
    """One of RocksDB's counters."""
    found = re.search(rf"^{re.escape(name)} COUNT : (\d+)", words, re.MULTILINE)
    if found is None:
        raise Failed(f"db_bench tells no {name}")
    return int(found.group(1))


def db_bench(context, folder, name, keys, value_bytes, flags, seconds_max=GRACE_SECONDS):
    """Runs one benchmark of db_bench, on the processors of server and load together: it is both."""
    command = [
        "db_bench",
        f"--benchmarks={name}",
        f"--db={folder}",
        f"--num={keys}",
        "--key_size=16",
        f"--value_size={value_bytes}",
        "--compression_type=none",
        "--bloom_bits=10",
        "--histogram=1",
        "--statistics=1",
        "--use_direct_reads=1",
        "--use_direct_io_for_flush_and_compaction=1",
        *flags,
    ]
    context.children.check()
    context.say(f"db_bench: {name} of {value_bytes} bytes {' '.join(flags)}")
    ran = run("db_bench", command, {context.server_on, context.load_on}, seconds_max)
    if "Assertions are enabled" in ran.words:
        context.note("db_bench", "built with assertions")
    benchmark = name.split(",")[0]
    sample = of_db_bench(ran.words, benchmark)
    return sample | {"cpu_us": ran.cpu_seconds * 1e6 / sample["count"]}, ran.words


def db_bench_writes(context, folder, name, keys, value_bytes, flags):
    """Runs a benchmark until compaction has nothing left to do; what was written for each byte."""
    sample, words = db_bench(context, folder, f"{name},waitforcompaction", keys, value_bytes, flags, 3600)
    written = sum(
        counter(words, f"rocksdb.{part}")
        for part in ("wal.bytes", "flush.write.bytes", "compact.write.bytes")
    )
    return {
        "per_second": sample["per_second"],
        "load_cpu_us": sample["cpu_us"],
        "process_amplification": written / (keys * (value_bytes + 16)),
    }
