"""Steps of a round: what is measured once in each, by the program that does it.

Role: between the rows and the loads. A step is: key, server, what, and a function that gives a sample.
"""

import os

from side_by_side import load
from side_by_side.servers import lay

ROCKSDB = "RocksDB, embedded, on both processors"


def length(size):
    return f"{size // 1024} KiB"


def what_is_asked(workload, value_bytes, connections, pipeline):
    """In words: a load of `plimsoll bench`."""
    plural = "s" if connections > 1 else ""
    words = f"{workload.upper()} {length(value_bytes)}, {connections} connection{plural}"
    return words if pipeline == 1 else f"{words}, pipeline {pipeline}"


def ask(context, table, key, server, keys, value_bytes, connections, pipeline=1, workload="get"):
    """A closed loop of `plimsoll bench`."""

    def sample():
        return load.ask(context, server, table.seconds, keys, value_bytes, connections, pipeline, workload)

    return key, server.name, what_is_asked(workload, value_bytes, connections, pipeline), sample


def fio(context, table, key, what, size, flags):
    """What the drive does below such flags, on a file of that size; none if fio is not there."""
    if not context.has("fio"):
        return []
    path = file_of(context, size)
    return [(key, "fio, io_uring", what, lambda: load.fio(context, path, table.seconds, flags))]


def rocks(context, table, key, name, what, keys, value_bytes, threads, more=()):
    """A benchmark of db_bench on keys that are there; none if it is not there."""
    if not context.has("db_bench"):
        return []
    folder = context.rocks(value_bytes)
    seconds = max(round(table.seconds), 1)  # 0 would be for ever.
    flags = ["--use_existing_db=1", f"--threads={threads}", f"--duration={seconds}", *more]
    return [(key, ROCKSDB, what, lambda: load.db_bench(context, folder, name, keys, value_bytes, flags)[0])]


def file_of(context, size):
    """fio's file, all blocks written, at least as large as the data that servers hold."""
    path = os.path.join(context.directory, "fio")
    if not os.path.exists(path) or os.path.getsize(path) < size:
        context.room(size, "fio's file")
        lay(path, size)
        # The first run on a new file takes seconds to begin and is slower: it is not counted.
        load.fio(context, path, 1, ["--rw=randread", "--bs=4k", "--iodepth=32"])
    return path
