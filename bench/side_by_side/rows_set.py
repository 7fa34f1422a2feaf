"""Rows that write: durable SETs (5), their bandwidth (6), reads beside overwriting (7), and costs (9).

Role: as rows_get. Invariants: "durable" is on stable media before the reply, for all that are compared;
what is not durable says so in its name.
"""

import os
import signal
import time

from side_by_side import load, rows_get, steps
from side_by_side.children import Failed
from side_by_side.measure import Bar
from side_by_side.rows_get import PIPELINE, redis_fits
from side_by_side.servers import MIB, Plimsoll, Redis, forget
from side_by_side.steps import length

# A device of which live data takes less than half: cleaning has little to do.
ROOM = 2.2
RESTART_SECONDS_MAX = 300
RESTART_ROUNDS_MAX = 3
# Bytes of a record of a 1 KiB value: the value, its key and its head.
RECORD_BYTES = 1120
FULL_SHARE = 0.8
OVERWRITE_CONNECTIONS = 16
OVERWRITE_KEYS_MIN = 50_000


def durable_pair(context, keys, value_bytes):
    """Ours and, if it is there, a Redis that syncs every write; both loaded."""
    servers = {
        "ours": Plimsoll(
            context, f"ours-set-{value_bytes}", int(ROOM * keys * value_bytes) + 512 * MIB
        ).start()
    }
    if redis_fits(context, keys, value_bytes):
        context.room(8 * keys * value_bytes, "Redis' append-only file")
        servers["redis"] = Redis(context, f"redis-set-{value_bytes}", is_durable=True).start()
    for server in servers.values():
        load.fill(context, server, keys, value_bytes)
    return servers


def sync_small(context, wanted):
    """Row 5 at 1 KiB, and restarts for row 9."""
    keys, value_bytes, seconds = context.keys, 1024, context.seconds(5)
    servers = durable_pair(context, keys, value_bytes)
    if 5 in wanted:
        table = context.table("set-1024", "durable SET of 1 KiB", seconds)
        made = [
            steps.ask(context, table, f"{key}_{count}", server, keys, value_bytes, count, workload="set")
            for count in (1, 16, 64)
            for key, server in servers.items()
        ]
        made += rocks_64(context, table, keys, value_bytes)
        made += steps.fio(
            context,
            table,
            "fio",
            "random write 4 KiB, O_DSYNC, queue depth 1",
            keys * value_bytes,
            ["--rw=randwrite", "--bs=4k", "--sync=dsync", "--iodepth=1"],
        )
        table.alternate(context.rounds, made)
        table.facts.append(durable_facts(keys, value_bytes))
        judge_small(table)
    if 9 in wanted:
        restarts(context, servers)
    for server in servers.values():
        server.stop()


def rocks_64(context, table, keys, value_bytes):
    """RocksDB's part of row 5."""
    what = f"overwrite {length(value_bytes)}, synced, 64 threads"
    return steps.rocks(context, table, "rocksdb_64", "overwrite", what, keys, value_bytes, 64, ["--sync=1"])


def durable_facts(keys, value_bytes):
    return (
        f"{keys:,} keys of 16 bytes with values of {length(value_bytes)}, overwritten at random; plimsoll: "
        "durability sync, a device file written once over before and less than half full; Redis: "
        "`appendfsync always`, its file never rewritten; RocksDB: `sync`, no compression, direct I/O, "
        "threads instead of connections, and both processors; fio: every block of its file written before"
    )


def judge_small(table):
    for connections, limit in ((1, 1.5), (16, 1.3), (64, 1.3)):
        keys = [f"ours_{connections}", f"redis_{connections}"]
        ratio(
            table,
            Bar(
                5,
                f"durable SET 1 KiB, {connections} connection{'s' if connections > 1 else ''}",
                "Redis, appendfsync always",
                limit,
                True,
            ),
            *keys,
        )
    ratio(
        table,
        Bar(5, "durable SET 1 KiB, 64 connections", "RocksDB, sync, 64 threads", 1.8, True),
        "ours_64",
        "rocksdb_64",
    )
    table.judge(
        Bar(
            5,
            "durable SET 1 KiB, 1 connection: p50 above the drive's",
            "fio, write of 4 KiB with O_DSYNC",
            40,
            False,
            "us",
        ),
        lambda ours_1, fio: ours_1["p50_us"] - fio["p50_us"],
        ["ours_1", "fio"],
        ("p50_us", "ours_1", ["fio"]),
    )


def ratio(table, bar, ours, theirs):
    """A bar of throughput, ours by theirs."""
    return table.judge(
        bar,
        lambda **told: told[ours]["per_second"] / told[theirs]["per_second"],
        [ours, theirs],
        ("per_second", ours, [theirs]),
    )


def sync_large(context, wanted):
    """Row 5 at 16 KiB, and row 6."""
    value_bytes = 16384
    keys, seconds = context.keys * 1024 // value_bytes, context.seconds(5)
    servers = durable_pair(context, keys, value_bytes)
    table = context.table("set-16384", "durable SET of 16 KiB", seconds)
    made = []
    if 5 in wanted:
        made += [
            steps.ask(context, table, f"{key}_64", server, keys, value_bytes, 64, workload="set")
            for key, server in servers.items()
        ]
        made += rocks_64(context, table, keys, value_bytes)
    if 6 in wanted:
        made += piped(context, table, servers, keys, value_bytes)
    table.alternate(context.rounds, made)
    table.facts.append(durable_facts(keys, value_bytes))
    judge_large(table, wanted, value_bytes)
    for server in servers.values():
        server.stop()


def piped(context, table, servers, keys, value_bytes):
    """The measures of row 6; starts a Redis that is not durable."""

    def ask(key, server):
        return steps.ask(context, table, key, server, keys, value_bytes, 16, PIPELINE, "set")

    made = [ask("ours_pipeline", servers["ours"])]
    if redis_fits(context, keys, value_bytes):
        ram = servers["ram"] = Redis(context, "redis-ram-16384").start()
        load.fill(context, ram, keys, value_bytes)
        key, name, what, sample = ask("redis_pipeline", ram)
        made.append((key, f"{name}, not durable", what, sample))
    flags = ["--rw=write", "--bs=128k", "--sync=dsync", "--iodepth=8"]
    what = "sequential write 128 KiB, O_DSYNC, queue depth 8"
    return made + steps.fio(context, table, "fio", what, keys * value_bytes, flags)


def judge_large(table, wanted, value_bytes):
    if 5 in wanted:
        ratio(
            table,
            Bar(5, "durable SET 16 KiB, 64 connections", "Redis, appendfsync always", 2, True),
            "ours_64",
            "redis_64",
        )
        ratio(
            table,
            Bar(5, "durable SET 16 KiB, 64 connections", "RocksDB, sync, 64 threads", 3, True),
            "ours_64",
            "rocksdb_64",
        )
    if 6 in wanted:
        for key in table.measures.keys() & {"ours_pipeline", "redis_pipeline"}:
            for each in table.measures[key].rounds:
                each["bytes_per_second"] = each["per_second"] * value_bytes
        table.judge(
            Bar(
                6,
                f"durable SET 16 KiB, 16 connections, pipeline {PIPELINE}: bytes per second",
                "half of fio's sequential O_DSYNC, or 0.9 of Redis in RAM: the smaller",
                1,
                True,
            ),
            lambda ours_pipeline, redis_pipeline, fio: ours_pipeline["bytes_per_second"]
            / min(0.5 * fio["bytes_per_second"], 0.9 * redis_pipeline["bytes_per_second"]),
            ["ours_pipeline", "redis_pipeline", "fio"],
            ("bytes_per_second", "ours_pipeline", ["redis_pipeline", "fio"]),
        )


def restarts(context, servers):
    """From the start of the process to the first right value, after a clean stop and after SIGKILL.
    What was overwritten before, for other rows, is no part of it."""
    for key, server in servers.items():
        for sent, how in ((signal.SIGTERM, "a clean stop"), (signal.SIGKILL, "SIGKILL")):
            for _ in range(min(context.rounds, RESTART_ROUNDS_MAX)):
                if isinstance(server, Redis):
                    server.shorten()
                # Something to replay.
                change = ["--requests", max(context.keys // 10, 1000)]
                load.ask(context, server, 1, context.keys, 1024, workload="set", more=change)
                context.say(f"{server.name}: start after {how}")
                sample = {"restart_ms": restart(server, sent) * 1000}
                load.ask(context, server, 1, context.keys, 1024, more=change)
                context.costs().take(
                    f"restart_{key}_{sent.name.lower()}",
                    server.name,
                    f"start after {how}, {context.keys:,} keys, a tenth just overwritten, cold page cache",
                    sample,
                )


def restart(server, sent):
    """Seconds to the first right value."""
    name = b"key:%012d" % 7
    value = server.value(name)
    if value is None or len(value) != 1024:
        raise Failed(f"{server.name} does not give the value that is looked for")
    server.stop(sent)
    forget(server.folder)
    begun = time.monotonic()
    server.begin()
    while True:
        found = server.value(name)
        if found == value:
            return time.monotonic() - begun
        server.child.check()
        if found is not None:
            raise Failed(f"{server.name} gives another value after its restart")
        if time.monotonic() - begun > RESTART_SECONDS_MAX:
            raise Failed(f"{server.name} did not answer in {RESTART_SECONDS_MAX} s")
        time.sleep(0.002)


def overwrite(context, wanted):
    """Row 7: GETs at half load, alone and beside overwriting of a device that is 80 % full."""
    keys, value_bytes = max(context.keys // 2, OVERWRITE_KEYS_MIN), 1024
    ours = Plimsoll(context, "ours-full", int(keys * RECORD_BYTES / FULL_SHARE)).start()
    load.fill(context, ours, keys, value_bytes)
    full = ours.metric("plimsoll_partition_live_bytes") / ours.metric("plimsoll_partition_capacity_bytes")
    if not 0.78 <= full <= 0.82:
        raise Failed(
            f"the device is {full:.1%} full, not {FULL_SHARE:.0%}: records are not as long as thought"
        )
    # Until cleaning is at work: once the capacity; then as much again, which is measured.
    rounds = int(keys / FULL_SHARE) // (2 if context.is_quick else 1)
    load.ask(context, ours, 1, keys, value_bytes, workload="set", more=["--requests", rounds])
    written = ours.metric("plimsoll_device_written_bytes_total")
    steady = load.ask(context, ours, 1, keys, value_bytes, workload="set", more=["--requests", rounds])
    if 9 in wanted:
        user_bytes = rounds * (value_bytes + 16)
        sample = {
            "per_second": steady["per_second"],
            "load_cpu_us": steady["cpu_us"],
            "process_amplification": (ours.metric("plimsoll_device_written_bytes_total") - written)
            / user_bytes,
        }
        context.costs().take(
            "overwrite_ours", ours.name, f"overwrite of 1 KiB values, {full:.0%} full", sample
        )
    if 7 in wanted:
        beside(context, ours, keys, value_bytes, steady["per_second"], full)
    ours.stop()


def beside(context, ours, keys, value_bytes, sets_per_second, full):
    """Each round: what GETs alone can; half of that as an open loop, alone, then beside overwriting."""
    # Long enough for cleaning to be seen at work.
    seconds = max(context.seconds(7), 1)
    table = context.table("overwrite", "GET of 1 KiB from flash beside overwriting", seconds)
    sets = sets_per_second / 4
    before = "once" if context.is_quick else "twice"
    base = ["--keys", keys, "--values", value_bytes]

    def most():
        sample = load.ask(context, ours, min(3, table.seconds), keys, value_bytes)
        return rows_get.from_flash(sample, value_bytes)

    def half():
        return table.measures["most"].rounds[-1]["per_second"] / 2

    def alone():
        report, _ = load.bench(context, ours, table.seconds, [*base, "--rate", half()])
        return load.of_report(report, "load")

    def both():
        tenants = [
            "--tenant",
            f"name=reads rate={half()}",
            "--tenant",
            f"name=writes workload=set rate={sets} connections={OVERWRITE_CONNECTIONS}",
        ]
        cleaned = ours.metric("plimsoll_partition_cleaned_segments_total")
        report = load.bench(context, ours, table.seconds, [*base, *tenants])[0]
        cleaned = ours.metric("plimsoll_partition_cleaned_segments_total") - cleaned
        if cleaned == 0:
            raise Failed("nothing was cleaned beside the overwriting: what is measured is another thing")
        return load.of_report(report, "reads") | {
            "sets_per_second": load.of_report(report, "writes")["per_second"],
            "cleaned_segments": cleaned,
        }

    table.alternate(
        context.rounds,
        [
            ("most", ours.name, "GET 1 KiB, 50 connections, closed loop", most),
            ("alone", ours.name, "GET 1 KiB at half of that, open loop, alone", alone),
            ("beside", ours.name, "the same beside overwriting", both),
        ],
        is_turned=False,
    )
    table.facts.append(
        f"{keys:,} keys with values of 1 KiB on a device {full:.0%} full of live records, overwritten "
        f"{before} its capacity before; beside: {OVERWRITE_CONNECTIONS} connections that overwrite at "
        f"random and are asked for {sets:,.0f} a second, a quarter of what SETs alone get there (beside "
        "GETs they may reach less: the table has it); cleaning was at work in every round"
    )
    table.judge(
        Bar(
            7,
            f"GET 1 KiB at half load beside overwriting, {full:.0%} full: p99.9",
            "the same GETs alone",
            3,
            False,
        ),
        lambda beside, alone: beside["p99_9_us"] / alone["p99_9_us"],
        ["beside", "alone"],
        ("p99_9_us", "beside", ["alone"]),
    )


def rocks_costs(context):
    """Row 9: what RocksDB writes for each byte that it is given, by its own counters."""
    if not context.has("db_bench"):
        return
    folder, value_bytes = context.rocks(1024), 1024
    context.costs().take(
        "load_rocksdb",
        "RocksDB, embedded",
        "load of 1 KiB values, not synced",
        context.rocks_fill(value_bytes),
    )
    sample = load.db_bench_writes(
        context, folder, "overwrite", context.keys, value_bytes, ["--use_existing_db=1"]
    )
    context.costs().take(
        "overwrite_rocksdb", "RocksDB, embedded", "overwrite of 1 KiB values, not synced", sample
    )


def costs_loads(context):
    """Row 9: what a durable Redis writes for each byte while it is loaded."""
    keys, value_bytes = context.keys, 1024
    if not redis_fits(context, keys, value_bytes):
        return
    server = Redis(context, "redis-costs", is_durable=True).start()
    costs = rows_get.loaded(context, server, keys, value_bytes)
    context.costs().take("load_redis_durable", server.name, "load of 1 KiB values", costs)
    server.stop()
    os.remove(server.child.log)
