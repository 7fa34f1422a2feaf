"""Tables: Markdown between markers of the pages, and words for the terminal; the files of a run.

    cd bench && python3 -m side_by_side.report ..    # makes the pages of a checkout again from its summary

Role: the last step. Invariants: everything between the markers comes from the summary and nothing else; a
bar that is missed says so, one that could not be judged says why.
"""

import json
import os
import sys

from side_by_side import plots, summary as summaries
from side_by_side.children import Failed

MIB = 1 << 20
PAGES = {"README.md": ["readme"], "docs/benchmarks.md": ["side-by-side"]}
PLOTS = "docs/plots"


def count(value):
    return f"{value:,.0f}"


def milliseconds(value):
    return f"{value / 1000:.2f}"


# Field, heading, how it is written.
COLUMNS = [
    ("per_second", "a second: median (range)", count),
    ("p50_us", "p50, ms", milliseconds),
    ("p99_us", "p99, ms", milliseconds),
    ("p99_9_us", "p99.9, ms", milliseconds),
    ("sets_per_second", "SETs a second beside", count),
    ("bytes_per_second", "MB/s", lambda value: count(value / 1e6)),
    ("cpu_us", "server CPU, us an operation", lambda value: f"{value:.1f}"),
    ("load_cpu_us", "server CPU, us an operation", lambda value: f"{value:.1f}"),
    ("read_bytes", "read, bytes an operation", count),
    ("written_bytes", "written, bytes an operation", count),
    ("resident_bytes", "memory, MiB", lambda value: count(value / MIB)),
    ("busy", "load's processor busy", lambda value: f"{value:.0%}"),
    ("key_memory_bytes", "memory a key, bytes", lambda value: f"{value:,.1f}"),
    ("process_amplification", "written for each byte stored, by the process", lambda value: f"{value:.2f}"),
    ("drive_amplification", "by the drive's counter, all processes", lambda value: f"{value:.2f}"),
    ("restart_ms", "to the first right GET, ms: median (range)", count),
]
RANGED = {"per_second", "restart_ms"}
FIELDS = {field: form for field, _, form in COLUMNS}


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(head, rows):
    return [row(head), row(["---"] * len(head)), *map(row, rows)]


def figure(measure, field):
    """A cell of a measure."""
    if field not in measure["fields"]:
        return ""
    (median, low, high), form = measure["fields"][field], FIELDS[field]
    if field in RANGED and measure["rounds"] > 1:
        return f"{form(median)} ({form(low)} to {form(high)})"
    return form(median)


def measures(told):
    """The table of the measures of one table of the summary."""
    shown = [
        (field, head)
        for field, head, _ in COLUMNS
        if any(field in measure["fields"] for measure in told["measures"])
    ]
    rows = [
        [measure["server"], measure["what"], *(figure(measure, field) for field, _ in shown)]
        for measure in told["measures"]
    ]
    return table(["server", "operation", *(head for _, head in shown)], rows)


def verdict(bar):
    if bar["lacks"]:
        return f"not judged: {bar['lacks']} not there"
    return "met" if bar["is_met"] else "**not met**"


def limit(bar):
    unit = f" {bar['unit']}" if bar["unit"] else ""
    return f"at {'least' if bar['is_least'] else 'most'} {bar['limit']:g}{unit}"


def values(bar):
    if not bar["values"]:
        return ""
    median, low, high = summaries.spread(bar["values"])
    # More digits where rounding would hide on which side of the bar it is.
    tells = (digits for digits in range(2, 9) if round(median, digits) != bar["limit"])
    digits = 2 if median == bar["limit"] else next(tells, 9)
    unit = f" {bar['unit']}" if bar["unit"] else ""
    spread = f" ({low:.2f} to {high:.2f})" if len(bar["values"]) > 1 else ""
    return f"{median:.{digits}f}{unit}{spread}"


UNITS = {
    "per_second": " a second",
    "cpu_us": " us",
    "p99_9_us": " ms",
    "p50_us": " ms",
    "bytes_per_second": " MB/s",
}


def amounts(bar):
    """What stands beside a ratio: ours, theirs."""
    if bar["ours"] is None:
        return "", ""

    def amount(value):
        return FIELDS[bar["field"]](value) + UNITS[bar["field"]]

    if len(bar["theirs"]) == 1:
        return amount(bar["ours"]), amount(bar["theirs"][0][1])
    names = {"redis": "Redis", "rocksdb": "RocksDB"}
    theirs = [f"{names.get(key.split('_')[0], key)} {amount(value)}" for key, value in bar["theirs"]]
    return amount(bar["ours"]), "; ".join(theirs)


def bars(told_tables):
    rows = []
    for bar in sorted((bar for told in told_tables for bar in told["bars"]), key=lambda bar: bar["row"]):
        ours, theirs = amounts(bar)
        against = f"{bar['against']}: {theirs}" if theirs else bar["against"]
        rows.append([str(bar["row"]), bar["name"], ours, against, values(bar), limit(bar), verdict(bar)])
    return table(["row", "what", "Plimsoll", "compared with", "ratio: median (range)", "bar", ""], rows)


def machine_words(told):
    """What stands above every table."""
    here, drive, settings = told["machine"], told["machine"]["drive"], told["settings"]
    where = (
        f"server on processor {here['server_on']}, load on {here['load_on']}"
        if not here["is_shared"]
        else "**one processor: server and load share it**"
    )
    versions = ", ".join(f"{name} {version}" for name, version in sorted(told["versions"].items()))
    known = ", ".join(str(drive[name]) for name in ("model", "kind", "file_system") if drive.get(name))
    cache = f", write cache: {drive['write_cache']}" if "write_cache" in drive else ""
    quiet = (
        ""
        if here["load_average"] < 0.5
        else (
            f" **The machine was not quiet** (load average {here['load_average']:.1f} when the run "
            "began): read ratios, not absolutes."
        )
    )
    # A summary that does not say so is of no whole run.
    reduced = "" if settings.get("is_whole") else " **A reduced run**: fewer rounds, keys, rows or seconds."
    virtual = (
        " The drive is a virtual one: what it calls durable the host may hold in memory."
        if drive.get("is_virtual")
        else ""
    )
    return (
        f"Measured {here['date']} on {here['processors']} processors ({here['processor']}; {where}), "
        f"{here['memory_gib']} GiB, Linux {here['kernel']}; drive {drive['name']} ({known}{cache}); "
        f"plimsoll {here['commit']}; {versions or 'no peer'}. {settings['rounds']} alternating round"
        f"{'s' if settings['rounds'] > 1 else ''}, ratios made within each; "
        f"{settings['keys']:,} keys of 1 KiB.{reduced}{quiet}"
        f"{virtual}"
    )


def missing_words(told):
    """What was not there, and what was but could not be compared."""
    lacks = sorted(told["missing"].items())
    packages = {name: lack["package"] for name, lack in lacks}
    absent = [
        f"{name} (package {packages[name]}), for {lack['purpose']}"
        for name, lack in lacks
        if packages[name]
    ]
    left_out = [f"{name}, for {lack['purpose']}" for name, lack in lacks if not packages[name]]
    lines = []
    if absent:
        lines += ["", "Not there, and so not compared: " + "; ".join(absent) + "."]
    if left_out:
        lines += ["", "Left out: " + "; ".join(left_out) + "."]
    return lines


def readme(told):
    """The comparison of README."""
    return [
        machine_words(told),
        *missing_words(told),
        "",
        *bars(told["tables"]),
        "",
        "![Each bar, and how far the median is from it](docs/plots/bars.svg)",
    ]


def page(told):
    """All tables."""
    lines = [machine_words(told), *missing_words(told), "", *bars(told["tables"]), ""]
    lines += [f"![{words}](plots/{name}.svg)" for name, words in plots.NAMES.items()]
    for each in told["tables"]:
        seconds = f", {each['seconds']:g} s a measure" if each["seconds"] else ""
        lines += ["", f"### {each['title']}", ""]
        lines += [f"{'; '.join(each['facts'])}{seconds}.", ""] if each["facts"] else []
        lines += measures(each)
    return lines


def blocks(told):
    """What stands between the markers, by their name."""
    return {"readme": "\n".join(readme(told)), "side-by-side": "\n".join(page(told))}


def between(text, name):
    """Where the text between two markers begins and ends."""
    begin, end = f"<!-- bench:begin {name} -->\n", f"\n<!-- bench:end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise Failed(f"markers are wanted once, in order: {begin.strip()} and {end.strip()}")
    return text.index(begin) + len(begin), text.index(end)


def splice(text, name, block):
    start, stop = between(text, name)
    return text[:start] + block + text[stop:]


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def put_section(root, page_path, name, lines, files):
    """One section of a page of a checkout, and the files that belong to it."""
    with open(os.path.join(root, page_path), encoding="utf-8") as file:
        made = {page_path: splice(file.read(), name, "\n".join(lines)), **files}
    return [put(os.path.join(root, path), text) for path, text in made.items()]


def as_json(told):
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def write_pages(told, root):
    """The pages of a checkout, its plots and its summary; all is made before anything is written."""
    made, block = {}, blocks(told)
    for page_path, names in PAGES.items():
        with open(os.path.join(root, page_path), encoding="utf-8") as file:
            text = file.read()
        for name in names:
            text = splice(text, name, block[name])
        made[page_path] = text
    made[f"{PLOTS}/summary.json"] = as_json(told)
    made |= {f"{PLOTS}/{name}.svg": drawn for name, drawn in plots.draw(told).items()}
    return [put(os.path.join(root, path), text) for path, text in made.items()]


def write(result, out, root):
    """The files of a run; the pages too, if a checkout is named."""
    told = summaries.of_result(result)
    paths = [
        put(os.path.join(out, "result.json"), as_json(result)),
        put(os.path.join(out, "summary.json"), as_json(told)),
        put(os.path.join(out, "tables.md"), "\n".join(page(told)) + "\n"),
    ]
    paths += [
        put(os.path.join(out, "plots", f"{name}.svg"), drawn) for name, drawn in plots.draw(told).items()
    ]
    return paths + (write_pages(told, root) if root else [])


def terminal(result):
    """The bars, and what was missing."""
    told = summaries.of_result(result)
    lines = [machine_words(told), *missing_words(told), ""]
    for bar in sorted((bar for each in told["tables"] for bar in each["bars"]), key=lambda bar: bar["row"]):
        lines.append(
            f"row {bar['row']}: {bar['name']}, against {bar['against']}: {values(bar)}, {limit(bar)}: "
            f"{verdict(bar)}"
        )
    return "\n".join(lines)


def remake(root):
    """Makes pages and plots again from the summary that stands beside them."""
    with open(os.path.join(root, PLOTS, "summary.json"), encoding="utf-8") as file:
        return write_pages(json.load(file), root)


if __name__ == "__main__":
    remake(sys.argv[1])
