"""docs/benchmarks.md and the plot against the summary that they were made of: they cannot drift."""

import json
import os
import unittest

from several_devices import pages
from several_devices.__main__ import MECHANISMS, SIZES
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
        self.assertEqual(there, {(name, size) for name in MECHANISMS for size in SIZES})
        self.assertEqual(set(self.told["memory"]), {pages.SINGLE, *MECHANISMS})


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
        def fields(records, index_bytes):
            return {"keys": 9, "records": records, "index_bytes": index_bytes, "resident_bytes": 99}

        told = {
            "memory": {
                "one device": fields(1, 20),
                "hashing": fields(1, 20),
                "replication 3": fields(3, 60.04),
                "splitting 4+2": fields(6, 144),
            }
        }
        self.assertEqual([line.split("|")[-3].strip() for line in pages.memory(told)[3:]], [
            "20.0: met",
            "60.0: **not met** by 0.1%",
            "120.0: **not met** by 20.0%",
        ])


if __name__ == "__main__":
    unittest.main()
