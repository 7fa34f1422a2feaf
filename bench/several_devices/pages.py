"""The section of docs/benchmarks.md, its plot and its numbers, of a run of `make bench-array`.

    cd bench && python3 -m several_devices.pages ..    # makes page and plot again from the summary

Role: the last step. Invariants: what stands between the markers, and the plot, come from the summary and
nothing else; shares are made within a round.
"""

import json
import os
import sys

from side_by_side.plots import LEFT, LINE, RIGHT, WIDTH, Picture, linear
from side_by_side.report import as_json, count, put, put_section, table
from side_by_side.summary import rounded, spread

PAGE, MARKER, PLOTS = "docs/benchmarks.md", "several-devices", "docs/plots/array"
NONE = "hashing"
# Of memory a record costs one device at most: the bar of the engine alone.
RECORD_BYTES_MAX = 24
OPERATIONS = ["store", "retrieve"]
FIELDS = ["p99_us", "server_busy", "busy", "of_bytes"]
KINDS = {
    "hashing": "fio",
    "replication 3": "plimsoll",
    "splitting 4+2": "redis",
    "packing 4+2": "memcached",
}
# How many times the bytes that it gets a device counts as copied: values by their whole length, whatever
# piece of them stands there. Of packing 4+2, where all is packed, one value in three is whole and two are
# stubs, next to nothing; the parities are half of a value for each that is whole.
PIECES = {"replication 3": 1, "splitting 4+2": 4, "packing 4+2": (1 + 2 + 2 / 4) / (1 + 2 / 4)}
MIB = 1 << 20


def column(samples, field):
    return [sample[field] for sample in samples]


def of_operation(told, mechanism, value_bytes, operation):
    """One mechanism, length and operation: medians and ranges, its share of none made in each round."""

    def samples(name):
        def is_it(each):
            return (each["mechanism"], each["value_bytes"]) == (name, value_bytes)

        return column(next(filter(is_it, told["rounds"]))["samples"], operation)

    ours, none = samples(mechanism), samples(NONE)
    rates = zip(column(ours, "per_second"), column(none, "per_second"), strict=True)
    return {
        "mechanism": mechanism,
        "value_bytes": value_bytes,
        "operation": operation,
        "per_second": spread(column(ours, "per_second")),
        "share": spread([mine / theirs for mine, theirs in rates]),
        **{field: spread(column(ours, field))[0] for field in FIELDS},
    }


def of_rebuild(each):
    samples = column(each["samples"], "rebuild")
    return {
        "mechanism": each["mechanism"],
        "seconds": spread(column(samples, "seconds")),
        "copied_bytes": spread(column(samples, "copied_bytes"))[0],
    }


def of_packing(each):
    """How long it went on behind the stores."""
    samples = column(each["samples"], "packed")
    return {
        "mechanism": each["mechanism"],
        "value_bytes": each["value_bytes"],
        **{field: spread(column(samples, field)) for field in ("seconds", "waiting", "kept")},
    }


def has(told, operation):
    """Mechanisms and lengths of which it was measured."""
    return [each for each in told["rounds"] if operation in each["samples"][0]]


def summary(told):
    """Small enough to stand beside the page."""
    keys = [(each["mechanism"], each["value_bytes"]) for each in told["rounds"]]
    return {
        "machine": told["machine"],
        "settings": json.loads(json.dumps(told["settings"])),
        "operations": [of_operation(told, *key, operation) for key in keys for operation in OPERATIONS],
        "packed": [of_packing(each) for each in has(told, "packed")],
        "rebuilds": [of_rebuild(each) for each in has(told, "rebuild")],
        "memory": {
            name: {field: rounded(value) for field, value in fields.items()}
            for name, fields in told["memory"].items()
        },
    }


def of_lengths(settings, unit=None):
    """What a setting is for each length of values, or these in KiB. JSON has numbers as words."""
    keys = sorted(settings, key=int)
    return ", ".join(f"{settings[key] / unit:g}" if unit else f"{int(key) // 1024}" for key in keys)


def words(told):
    """What stands above the tables."""
    here, settings = told["machine"], told["settings"]
    where = (
        "**one processor: server and load share it**"
        if here["is_shared"]
        else f"server on processor {here['server_on']}, load on {here['load_on']}"
    )
    quiet = (
        ""
        if here["load_average"] < 0.5
        else f" **The machine was not quiet** (load average {here['load_average']:.1f} at the beginning)."
    )
    return (
        f"Measured {here['date']} on {here['processors']} processors ({here['processor']}; {where}), Linux "
        f"{here['kernel']}, drive {here['drive']['name']} ({here['drive']['model']}); "
        f"plimsoll {here['commit']}. "
        f"{settings['devices']} files, each held to {settings['requests']:,} requests and "
        f"{of_lengths(settings['bytes'], MIB)} MiB a second for values of {of_lengths(settings['bytes'])} "
        "KiB; "
        f"{settings['stored_bytes'] // MIB} MiB of values of one length, keys of 16 bytes, all new; "
        f"{settings['storing']} connections that store, {of_lengths(settings['retrieving'], 1)} that "
        "retrieve; "
        f"durability sync, no cache; {settings['rounds']} rounds, mechanisms in turns, "
        f"{settings['seconds']:g} s of retrieves; {settings['minutes']:.0f} minutes.{quiet}"
    )


def ranged(numbers, form):
    median, low, high = map(form, numbers)
    return f"{median} ({low} to {high})"


def operations(told):
    def share(value):
        return f"{value:.3f}"

    def place(each):
        return each["value_bytes"], each["operation"] != "store"

    rows = [
        [
            f"{each['value_bytes'] // 1024} KiB",
            each["operation"],
            each["mechanism"],
            ranged(each["per_second"], count),
            ranged(each["share"], share),
            f"{each['p99_us'] / 1000:.1f}",
            f"{each['server_busy']:.0%}",
            f"{each['busy']:.0%}",
            f"{each['of_bytes']:.0%}",
        ]
        for each in sorted(told["operations"], key=place)
    ]
    head = ["value", "operation", "mechanism", "a second: median (range)", "share of none", "p99, ms"]
    return table(head + ["server's processor busy", "load's", "of the drives' bytes"], rows)


def seconds(value):
    return f"{value:.1f}"


def packed(told):
    """What is not in the rates of stores. Runs that were made before there was packing have none of it."""
    each_length = sorted(told.get("packed", []), key=lambda each: each["value_bytes"])
    if not each_length:
        return []
    rows = [
        [
            f"{each['value_bytes'] // 1024} KiB",
            each["mechanism"],
            ranged(each["seconds"], seconds),
            ranged(each["waiting"], count),
            ranged(each["kept"], lambda value: f"{value:.2f}"),
        ]
        for each in each_length
    ]
    words = (
        "What is packed behind its acknowledgement is no part of a store's rate. From the last store until "
        "nothing changed any more, which is told once a second; only then values were retrieved, a device "
        "was rebuilt, memory was read. Where all is packed devices keep 1.5 bytes for each byte of values, "
        "and what names them; of what stays copies 3:"
    )
    head = ["value", "mechanism", "seconds: median (range)", "keys that still wait", "bytes kept for each"]
    return [words, "", *table(head, rows), ""]


def rebuilds(told):
    settings = told["settings"]
    limit = settings["bytes"][str(settings["rebuilt"])]
    rows = [
        [
            each["mechanism"],
            f"{each['copied_bytes'] / MIB:.1f}",
            ranged(each["seconds"], seconds),
            f"{each['copied_bytes'] / PIECES[each['mechanism']] / limit:.1f}",
        ]
        for each in told["rebuilds"]
    ]
    head = ["mechanism", "of values, MiB", "seconds: median (range)", "if bytes were all, seconds"]
    return table(head, rows)


def memory(told):
    rows = []
    for name, each in sorted(told["memory"].items()):
        limit = RECORD_BYTES_MAX * each["records"]
        more = each["grown_bytes"] / limit - 1
        met = "met" if more <= 0 else f"**not met** by {more:.1%}"
        rows.append(
            [
                name,
                count(each["keys"]),
                f"{each['records']:.2f}",
                f"{each['index_bytes']:.1f}",
                f"{each['grown_bytes']:.1f}",
                f"{limit:.1f}: {met}",
                count(each["peak_bytes"] / MIB),
            ]
        )
    head = ["mechanism", "keys", "records a key", "index, bytes a key", "all, bytes a key"]
    return table(head + [f"bar: {RECORD_BYTES_MAX} a record", "whole process, MiB"], rows)


def block(told):
    """What stands between the markers."""
    settings = told["settings"]
    return [
        words(told),
        "",
        f"![Share of none, by mechanism and length]({PLOTS.removeprefix('docs/')}/shares.svg)",
        "",
        *operations(told),
        "",
        *packed(told),
        f"A new device in the place of one, values of {settings['rebuilt'] // 1024} KiB, no other load, no "
        "limit but the drives':",
        "",
        *rebuilds(told),
        "",
        f"Memory, {settings['memory_records']:,} records on each device, keys of 16 bytes, values of "
        f"{settings['memory_value_bytes']}, known keys off; all: what the process had at most, without "
        "what it had before the first key:",
        "",
        *memory(told),
    ]


def plot(told):
    """A bar for each mechanism, length and operation: its share of none."""
    picture = Picture("Share of the same drives without redundancy: median and range")
    top = picture.y
    most = max(1.1, *(each["share"][2] for each in told["operations"]))
    for operation in OPERATIONS:
        for value_bytes in sorted({each["value_bytes"] for each in told["operations"]}):
            picture.text(8, picture.y + 16, f"{operation}, {value_bytes // 1024} KiB", "head")
            picture.y += LINE + 4
            for each in told["operations"]:
                if (each["operation"], each["value_bytes"]) != (operation, value_bytes):
                    continue
                median, low, high = each["share"]
                y = picture.y + 8
                picture.text(LEFT - 10, y + 4, each["mechanism"], "", "end")
                picture.bar(linear(median, most), y - 6, KINDS.get(each["mechanism"], "rocksdb"))
                picture.range(linear(low, most), linear(high, most), y)
                picture.text(WIDTH - RIGHT + 10, y + 4, f"{median:.3f}", "dim")
                picture.y += LINE
    for value, name in ((1 / 3, "1/3"), (4 / 6, "4/6"), (1, "1")):
        picture.rule(linear(value, most), top, picture.y, "grid")
        picture.text(linear(value, most), picture.y + 14, name, "dim", "middle")
    picture.y += LINE
    return picture.done()


def write_pages(told, root):
    files = {f"{PLOTS}/summary.json": as_json(told), f"{PLOTS}/shares.svg": plot(told)}
    return put_section(root, PAGE, MARKER, block(told), files)


def write(result, out, root):
    """The files of a run; the page too, if a checkout is named."""
    told = summary(result)
    paths = [
        put(os.path.join(out, "result.json"), as_json(result)),
        put(os.path.join(out, "summary.json"), as_json(told)),
        put(os.path.join(out, "shares.svg"), plot(told)),
    ]
    return paths + (write_pages(told, root) if root else [])


def remake(root):
    """Makes page and plot again from the summary that stands beside them."""
    with open(os.path.join(root, PLOTS, "summary.json"), encoding="utf-8") as file:
        return write_pages(json.load(file), root)


if __name__ == "__main__":
    remake(sys.argv[1])
