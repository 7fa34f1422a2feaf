"""The section of docs/benchmarks.md, and its numbers, of a run of `make instructions`.

    cd bench && python3 -m instructions.pages ..    # makes the page again from the summary

Role: the last step. Invariant: what stands between the markers comes from the summary and nothing else.
"""

import json
import os
import sys

from instructions.counts import NAMES
from side_by_side.report import as_json, count, put, put_section, table

PAGE, MARKER, SUMMARY = "docs/benchmarks.md", "instructions", "docs/plots/instructions.json"


def words(told):
    here = told["machine"]
    return (
        f"Counted {here['date']} by {told['valgrind']}, {told['operations']:,} operations on "
        f"{told['keys']:,} KiB of values; plimsoll {here['commit']}. By the processor: "
        f"{here['processor']}, Linux {here['kernel']}, ten times as many operations at full speed."
    )


def block(told):
    """What stands between the markers."""
    head = ["instructions of an operation", "in all", *NAMES, "by the processor", "the kernel's"]
    rows = []
    for each in told["loads"]:
        shares = [count(each["parts"][name]) for name in NAMES]
        processor = ["" if value is None else count(value) for value in each["processor"]]
        rows.append([each["name"], count(sum(each["parts"].values())), *shares, *processor])
    return [words(told), "", *table(head, rows)]


def write_pages(told, root):
    return put_section(root, PAGE, MARKER, block(told), {SUMMARY: as_json(told)})


def write(told, out, root):
    """The file of a run; the page too, if a checkout is named."""
    paths = [put(os.path.join(out, "summary.json"), as_json(told))]
    return paths + (write_pages(told, root) if root else [])


def remake(root):
    """Makes the page again from the summary that stands beside the others."""
    with open(os.path.join(root, SUMMARY), encoding="utf-8") as file:
        return write_pages(json.load(file), root)


if __name__ == "__main__":
    remake(sys.argv[1])
