"""The bars of simulated arrays in docs/benchmarks.md against the numbers of `make experiments`: they cannot drift."""

import json
import os
import unittest

from side_by_side.run import ROOT

SIZES = (1, 4, 16, 64)
# The columns of a mechanism's row: share of none, of what the devices could do, and requests, for each operation.
STORE, UPDATE, RETRIEVE = 0, 3, 6
REQUESTS = 2


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def tables(name):
    return json.loads(read(f"docs/plots/simulated/{name}.json"))["tables"]


def rows(table):
    return dict(table["rows"])


class Simulated(unittest.TestCase):
    def setUp(self):
        page = read("docs/benchmarks.md")
        self.page = page[page.index("## Several devices as one, simulated") :]

    def assert_told(self, row):
        """A row of the page begins so."""
        self.assertTrue(any(line.startswith(row) for line in self.page.splitlines()), row)

    def modelled(self, mechanism):
        """Its numbers by size, on devices whose requests are dear, and on those where they are cheap."""
        each = [rows(table)[mechanism] for table in tables("kvmd-mechanisms")]
        return dict(zip(SIZES, each[:4])), dict(zip(SIZES, each[4:]))

    def test_replication_and_splitting(self):
        dear, cheap = self.modelled("replication 3")
        stores = [row[STORE] for size, row in [*dear.items(), *cheap.items()] if row is not cheap[1]]
        self.assert_told(
            f"| 1 | replication (3): store, share | 0.97 of 1/3 (0.323) | {min(stores):.3f} to {max(stores):.3f}; "
            f"at 1 KiB with cheap requests {cheap[1][STORE]:.3f},"
        )
        self.assertGreaterEqual(min(stores + [cheap[1][STORE]]), 0.97 / 3)
        gets = [row[RETRIEVE] for row in [*dear.values(), *cheap.values()]]
        self.assert_told(f"| 1 | replication (3): retrieve, share | 0.97 | {min(gets):.3f} to {max(gets):.3f} |")
        dear, cheap = self.modelled("splitting 4+2")
        self.assert_told(
            f"| 2 | splitting 4+2: store 1 KiB, share | 0.97 of 1/6 (0.162) | {dear[1][STORE]:.3f}; "
            f"with cheap requests {cheap[1][STORE]:.3f} |"
        )
        self.assert_told(
            f"| 2 | splitting 4+2: store 64 KiB, share | 0.95 of 4/6 (0.633) | {cheap[64][STORE]:.3f} with cheap "
            f"requests; with dear ones {dear[64][STORE]:.3f},"
        )

    def test_packing(self):
        dear, cheap = self.modelled("packing 4+2")
        requests = [4 * row[STORE + REQUESTS] for row in [*dear.values(), *cheap.values()]]
        self.assert_told(
            f"| 3 | packing 4+2: requests for four stores | 10 (paper: 14) | {min(requests):.2f} to {max(requests):.2f} |"
        )
        self.assert_told(
            f"| 3 | packing 4+2: store 1 KiB and 64 KiB, share | 0.38 and 0.60 (paper: 0.29 and 0.5) | "
            f"{dear[1][STORE]:.3f} and {dear[64][STORE]:.3f}; "
            f"with cheap requests {cheap[1][STORE]:.3f} and {cheap[64][STORE]:.3f} |"
        )
        gets = [row[RETRIEVE] for row in [*dear.values(), *cheap.values()]]
        self.assert_told(f"| 3 | packing 4+2: retrieve, share | 0.97 | {min(gets):.3f} to {max(gets):.3f} |")
        d, c = ([row[UPDATE] / row[STORE] for row in by_size.values()] for by_size in (dear, cheap))
        self.assert_told(
            f"| 5 | packing 4+2: updates, of its own stores | 0.5 (paper: poor) | with dear requests {d[0]:.2f} at 1 KiB, "
            f"{d[1]:.2f} at 4 KiB, {d[2]:.2f} at 16 KiB, {d[3]:.2f} at 64 KiB; "
            f"with cheap ones {c[0]:.2f}, {c[1]:.2f}, {c[2]:.2f} and {c[3]:.2f}."
        )

    def test_packing_over_the_engine(self):
        own = [rows(table) for table in tables("kvmd-flash") if table["title"].startswith("updates and deletes")]
        quick, dear = ([each[f"packing 4+2, {size} KiB"] for size in SIZES] for each in own)

        def told(row):
            update, delete = row[1:]
            return f"{update:.2f} and {delete:.0f}" if delete >= 10 else f"{update:.2f} and {delete:.1f}"

        each = ", ".join(f"{size} KiB {told(row)}" for size, row in zip(SIZES, quick))
        self.assert_told(
            f"| 5 | packing: updates and deletes, of its own stores | 0.5 | {each}; with dear requests "
            f"{', '.join(map(told, dear))}: of keys that were written lately, see below |"
        )
        self.assertTrue(all(min(row[1:]) >= 0.5 for row in quick + dear))
