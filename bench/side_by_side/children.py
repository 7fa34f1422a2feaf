"""Processes of a run: started on their processors, watched, and gone when the run is gone.

Role: the one place that starts and ends programs. Invariants: a child dies with this process, however that
ends; a command that fails, or takes too long, ends the run with its own words (Failed).
"""

import ctypes
import os
import resource
import signal
import subprocess
import time

PR_SET_PDEATHSIG = 1
# A load may notice that its server is gone before the server's parent can.
FALL_SECONDS_MAX = 1.0
LIBC = ctypes.CDLL(None, use_errno=True)
WORDS_MAX = 2000


class Failed(Exception):
    """The run cannot go on; the text says why."""


def bound(cpus):
    """What a child does before it becomes another program: its processors, and to die with its parent."""

    def prepare():
        os.sched_setaffinity(0, cpus)
        if LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
            os._exit(125)

    return prepare


def status(code):
    """How a program ended, in words."""
    if code >= 0:
        return f"status {code}"
    return f"status {code} ({signal.Signals(-code).name})"


def tail(path):
    with open(path, encoding="utf-8", errors="replace") as log:
        return log.read()[-WORDS_MAX:].strip()


class Child:
    """A server that runs, and the file of what it says."""

    def __init__(self, name, command, cpus, log):
        self.name, self.log, self.is_stopped = name, log, False
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=bound(cpus),
                start_new_session=True,
            )
        self.pid = self.process.pid

    def fallen(self):
        """What is to be said if it has ended by itself, and its last lines."""
        if self.is_stopped or self.process.poll() is None:
            return None
        last = tail(self.log) or "it said nothing"
        return f"{self.name} ended by itself, {status(self.process.returncode)}: {last}"

    def check(self):
        """Fails if it has ended by itself."""
        words = self.fallen()
        if words:
            raise Failed(words)

    def end(self, sent, seconds=120):
        """Sends a signal and waits."""
        self.is_stopped = True
        if self.process.poll() is None:
            self.process.send_signal(sent)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{self.name} did not end in {seconds} s after {sent.name}") from late

    def resident_bytes(self):
        return self.memory_bytes("VmRSS")

    def peak_bytes(self):
        """What it had resident at most."""
        return self.memory_bytes("VmHWM")

    def memory_bytes(self, which):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(f"{which}:"):
                    return int(line.split()[1]) * 1024
        raise Failed(f"{self.name}: the kernel does not tell its memory")


class Children:
    """All of a run."""

    def __init__(self):
        self.living = []

    def start(self, name, command, cpus, log):
        child = Child(name, command, cpus, log)
        self.living.append(child)
        return child

    def check(self):
        for child in self.living:
            child.check()

    def fallen(self, seconds=FALL_SECONDS_MAX):
        """What is to be said of those that have ended by themselves, or do shortly; nothing if all live."""
        until = time.monotonic() + seconds
        while True:
            words = list(filter(None, (child.fallen() for child in self.living)))
            if words or not self.living or time.monotonic() > until:
                return "\n".join(words) or None
            time.sleep(0.05)

    def kill(self):
        for child in self.living:
            child.end(signal.SIGKILL)
        self.living.clear()


class Ran:
    """What a command came to: its words, its seconds, its share of a processor."""

    def __init__(self, words, seconds, cpu_seconds):
        self.words, self.seconds, self.cpu_seconds = words, seconds, cpu_seconds

    @property
    def busy(self):
        return self.cpu_seconds / self.seconds


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(name, command, cpus, seconds_max):
    """Runs a command to its end."""
    begun, cpu = time.monotonic(), children_cpu()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=bound(cpus),
        start_new_session=True,
    )
    try:
        words, complaints = process.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{name} took more than {seconds_max:.0f} s: {' '.join(command)}") from late
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode != 0:
        told = (words[-WORDS_MAX:] + "\n" + complaints[-WORDS_MAX:]).strip()
        raise Failed(f"{name} failed with status {process.returncode}: {' '.join(command)}\n{told}")
    return Ran(words, time.monotonic() - begun, children_cpu() - cpu)
