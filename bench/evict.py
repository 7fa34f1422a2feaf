#!/usr/bin/env python3
"""How good a cache a full device is: a read-through load under Zipf 0.99 against a running server.

Each request is a GET; what is not there is SET. Prints the hit rate of the second half beside that of an
exact LRU and of a FIFO of as many values as the server has at the end, and of an LRU
of all bytes of the device.

usage: bench/evict.py PORT KEYS REQUESTS VALUE_BYTES SEED
The server: plimsoll serve --on-full evict --size 128MiB --cores 0 --cache 4MiB --durability async
"""
import bisect
import collections
import random
import socket
import sys

DEPTH = 32


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb", 1 << 20)

    def read(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return int(rest) if kind == b":" else rest

    def ask(self, commands):
        commands = list(commands)

        def encode(words):
            words = [word if isinstance(word, bytes) else word.encode() for word in words]
            return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)

        self.socket.sendall(b"".join(map(encode, commands)))
        return [self.read() for _ in commands]


def zipf(keys, seed):
    """Draws keys, the most wanted ones spread over all numbers."""
    source, sums, total = random.Random(seed), [], 0.0
    for rank in range(keys):
        total += 1 / (rank + 1) ** 0.99
        sums.append(total)
    names = list(range(keys))
    source.shuffle(names)
    while True:
        yield names[bisect.bisect_left(sums, source.random() * total)]


def model(trace, capacity, is_lru):
    """The hit rate of the second half of a trace."""
    kept, hits = collections.OrderedDict(), 0
    for index, key in enumerate(trace):
        if key in kept:
            hits += index >= len(trace) // 2
            if is_lru:
                kept.move_to_end(key)
        else:
            kept[key] = True
            if len(kept) > capacity:
                kept.popitem(last=False)
    return hits / (len(trace) - len(trace) // 2)


def main():
    port, keys, requests, value_bytes, seed = map(int, sys.argv[1:6])
    client, value = Client(port), random.Random(seed).randbytes(value_bytes)
    draw, trace, late, hits = zipf(keys, seed), [], 0, 0
    while len(trace) < requests:
        wanted = [next(draw) for _ in range(DEPTH)]
        given = client.ask([("GET", f"key:{key}") for key in wanted])
        assert all(each in (None, value) for each in given), "another value"
        missed = [("SET", f"key:{key}", value) for key, each in zip(wanted, given) if each is None]
        client.ask(missed)
        if len(trace) >= requests // 2:
            late, hits = late + DEPTH, hits + DEPTH - len(missed)
        trace += wanted
    [there], [info] = client.ask([("DBSIZE",)]), client.ask([("INFO", "everything")])
    fields = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    device = sum(int(fields[f]) for f in fields if f.endswith("_capacity_bytes") and "cache" not in f)
    print(f"{there} keys are there, hit rate of the second half: {hits / late:.4f}")
    print(f"an LRU of as many: {model(trace, there, True):.4f}, a FIFO: {model(trace, there, False):.4f}")
    print(f"an LRU of all bytes of the device: {model(trace, device // value_bytes, True):.4f}")


if __name__ == "__main__":
    main()
