"""Rows that read: from flash at three lengths and with pipelines (1, 2, 3), from memory (4), and without
io_uring (8).

Role: starts what a table needs, loads it, takes the measures in turns, judges the bars. Invariants: what is
called "from flash" read at least as many bytes from the drive as it gave, "from memory" none.
"""

import contextlib
import math
import os
import threading

from side_by_side import load, steps
from side_by_side.children import Failed
from side_by_side.measure import Bar
from side_by_side.servers import MIB, Memcached, Plimsoll, Redis, forget, read_over
from side_by_side.steps import length

CONNECTIONS = 50
PIPELINE = 16
# A device has room for what is loaded, its heads, and for cleaning to have nothing to do.
ROOM = 1.5
# What Redis, and memcached, hold for a key besides its value: an estimate, to see whether memory is enough.
OVERHEAD_BYTES = 112
# Data is "from flash" only if it is so many times what the server has in memory.
DATA_PER_MEMORY = 8
# What Plimsoll holds for a key, about.
KEY_MEMORY_BYTES = 48
WARM_ROUNDS = 8
CACHED_KEYS_MAX = 100_000
# Stores a second while memcached is loaded: what it can write to flash meanwhile.
MEMCACHED_RATE = 25_000


def redis_fits(context, keys, value_bytes):
    """True if there is a Redis, and memory for so much in it."""
    return context.has("redis-server") and context.memory(
        2 * keys * (value_bytes + OVERHEAD_BYTES), "redis-server"
    )


def from_flash(sample, value_bytes):
    """A sample, if its values can have come from the drive."""
    if sample["read_bytes"] < value_bytes:
        raise Failed(
            f"GETs of {value_bytes} bytes read {sample['read_bytes']:.0f} from the drive: not from flash"
        )
    return sample


@contextlib.contextmanager
def without_page_cache(folder):
    """Takes files out of the page cache four times a second, for servers that read through it."""
    is_over = threading.Event()

    def work():
        while not is_over.wait(0.25):
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield
    finally:
        is_over.set()
        worker.join()


def memcached(context, keys, value_bytes):
    """A memcached that holds all keys, most values of them on flash."""
    data = keys * value_bytes
    memory = max(data // 8, keys * OVERHEAD_BYTES + 64 * MIB) // MIB
    server = Memcached(context, f"memcached-{value_bytes}", memory, max(int(data * ROOM) // MIB, 512))
    return server.start()


def loaded(context, server, keys, value_bytes, rate=None):
    """Loads a server, and tells what that cost: memory for each key, bytes written for each byte stored."""
    before, written = server.child.resident_bytes(), context.written()
    if server.protocol == "memcached":
        # It gives memory to lengths as they come, for good: what stays in memory has to come first.
        load.fill(context, server, keys, 12)
    sample = load.fill(context, server, keys, value_bytes, rate)
    forget(server.folder)
    user_bytes = keys * (value_bytes + 16)
    costs = {
        "per_second": sample["per_second"],
        "load_cpu_us": sample["cpu_us"],
        "key_memory_bytes": (server.child.resident_bytes() - before) / keys,
        "process_amplification": sample["written_bytes"] * keys / user_bytes,
    }
    after = context.written()
    if after is not None:
        costs["drive_amplification"] = (after - written) / user_bytes
    return costs


def forgets(server):
    """True of a server that has let go of keys."""
    return isinstance(server, Memcached) and server.statistic("evictions") > 0


def leave_out_forgetful(context, servers):
    """Stops servers that let go of keys: what they answer quickly is that they have nothing."""
    for key, server in list(servers.items()):
        if forgets(server):
            context.leave_out(key, "what it forgot while it was loaded")
            servers.pop(key).stop()


def flash(context, wanted, value_bytes):
    """GETs of one length: what `wanted` has of rows 1, 2, 3, and of 9 at 1 KiB."""
    keys = context.keys * 1024 // value_bytes
    data = keys * value_bytes
    first = value_bytes == 1024
    seconds = context.seconds(1 if first else 2)
    table = context.table(f"flash-{value_bytes}", f"GET of {length(value_bytes)} from flash", seconds)
    ours = Plimsoll(context, f"ours-{value_bytes}", int(data * ROOM) + 256 * MIB).start()
    servers = {"ours": ours}
    if redis_fits(context, keys, value_bytes):
        servers["redis"] = Redis(context, f"redis-{value_bytes}").start()
    if first and context.has("memcached") and wanted & {1, 9}:
        servers["memcached"] = memcached(context, keys, value_bytes)
    for key, server in servers.items():
        # A flood would make memcached forget what it has no time to write.
        costs = loaded(context, server, keys, value_bytes, MEMCACHED_RATE if key == "memcached" else None)
        if first and 9 in wanted and not forgets(server):
            context.costs().take(f"load_{key}", server.name, "load of 1 KiB values", costs)
        if server is ours:
            prove_much(context, ours.child.resident_bytes(), keys, value_bytes)
    leave_out_forgetful(context, servers)
    read_over(ours.devices[0])
    counts = "plimsoll_partition_record_reads_total", "plimsoll_key_hits_total"
    before = [ours.metric(name) for name in counts]
    table.alternate(context.rounds, flash_steps(context, wanted, table, servers, keys, value_bytes))
    reads, gets = (ours.metric(name) - was for name, was in zip(counts, before))
    flash_facts(context, table, servers, keys, value_bytes)
    table.facts.append(
        f"{reads:,.0f} reads of the flash for {gets:,.0f} GETs of plimsoll, by its `/metrics`"
    )
    judge_flash(table, wanted, value_bytes)
    for server in servers.values():
        server.stop()


def flash_steps(context, wanted, table, servers, keys, value_bytes):
    """The measures of a table of GETs from flash."""
    first, made = value_bytes == 1024, []
    if not first or wanted & {1, 3}:
        made += [get(context, table, key, server, keys, value_bytes, 1) for key, server in servers.items()]
    if first and 2 in wanted:
        made += [
            get(context, table, f"{key}_pipeline", server, keys, value_bytes, PIPELINE)
            for key, server in servers.items()
            if key != "memcached"
        ]

    def fio(key, block):
        what, flags = f"random read {length(block)}, queue depth 32", ["--rw=randread", f"--bs={block}"]
        return steps.fio(context, table, key, what, keys * value_bytes, [*flags, "--iodepth=32"])

    # As many bytes as the value has, if the drive reads as few.
    block = max(value_bytes, context.drive.facts().get("logical_block", 4096))
    if not first or wanted & {1, 2, 3}:
        made += fio("fio", block)
    if first and 1 in wanted:
        if block < 4096:
            made += fio("fio_4k", 4096)
        what = f"readrandom 1 KiB, {CONNECTIONS} threads, direct reads"
        made += steps.rocks(context, table, "rocksdb", "readrandom", what, keys, value_bytes, CONNECTIONS)
    return made


def get(context, table, key, server, keys, value_bytes, pipeline):
    """A step of GETs that come from flash, if the server has them there."""
    key, name, what, ask = steps.ask(context, table, key, server, keys, value_bytes, CONNECTIONS, pipeline)

    def sample():
        if server.protocol == "memcached":
            with without_page_cache(server.folder):
                return ask()
        return from_flash(ask(), value_bytes) if isinstance(server, Plimsoll) else ask()

    return key, name, what, sample


def prove_much(context, held, keys, value_bytes):
    """Ends a run whose data is not many times what Plimsoll has in memory."""
    share = keys * value_bytes / held
    if share >= DATA_PER_MEMORY or context.is_quick:
        return
    beside = max(held - KEY_MEMORY_BYTES * keys, 0)
    enough = 1.1 * DATA_PER_MEMORY * beside / (value_bytes - DATA_PER_MEMORY * KEY_MEMORY_BYTES)
    raise Failed(
        f"the data is only {share:.1f} times what plimsoll has in memory, and {DATA_PER_MEMORY} is wanted: "
        f"about --keys {math.ceil(enough * value_bytes / 1024)} would do"
    )


def flash_facts(context, table, servers, keys, value_bytes):
    data = keys * value_bytes
    table.facts.append(
        f"{keys:,} keys of 16 bytes with values of {length(value_bytes)} ({data / MIB:,.0f} MiB), "
        "uniform; plimsoll: `--cache 0`, durability sync, direct I/O, the device file written once "
        "over before; Redis: the same keys, all in RAM, nothing on disk"
    )
    peaks = [
        each["resident_bytes"]
        for key, measure in table.measures.items()
        if key.startswith("ours")
        for each in measure.rounds
    ]
    if not peaks:
        return
    share = data / max(peaks)
    table.facts.append(
        f"the data is {share:.1f} times what plimsoll has in memory ({max(peaks) / MIB:.0f} MiB); "
        f"at least {DATA_PER_MEMORY} is wanted" + ("" if share >= DATA_PER_MEMORY else ": **too little**")
    )
    prove_much(context, max(peaks), keys, value_bytes)
    if "memcached" in servers:
        server = servers["memcached"]
        table.facts.append(
            f"memcached: one worker, 8 threads that read, `-m {server.memory_mib}`, loaded with empty "
            "values first so that it forgets nothing; its file is taken out of the page cache four times a "
            "second; the bytes read say how much came from flash"
        )


def judge_flash(table, wanted, value_bytes):
    """The bars of rows 1, 2 and 3."""

    def of_smaller(ours, redis, fio):
        return ours["per_second"] / min(redis["per_second"], fio["per_second"])

    what = f"GET {length(value_bytes)} from flash, {CONNECTIONS} connections"
    needs, peers = ["ours", "redis", "fio"], ["redis", "fio"]
    if value_bytes != 1024:
        table.judge(
            Bar(2, what, "smaller of Redis from RAM and fio", 0.85, True),
            of_smaller,
            needs,
            ("per_second", "ours", peers),
        )
        return
    if 1 in wanted:
        table.judge(
            Bar(1, what, "smaller of Redis from RAM and fio", 0.9, True),
            of_smaller,
            needs,
            ("per_second", "ours", peers),
        )
        table.judge(
            Bar(1, f"{what}: p99.9", "Redis from RAM", 3, False),
            lambda ours, redis: ours["p99_9_us"] / redis["p99_9_us"],
            ["ours", "redis"],
            ("p99_9_us", "ours", ["redis"]),
        )
    if 2 in wanted:
        table.judge(
            Bar(2, f"{what}, pipeline {PIPELINE}", "smaller of Redis from RAM and fio", 0.85, True),
            lambda ours_pipeline, redis_pipeline, fio: of_smaller(ours_pipeline, redis_pipeline, fio),
            ["ours_pipeline", "redis_pipeline", "fio"],
            ("per_second", "ours_pipeline", ["redis_pipeline", "fio"]),
        )
    if 3 in wanted:
        table.judge(
            Bar(3, f"{what}: server CPU per GET", "Redis' per GET and fio's per read together", 1, False),
            lambda ours, redis, fio: ours["cpu_us"] / (redis["cpu_us"] + fio["cpu_us"]),
            needs,
            ("cpu_us", "ours", peers),
        )


def cached(context, _wanted):
    """Row 4: GETs that the cache in memory answers."""
    keys, value_bytes = min(context.keys, CACHED_KEYS_MAX), 1024
    data = keys * value_bytes
    table = context.table("cached", "GET of 1 KiB from memory", context.seconds(4))
    cache = f"{max(4 * data // MIB, 64)}MiB"
    ours = Plimsoll(context, "ours-cached", int(data * ROOM) + 256 * MIB, cache).start()
    servers = {"ours": ours}
    if redis_fits(context, keys, value_bytes):
        servers["redis"] = Redis(context, "redis-cached").start()
    for server in servers.values():
        load.fill(context, server, keys, value_bytes)
    # Uniform reads: of all keys one in e to the power of WARM_ROUNDS is left out.
    load.ask(
        context, ours, 1, keys, value_bytes, CONNECTIONS, PIPELINE, more=["--requests", WARM_ROUNDS * keys]
    )

    made = []
    for pipeline, end in ((1, ""), (PIPELINE, "_pipeline")):
        for key, server in servers.items():
            step = steps.ask(context, table, key + end, server, keys, value_bytes, CONNECTIONS, pipeline)
            made.append(from_memory(step, ours) if server is ours else step)
    table.alternate(context.rounds, made)
    table.facts.append(
        f"{keys:,} keys of 16 bytes with values of 1 KiB, uniform; plimsoll: `--cache {cache}`, read "
        f"{WARM_ROUNDS} times over before; at most one GET in a hundred missed the cache"
    )
    for pipeline, end in ((1, ""), (PIPELINE, "_pipeline")):
        what, keys_of = f"GET 1 KiB from memory, pipeline {pipeline}", [f"ours{end}", f"redis{end}"]
        table.judge(
            Bar(4, what, "Redis from RAM", 1, True),
            lambda **told: rate_of(told, "per_second", "ours", "redis"),
            keys_of,
            ("per_second", keys_of[0], keys_of[1:]),
        )
        table.judge(
            Bar(4, f"{what}: server CPU per GET, Redis' by ours", "Redis from RAM", 1, True),
            lambda **told: rate_of(told, "cpu_us", "redis", "ours"),
            keys_of,
            ("cpu_us", keys_of[0], keys_of[1:]),
        )
    for server in servers.values():
        server.stop()


def from_memory(step, server):
    """A step of GETs that the cache has to answer."""
    key, name, what, ask = step

    def sample():
        misses = server.metric("plimsoll_partition_cache_misses_total")
        told = ask()
        missed = server.metric("plimsoll_partition_cache_misses_total") - misses
        if missed > told["count"] / 100:
            raise Failed(f"{missed:.0f} of {told['count']} GETs missed the cache: not from memory")
        return told

    return key, name, what, sample


def rate_of(told, field, above, below):
    """The ratio of two samples whose keys begin so."""
    pick = {key.split("_")[0]: sample for key, sample in told.items()}
    return pick[above][field] / pick[below][field]


def portable(context, _wanted):
    """Row 8: GETs from flash without io_uring, beside those with it."""
    keys, value_bytes = context.keys, 1024
    data = keys * value_bytes
    table = context.table("portable", "GET of 1 KiB from flash without io_uring", context.seconds(8))
    servers = {
        "uring": Plimsoll(context, "ours-uring", int(data * ROOM) + 256 * MIB).start(),
        "portable": Plimsoll(
            context, "ours-portable", int(data * ROOM) + 256 * MIB, more=["--driver", "portable"]
        ).start(),
    }
    for server in servers.values():
        load.fill(context, server, keys, value_bytes)
    made = []
    for key, server in servers.items():
        _, name, what, sample = get(context, table, key, server, keys, value_bytes, 1)
        made.append((key, f"{name}, {key}", what, sample))
    table.alternate(context.rounds, made)
    table.facts.append(f"{keys:,} keys as in row 1; `--driver portable`")
    table.judge(
        Bar(8, "GET 1 KiB from flash, `--driver portable`", "the same with io_uring", 0.5, True),
        lambda portable, uring: portable["per_second"] / uring["per_second"],
        ["portable", "uring"],
        ("per_second", "portable", ["uring"]),
    )
    for server in servers.values():
        server.stop()
