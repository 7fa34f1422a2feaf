"""A Plimsoll over several files that are small drives, or over one.

Role: between the run and the process. Invariants: files were written once over before they are devices, so
nothing is allocated while something is measured; each start finds them blank.
"""

import json
import os
import time
import urllib.request

from side_by_side.children import Failed
from side_by_side.servers import MIB, Server, free_port, lay

REBUILD_SECONDS_MAX = 300


def lay_all(folder, count, size):
    """So many files, to be devices."""
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, f"device-{number}") for number in range(count)]
    for path in paths:
        lay(path, size)
    return paths


def blank(path):
    """Makes a file one that may be formatted."""
    with open(path, "r+b") as file:
        file.write(bytes(MIB))
        file.seek(-MIB, os.SEEK_END)
        file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())


class Several(Server):
    """One server on one processor, over some files, with some protection."""

    name = "plimsoll"

    def __init__(self, run, folder, paths, lines):
        super().__init__(run, folder)
        self.paths, self.admin = paths, free_port()
        self.config = os.path.join(self.folder, "plimsoll.toml")
        for path in paths:
            blank(path)
        with open(self.config, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def command(self):
        devices = [word for path in self.paths for word in ("--device", path)]
        return [
            self.run.binary,
            "serve",
            "--config",
            self.config,
            *devices,
            "--cores",
            str(self.run.server_on),
            "--cache",
            "0",
            "--durability",
            "sync",
            "--resp",
            f"127.0.0.1:{self.port}",
            "--admin",
            f"127.0.0.1:{self.admin}",
        ]

    def http(self, path, body=None):
        """What the admin port answers."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}{path}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as page:
            return page.read().decode()

    def metric(self, name):
        """The sum of a metric over all devices."""
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.http("/metrics").splitlines()
            if line.startswith((name + "{", name + " "))
        ]
        if not values:
            raise Failed(f"{self.name} has no metric {name}")
        return sum(values)

    def replace_first(self, new):
        """Puts a blank file in the place of the first device: seconds until it is in, and bytes copied."""
        blank(new)
        begun = time.monotonic()
        self.http("/api/array/replace", {"old": self.paths[0], "new": new})
        while True:
            first = json.loads(self.http("/api/array"))["members"][0]
            if first["state"] == "in":
                return {"seconds": time.monotonic() - begun, "copied_bytes": first["copied_bytes"]}
            if time.monotonic() - begun > REBUILD_SECONDS_MAX:
                raise Failed(f"{self.name}: the new device is still {first}")
            self.child.check()
            time.sleep(0.05)
