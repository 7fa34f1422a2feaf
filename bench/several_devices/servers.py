"""A Plimsoll over several files that are small drives, or over one.

Role: between the run and the process. Invariants: files were written once over before they are devices, so
nothing is allocated while something is measured; each start finds them blank.
"""

import contextlib
import hashlib
import json
import os
import time

from evict import Client
from side_by_side.children import Failed
from side_by_side.servers import MIB, Ours, lay

REBUILD_SECONDS_MAX = 300
# Commands that are sent at once.
KEYS_TOGETHER = 1000
# What packs behind its stores is done when nothing has changed for so long: metrics are told once a second,
# and packing that is hindered rests for one.
STILL_SECONDS, PACKING_SECONDS_MAX = 3, 300
PACKING_METRICS = [
    "plimsoll_array_packing_waiting_keys",
    "plimsoll_array_loose_sets",
    "plimsoll_partition_objects",
    "plimsoll_partition_live_bytes",
]


def lay_all(folder, count, size):
    """So many files, to be devices."""
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, f"device-{number}") for number in range(count)]
    for path in paths:
        lay(path, size)
    return paths


def scattered(number):
    """A name of 16 bytes that tells nothing of those next to it."""
    return hashlib.sha256(b"%d" % number).hexdigest()[:16].encode()


def blank(path):
    """Makes a file one that may be formatted."""
    with open(path, "r+b") as file:
        file.write(bytes(MIB))
        file.seek(-MIB, os.SEEK_END)
        file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())


class Several(Ours):
    """One server on one processor, over some files, with some protection."""

    def __init__(self, run, folder, paths, lines):
        super().__init__(run, folder, paths)
        for path in paths:
            blank(path)
        config = os.path.join(self.folder, "plimsoll.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        self.more = ["--config", config]

    def store_scattered(self, keys, value_bytes):
        """Stores so many keys whose names follow no order: numbered ones are spread over the slots of one
        device more evenly than those that each of several gets, and their index has smaller gaps."""
        client, value = Client(self.port), b"x" * value_bytes
        with contextlib.closing(client.socket):
            for first in range(0, keys, KEYS_TOGETHER):
                some = range(first, min(first + KEYS_TOGETHER, keys))
                client.ask([b"SET", scattered(number), value] for number in some)

    def packed(self):
        """Waits until packing rests: after how many seconds, keys that wait still, bytes that are kept."""
        begun = since = time.monotonic()
        before = None
        while True:
            now, told = time.monotonic(), self.metrics(*PACKING_METRICS)
            if told != before:
                before, since = told, now
            waiting, loose, _, live_bytes = told
            if loose == 0 and now - since > STILL_SECONDS:
                return {"seconds": since - begun, "waiting": waiting, "live_bytes": live_bytes}
            if now - begun > PACKING_SECONDS_MAX:
                raise Failed(f"{self.name}: still packing: {dict(zip(PACKING_METRICS, told, strict=True))}")
            self.child.check()
            time.sleep(0.1)

    def replace_first(self, new):
        """Puts a blank file in the place of the first device: seconds until it is in, and bytes copied."""
        blank(new)
        begun = time.monotonic()
        self.http("/api/array/replace", json.dumps({"old": self.devices[0], "new": new}).encode())
        while True:
            first = json.loads(self.http("/api/array"))["members"][0]
            if first["state"] == "in":
                return {"seconds": time.monotonic() - begun, "copied_bytes": first["copied_bytes"]}
            if time.monotonic() - begun > REBUILD_SECONDS_MAX:
                raise Failed(f"{self.name}: the new device is still {first}")
            self.child.check()
            time.sleep(0.05)
