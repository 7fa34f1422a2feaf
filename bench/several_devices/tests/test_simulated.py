"""The bars of simulated arrays in docs/benchmarks.md are those of `make experiments`."""

import json
import os
import unittest

from side_by_side.run import ROOT

PAGE = "docs/benchmarks.md"
SECTION = "## Several devices as one, simulated"
SIZES = (1, 4, 16, 64)
# Columns of a row: share of none, of what the devices could do, requests, of each operation.
STORE, UPDATE, RETRIEVE = 0, 3, 6
REQUESTS = 2


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tables(name):
    return json.loads(read(f"docs/plots/simulated/{name}.json"))["tables"]


def modelled(mechanism):
    """Its rows by size, on devices whose requests are dear, and on those where they are cheap."""
    each = [dict(table["rows"])[mechanism] for table in tables("kvmd-mechanisms")]
    return dict(zip(SIZES, each[:4])), dict(zip(SIZES, each[4:]))


def between(numbers, digits=3):
    return f"{min(numbers):.{digits}f} to {max(numbers):.{digits}f}"


class Simulated(unittest.TestCase):
    def setUp(self):
        page = read(PAGE)
        self.lines = page[page.index(SECTION) :].splitlines()

    def assert_told(self, number, what, reached):
        """The row of the bars that begins so says this."""
        rows = [line for line in self.lines if line.startswith(f"| {number} | {what} |")]
        self.assertEqual(len(rows), 1, what)
        self.assertTrue(rows[0].split(" | ")[3].startswith(reached), (reached, rows[0]))

    def test_replication(self):
        dear, cheap = modelled("replication 3")
        first = cheap.pop(1)
        stores = [row[STORE] for row in [*dear.values(), *cheap.values()]]
        self.assertGreaterEqual(min([*stores, first[STORE]]), 0.97 / 3)
        reached = f"{between(stores)}; at 1 KiB with cheap requests {first[STORE]:.3f},"
        self.assert_told(1, "replication (3): store, share", reached)
        gets = [row[RETRIEVE] for row in [*dear.values(), *cheap.values(), first]]
        self.assert_told(1, "replication (3): retrieve, share", between(gets))

    def test_splitting(self):
        dear, cheap = modelled("splitting 4+2")
        reached = f"{dear[1][STORE]:.3f}; with cheap requests {cheap[1][STORE]:.3f}"
        self.assert_told(2, "splitting 4+2: store 1 KiB, share", reached)
        reached = f"{cheap[64][STORE]:.3f} with cheap requests; with dear ones {dear[64][STORE]:.3f},"
        self.assert_told(2, "splitting 4+2: store 64 KiB, share", reached)

    def test_packing(self):
        dear, cheap = modelled("packing 4+2")
        each = [*dear.values(), *cheap.values()]
        requests = [4 * row[STORE + REQUESTS] for row in each]
        self.assert_told(3, "packing 4+2: requests for four stores", between(requests, 2))
        d, c = dear, cheap
        reached = f"{d[1][STORE]:.3f} and {d[64][STORE]:.3f}; with cheap requests "
        reached += f"{c[1][STORE]:.3f} and {c[64][STORE]:.3f}"
        self.assert_told(3, "packing 4+2: store 1 KiB and 64 KiB, share", reached)
        gets = [row[RETRIEVE] for row in each]
        self.assert_told(3, "packing 4+2: retrieve, share", between(gets))
        own = [f"{row[UPDATE] / row[STORE]:.2f}" for row in each]
        by_size = [f"{ratio} at {size} KiB" for ratio, size in zip(own, SIZES)]
        reached = f"with dear requests {', '.join(by_size)}; "
        reached += f"with cheap ones {', '.join(own[4:7])} and {own[7]}."
        self.assert_told(5, "packing 4+2: updates, of its own stores", reached)

    def test_packing_over_the_engine(self):
        named = [t for t in tables("kvmd-flash") if t["title"].startswith("updates and deletes")]
        by_drive = [dict(table["rows"]) for table in named]
        quick, dear = ([rows[f"packing 4+2, {size} KiB"] for size in SIZES] for rows in by_drive)

        def told(row):
            _, update, delete = row
            return f"{update:.2f} and {delete:.{0 if delete >= 10 else 1}f}"

        each = ", ".join(f"{size} KiB {told(row)}" for size, row in zip(SIZES, quick))
        reached = f"{each}; with dear requests {', '.join(map(told, dear))}:"
        self.assert_told(5, "packing: updates and deletes, of its own stores", reached)
        self.assertTrue(all(min(row[1:]) >= 0.5 for row in quick + dear))
