"""What the run stands on: processors, memory, kernel, drive, and the programs to compare with.

Role: what is said above every table. Invariants: nothing is guessed; what the machine does not tell is
said to be unknown.
"""

import datetime
import os
import platform
import re
import shutil
import subprocess

from side_by_side.children import Failed

SECTOR = 512
# Program, Debian package that has it, how it says its version, what is compared with it.
PEERS = [
    ("redis-server", "redis-server", ["--version"], r"v=(\S+)", "GET, SET, restart and memory of Redis"),
    ("memcached", "memcached", ["-V"], r"(\d[\d.]+)", "GET from flash of memcached with extstore"),
    ("db_bench", "rocksdb-tools", ["--version"], r"version (\S+)", "GET and SET of RocksDB"),
    ("fio", "fio", ["--version"], r"fio-(\S+)", "the physical limit of the drive"),
]


def read(path, otherwise="unknown"):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip() or otherwise
    except OSError:
        return otherwise


def processors():
    """The server's, the load's."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def peers():
    """Versions of what is there; what is missing, with the package that has it."""
    found, missing = {}, {}
    for program, package, flags, pattern, purpose in PEERS:
        if shutil.which(program) is None:
            missing[program] = {"package": package, "purpose": purpose}
            continue
        said = subprocess.run([program, *flags], capture_output=True, text=True, timeout=20, check=False)
        version = re.search(pattern, said.stdout + said.stderr)
        found[program] = version.group(1) if version else "unknown"
    return found, missing


def mount(directory):
    """The mount point a directory stands on, and its file system."""
    best = ("/", "unknown")
    for line in read("/proc/self/mountinfo", "").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        inside = directory == point or directory.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, right.split()[0])
    return best


class Drive:
    """The block device under a directory; without one (tmpfs, overlay) nothing is told of it."""

    def __init__(self, directory):
        number = os.stat(directory).st_dev
        self.file_system = mount(os.path.realpath(directory))[1]
        sys = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
        self.is_known = os.path.exists(os.path.join(sys, "stat"))
        self.stat = os.path.join(sys, "stat")
        self.whole = os.path.dirname(sys) if os.path.exists(os.path.join(sys, "partition")) else sys

    def of(self, name):
        return read(os.path.join(self.whole, name))

    def facts(self):
        if not self.is_known:
            return {"name": "unknown", "model": "unknown", "file_system": self.file_system}
        driver = os.path.basename(os.path.realpath(os.path.join(self.whole, "device/driver")))
        is_virtual = driver.startswith(("virtio", "xen", "hv_"))
        model = self.of("device/model")
        model = f"names no model, driver {driver}" if model == "unknown" else model
        gib = int(self.of("size")) * SECTOR / 2**30
        return {
            "name": os.path.basename(self.whole),
            "model": model,
            "gib": round(gib),
            # Of a virtual drive the kernel knows no kind.
            "kind": (
                None if is_virtual else "rotating" if self.of("queue/rotational") == "1" else "not rotating"
            ),
            "is_virtual": is_virtual,
            "write_cache": self.of("queue/write_cache"),
            "scheduler": self.of("queue/scheduler"),
            "logical_block": int(self.of("queue/logical_block_size")),
            "file_system": self.file_system,
        }

    def counters(self):
        """Bytes read and written since the machine started, by all; nothing if it is not known."""
        if not self.is_known:
            return None
        fields = read(self.stat).split()
        return int(fields[2]) * SECTOR, int(fields[6]) * SECTOR


def commit(root):
    """Of the checkout that holds these scripts; `+` if it was changed."""

    def git(*words):
        if shutil.which("git") is None:
            return None
        said = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False)
        return said.stdout.strip() if said.returncode == 0 else None

    name = git("rev-parse", "--short=10", "HEAD")
    if name is None:
        return "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.lock")
    return name + ("+" if changed else "")


def memory_available():
    for line in read("/proc/meminfo", "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise Failed("the kernel does not tell how much memory is available")


def facts(directory, root):
    """Everything that stands above a table."""
    model = re.search(r"model name\s*:\s*(.+)", read("/proc/cpuinfo", ""))
    total = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo", ""))
    server, load = processors()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": model.group(1) if model else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "server_on": server,
        "load_on": load,
        "is_shared": server == load,
        "memory_gib": round(int(total.group(1)) / 2**20, 1) if total else None,
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
        "drive": Drive(directory).facts(),
        "commit": commit(root),
    }


def free_bytes(directory):
    there = os.statvfs(directory)
    return there.f_bavail * there.f_frsize
