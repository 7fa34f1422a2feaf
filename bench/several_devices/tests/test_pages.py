"""docs/benchmarks.md and the plot against the summary that they were made of: they cannot drift."""

import json
import os
import unittest

from several_devices import pages
from several_devices.__main__ import MECHANISMS, PACKING, SIZES
from side_by_side.report import between
from side_by_side.run import ROOT


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Pages(unittest.TestCase):
    def setUp(self):
        self.told = json.loads(read(f"{pages.PLOTS}/summary.json"))

    def test_the_page_and_the_plot_are_of_the_summary(self):
        text = read(pages.PAGE)
        start, stop = between(text, pages.MARKER)
        self.assertEqual(text[start:stop], "\n".join(pages.block(self.told)))
        self.assertEqual(read(f"{pages.PLOTS}/shares.svg"), pages.plot(self.told))

    def test_a_whole_run_is_there(self):
        self.assertFalse(self.told["settings"]["quick"])
        there = {(each["mechanism"], each["value_bytes"]) for each in self.told["operations"]}
        # What was recorded before there was packing has all but that.
        names = [name for name in MECHANISMS if name != PACKING or name in self.told["memory"]]
        self.assertEqual(there, {(name, size) for name in names for size in SIZES})
        self.assertEqual(set(self.told["memory"]), set(names))
        packed = [(each["mechanism"], each["value_bytes"]) for each in self.told.get("packed", [])]
        self.assertEqual(packed, [(name, size) for name in names if name == PACKING for size in SIZES])

    def test_every_mechanism_has_its_colour_and_its_pieces(self):
        self.assertEqual(set(pages.KINDS), set(MECHANISMS))
        self.assertEqual(len(set(pages.KINDS.values())), len(MECHANISMS))
        self.assertEqual(set(pages.PIECES), set(MECHANISMS) - {pages.NONE})


def sample(rate):
    return {"per_second": rate, "p99_us": 1, "server_busy": 0.1, "busy": 0.2, "of_bytes": 0.9}


class Shares(unittest.TestCase):
    def test_shares_are_made_within_their_rounds(self):
        def rounds(rates):
            return [{"store": sample(rate), "retrieve": sample(rate)} for rate in rates]

        told = {
            "rounds": [
                {"mechanism": "hashing", "value_bytes": 1024, "samples": rounds([100, 200, 100])},
                {"mechanism": "replication 3", "value_bytes": 1024, "samples": rounds([50, 60, 30])},
            ]
        }
        ours = pages.of_operation(told, "replication 3", 1024, "store")
        self.assertEqual((ours["share"], ours["per_second"]), ([0.3, 0.3, 0.5], [50, 30, 60]))

    def test_memory_that_is_more_than_its_records_is_told(self):
        def fields(records, grown_bytes):
            each = {"keys": 9, "records": records, "grown_bytes": grown_bytes}
            return each | {"index_bytes": 10, "peak_bytes": 99}

        told = {
            "memory": {
                "hashing": fields(1, 24),
                "packing 4+2": fields(3.5, 85.68),
                "replication 3": fields(3, 72.1),
                "splitting 4+2": fields(6, 140),
            }
        }
        self.assertEqual([line.split("|")[-3].strip() for line in pages.memory(told)[2:]], [
            "24.0: met",
            "84.0: **not met** by 2.0%",
            "72.0: **not met** by 0.1%",
            "144.0: met",
        ])

    def test_what_is_packed_behind_is_told_where_there_is_packing(self):
        def rounds(*each):
            names = ("seconds", "waiting", "kept")
            return [{"packed": dict(zip(names, fields, strict=True))} for fields in each]

        def of(size, samples):
            return {"mechanism": PACKING, "value_bytes": size, "samples": samples}

        told = [of(4096, rounds((1, 0, 1.5), (2, 3, 1.6), (4, 1, 3))), of(1024, rounds((9.5, 0, 2)))]
        rows = pages.packed({"packed": [pages.of_packing(each) for each in told]})
        self.assertEqual(rows[-3:-1], [
            "| 1 KiB | packing 4+2 | 9.5 (9.5 to 9.5) | 0 (0 to 0) | 2.00 (2.00 to 2.00) |",
            "| 4 KiB | packing 4+2 | 2.0 (1.0 to 4.0) | 1 (0 to 3) | 1.60 (1.50 to 3.00) |",
        ])
        self.assertEqual(pages.packed({}), [])

    def test_a_rebuild_is_held_against_the_bytes_that_the_device_gets(self):
        told = {
            "settings": {"rebuilt": 4096, "bytes": {"4096": pages.MIB}},
            "rebuilds": [{"mechanism": PACKING, "seconds": [5, 5, 5], "copied_bytes": 7 * pages.MIB}],
        }
        self.assertEqual(pages.rebuilds(told)[-1], "| packing 4+2 | 7.0 | 5.0 (5.0 to 5.0) | 3.0 |")


if __name__ == "__main__":
    unittest.main()
