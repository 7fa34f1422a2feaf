"""README, docs/benchmarks.md and the plots against the summary they were made of: they cannot drift."""

import json
import os
import unittest

from side_by_side import plots, report
from side_by_side.__main__ import ROWS
from side_by_side.run import ROOT

BYTES_MAX = 100 << 10


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Pages(unittest.TestCase):
    def setUp(self):
        self.told = json.loads(read("docs/plots/summary.json"))

    def test_pages_hold_what_the_summary_says(self):
        blocks = report.blocks(self.told)
        for page, names in report.PAGES.items():
            text = read(page)
            for name in names:
                start, stop = report.between(text, name)
                self.assertEqual(
                    text[start:stop],
                    blocks[name],
                    f"{page}: differs; `make bench` or side_by_side.report make it",
                )

    def test_plots_are_those_of_the_summary(self):
        drawn = plots.draw(self.told)
        names = os.listdir(os.path.join(ROOT, "docs/plots"))
        there = {name[:-4] for name in names if name.endswith(".svg")}
        self.assertEqual(there, set(drawn))
        for name, words in drawn.items():
            self.assertEqual(read(f"docs/plots/{name}.svg"), words, name)

    def test_files_are_small(self):
        for name in os.listdir(os.path.join(ROOT, "docs/plots")):
            self.assertLess(os.path.getsize(os.path.join(ROOT, "docs/plots", name)), BYTES_MAX, name)

    def test_all_rows_are_there_and_a_quick_run_never_is(self):
        self.assertFalse(self.told["settings"]["quick"])
        self.assertEqual(set(self.told["settings"]["rows"]), ROWS)

    def test_every_missed_bar_is_shown_as_such_in_the_readme(self):
        missed = [bar for table in self.told["tables"] for bar in table["bars"] if bar["is_met"] is False]
        lines = [line for line in read("README.md").splitlines() if line.endswith("| **not met** |")]
        self.assertEqual(len(lines), len(missed))
