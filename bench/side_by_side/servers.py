"""The servers that are compared: how each is started, asked for a sign of life, and stopped.

Role: between the rows and the processes. Every server stands on the one processor that is the servers';
its files stand in a directory of the run. Invariants: a server is given to a row only after it answered.
"""

import mmap
import os
import signal
import socket
import time
import urllib.request

from side_by_side.children import Failed, tail

READY_SECONDS = 120
METRICS_SECONDS = 1.2
# How long a Redis may take to rewrite its file.
REWRITE_SECONDS_MAX = 300
MIB = 1 << 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def lay(path, size):
    """A file every block of which was written: blank at both ends, as a device that may be formatted is."""
    noise, zeros = os.urandom(MIB), bytes(MIB)
    with open(path, "wb") as file:
        for at in range(0, size, MIB):
            is_end = at == 0 or at + 2 * MIB >= size
            file.write(zeros if is_end else noise)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_over(path):
    """Reads a whole file from the drive: what the host of a virtual drive keeps of it is then the same as
    of fio's file, which was just laid. Redis' and memcached's data were loaded since."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # No direct I/O here: then the server has none either, and says so.
        file = os.open(path, os.O_RDONLY)
    try:
        with mmap.mmap(-1, MIB) as buffer:
            while os.readv(file, [buffer]):
                pass
    finally:
        os.close(file)


def forget(directory):
    """Takes the files of a directory out of the page cache."""
    for folder, _, names in os.walk(directory):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Server:
    """What all have in common."""

    protocol = "resp"
    name = ""

    def __init__(self, run, folder):
        self.run, self.child = run, None
        self.folder = os.path.join(run.directory, folder)
        os.makedirs(self.folder, exist_ok=True)
        self.port = free_port()

    def command(self):
        raise NotImplementedError

    def start(self):
        """Starts it, and gives it back when it answers."""
        self.begin()
        deadline = time.monotonic() + READY_SECONDS
        while not self.answers():
            self.child.check()
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} did not answer in {READY_SECONDS} s: {tail(self.child.log)}")
            time.sleep(0.02)
        return self

    def begin(self):
        log = os.path.join(self.run.directory, f"{os.path.basename(self.folder)}.log")
        self.child = self.run.children.start(self.name, self.command(), {self.run.server_on}, log)

    def ask(self, words, timeout=1.0):
        """The first bytes of a reply; nothing if the server does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
                connection.sendall(words)
                return connection.recv(1 << 16)
        except OSError:
            return b""

    def answers(self):
        return self.ask(b"PING\r\n").startswith(b"+PONG")

    def stop(self, sent=signal.SIGTERM):
        status = self.child.end(sent)
        self.run.children.living.remove(self.child)
        if sent == signal.SIGTERM and status not in (0, -signal.SIGTERM):
            raise Failed(f"{self.name} stopped with status {status}: {tail(self.child.log)}")

    def value(self, key):
        """The value of a key, whole; nothing if there is no answer, or an error."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"GET %s\r\n" % key)
                with connection.makefile("rb") as replies:
                    head = replies.readline()
                    if not head.startswith(b"$") or head.startswith(b"$-"):
                        return None
                    return replies.read(int(head[1:]))
        except OSError:
            return None


class Ours(Server):
    """Plimsoll over files that are there, whose blocks were all written before; durability sync."""

    name = "plimsoll"

    def __init__(self, run, folder, devices, cache="0", more=()):
        super().__init__(run, folder)
        self.devices, self.cache, self.more, self.admin = devices, cache, list(more), free_port()

    def command(self):
        return [
            self.run.binary,
            "serve",
            *(word for path in self.devices for word in ("--device", path)),
            "--cores",
            str(self.run.server_on),
            "--cache",
            self.cache,
            "--durability",
            "sync",
            "--resp",
            f"127.0.0.1:{self.port}",
            "--admin",
            f"127.0.0.1:{self.admin}",
            *self.more,
        ]

    def http(self, path, body=None):
        """What the admin port answers: to a GET, or to a POST if there is a body."""
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}{path}", body, kind)
        with urllib.request.urlopen(request, timeout=60) as page:
            return page.read().decode()

    def metric(self, name):
        """The sum over devices, cores and partitions of a metric, as it is now: told once a second."""
        time.sleep(METRICS_SECONDS)
        return self.metrics(name)[0]

    def metrics(self, *names):
        """The same of several, as they were told last."""
        lines = self.http("/metrics").splitlines()

        def summed(name):
            its = [line for line in lines if line.startswith((name + "{", name + " "))]
            if not its:
                raise Failed(f"{self.name} has no metric {name}")
            return sum(float(line.rsplit(" ", 1)[1]) for line in its)

        return [summed(name) for name in names]


class Plimsoll(Ours):
    """On a file of its own."""

    def __init__(self, run, folder, size, cache="0", more=()):
        super().__init__(run, folder, [os.path.join(run.directory, folder, "device")], cache, more)
        size = max(size, 64 * MIB) // MIB * MIB
        run.room(size, f"the device of {self.name}")
        lay(self.devices[0], size)


class Redis(Server):
    """Redis, in memory alone, or with every write synced to its append-only file, never rewritten."""

    def __init__(self, run, folder, is_durable=False):
        super().__init__(run, folder)
        self.is_durable = is_durable
        self.name = "redis, appendfsync always" if is_durable else "redis, RAM alone"

    def command(self):
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
        return [
            "redis-server",
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            self.folder,
            "--save",
            "",
            *(durable if self.is_durable else ["--appendonly", "no"]),
        ]

    def shorten(self):
        """Rewrites the append-only file: a start reads each key once then."""
        self.ask(b"BGREWRITEAOF\r\n")
        until = time.monotonic() + REWRITE_SECONDS_MAX
        while time.monotonic() < until:
            told = self.ask(b"INFO persistence\r\n")
            if b"aof_rewrite_in_progress:0" in told and b"aof_rewrite_scheduled:0" in told:
                return
            time.sleep(0.1)
        raise Failed(f"{self.name} has not rewritten its file in {REWRITE_SECONDS_MAX} s")


class Memcached(Server):
    """Memcached with its values on flash (extstore), one worker, eight threads that read."""

    protocol = "memcached"
    name = "memcached extstore"

    def __init__(self, run, folder, memory_mib, flash_mib):
        super().__init__(run, folder)
        self.memory_mib, self.flash_mib = memory_mib, flash_mib
        run.room(flash_mib * MIB, "the file of memcached")

    def command(self):
        path = os.path.join(self.folder, "ext")
        user = ["-u", "root"] if os.geteuid() == 0 else []
        return [
            "memcached",
            *user,
            "-l",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "0",
            "-t",
            "1",
            "-c",
            "4096",
            "-m",
            str(self.memory_mib),
            "-o",
            f"ext_path={path}:{self.flash_mib}M,ext_threads=8",
        ]

    def answers(self):
        return self.ask(b"version\r\n").startswith(b"VERSION")

    def statistic(self, name):
        for line in self.ask(b"stats\r\n").decode().splitlines():
            words = line.split()
            if words[:2] == ["STAT", name]:
                return int(words[2])
        raise Failed(f"{self.name} has no statistic {name}")
