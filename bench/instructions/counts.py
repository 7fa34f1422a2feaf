"""Counting instructions of a server: by callgrind, function by function, and by the processor itself.

Role: between the run and valgrind and perf. Invariants: only what happens between the first and the last
operation of a load is counted, and every operation is proved by the load; a program that fails ends the
run.
"""

import glob
import os
import re

from side_by_side import children
from side_by_side.children import Failed
from side_by_side.servers import Ours

# Whose work a function is, by its name; the first that fits.
PARTS = [
    ("copies, zeros", re.compile(r"mem(cpy|move|set|cmp|chr)")),
    ("checksums", re.compile(r"crc")),
    ("memory", re.compile(r"(^|\W)_?mi_|_rust_(de|re)?alloc|plimsoll_reactor::memory")),
    ("RESP", re.compile(r"plimsoll_resp")),
    ("sessions, commands", re.compile(r"plimsoll_(server|slots)")),
    ("cache", re.compile(r"plimsoll_cache")),
    ("engine", re.compile(r"plimsoll_(flash|kv|array)")),
    ("gate", re.compile(r"plimsoll_gate")),
    ("reactor", re.compile(r"plimsoll_reactor|io_uring|rustix|clock_gettime")),
]
OTHERS = "others"
NAMES = [*(part for part, _ in PARTS), OTHERS]
ALL = os.sched_getaffinity(0)
# Seconds: counted, a server is some fifty times as slow.
SECONDS_MAX = 600
EVENTS = ["instructions:u", "instructions:k"]
PERF = re.compile(r"^(\d+),[^,]*,(instructions:[uk])", re.M)
FUNCTION = re.compile(r"^\s*([\d,]+) \(\s*[\d.]+%\)\s+(\S.*)$")


class Counted(Ours):
    """A server whose instructions callgrind counts, while it is told to."""

    def command(self):
        out = f"--callgrind-out-file={self.out()}"
        counted = ["valgrind", "--tool=callgrind", "--instr-atstart=no", out]
        _, *words = super().command()
        return [*counted, self.run.counted, *words, "--driver", "portable"]

    def out(self):
        return os.path.join(self.folder, "counted")

    def control(self, *words):
        command = ["callgrind_control", *words, str(self.child.pid)]
        children.run("callgrind_control", command, ALL, SECONDS_MAX)

    def count(self, load):
        """What a load costs: instructions of each function."""
        for old in self.dumps():
            os.remove(old)
        self.control("--instr=on")
        load()
        self.control("--instr=off")
        self.control("--dump=load")
        made = self.dumps()
        if len(made) != 1:
            raise Failed(f"callgrind wrote {len(made)} files of one load: {made}")
        command = ["callgrind_annotate", "--threshold=100", *made]
        return functions(children.run("callgrind_annotate", command, ALL, SECONDS_MAX).words)

    def dumps(self):
        return glob.glob(self.out() + ".*")


def functions(words):
    """Instructions by function, of what callgrind_annotate prints; what it repeats by source file is
    left."""
    listed = words[words.index("file:function") :]
    found = {}
    for line in listed.splitlines():
        if line.startswith("-- Auto-annotated"):
            break
        fits = FUNCTION.match(line)
        if fits:
            name = fits.group(2)
            found[name] = found.get(name, 0) + int(fits.group(1).replace(",", ""))
    if not found:
        raise Failed(f"callgrind_annotate names no function: {words[:500]}")
    return found


def part_of(function):
    """Whose work it is. Before the colon stands the file, behind it the function."""
    name = function.split(":", 1)[-1]
    return next((part for part, fits in PARTS if fits.search(name)), OTHERS)


def by_part(found, operations):
    """Instructions of an operation, by part."""
    parts = dict.fromkeys(NAMES, 0)
    for function, instructions in found.items():
        parts[part_of(function)] += instructions
    return {part: instructions / operations for part, instructions in parts.items()}


def by_processor(server, command, cpus, operations):
    """Instructions of an operation that the processor counts while a command runs: the server's, the
    kernel's; None for each where there is no perf."""
    perf = ["perf", "stat", "-x", ",", "-e", ",".join(EVENTS), "-p", str(server.child.pid), "--", *command]
    try:
        ran = children.run("perf", [*perf[:2], "-o", "/dev/stdout", *perf[2:]], cpus, SECONDS_MAX)
    except FileNotFoundError:
        return [None, None]
    return of_perf(ran.words, operations)


def of_perf(words, operations):
    """Instructions of an operation: the program's own and the kernel's; None for what was not counted, as
    some virtual machines count none of the kernel's."""
    told = {event: int(counted) for counted, event in PERF.findall(words)}
    return [told[event] / operations if told.get(event) else None for event in EVENTS]
