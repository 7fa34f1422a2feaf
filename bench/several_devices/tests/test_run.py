"""A whole quick run of `make bench-array`, of the binary that PLIMSOLL_BINARY names."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from several_devices.__main__ import MECHANISMS, SIZES
from side_by_side.flags import ROOT, TARGET

SCRIPTS = os.path.join(ROOT, "bench", "several_devices")
BINARY = os.path.abspath(os.environ["PLIMSOLL_BINARY"]) if "PLIMSOLL_BINARY" in os.environ else None
SECONDS_MAX = 600


class Runs(unittest.TestCase):
    def test_a_quick_run_measures_everything_and_leaves_nothing_behind(self):
        self.assertIsNotNone(BINARY, "PLIMSOLL_BINARY names the server: make bench-test sets it")
        place = os.path.join(TARGET, "bench-test")
        os.makedirs(place, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as holder:
            data, out = (os.path.join(holder, name) for name in ("data", "out"))
            command = [sys.executable, SCRIPTS, BINARY, "--quick", "--dir", data, "--out", out]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr[-3000:])
            with open(os.path.join(out, "summary.json"), encoding="utf-8") as file:
                told = json.load(file)
            self.assertEqual(os.listdir(data), [])
        self.assertEqual(len(told["operations"]), 2 * len(MECHANISMS) * len(SIZES))
        for each in told["operations"]:
            self.assertGreater(each["per_second"][0], 0, each)
        rebuilt = {each["mechanism"]: each["copied_bytes"] for each in told["rebuilds"]}
        # Of values of 2 MiB a device has half, three copies' sixth; of shards it has one of each value.
        self.assertAlmostEqual(rebuilt["replication 3"] / (1 << 20), 1, delta=0.3)
        self.assertAlmostEqual(rebuilt["splitting 4+2"] / (1 << 20), 2, delta=0.1)
        # Values are a sixth, parities a twelfth; stubs and what they name are bytes as well, a few.
        self.assertAlmostEqual(rebuilt["packing 4+2"] / (1 << 20), 0.5, delta=0.1)
        self.assertEqual(sorted(each["value_bytes"] for each in told["packed"]), SIZES)
        # And of a few keys the journals are some.
        records = {name: told["memory"][name]["records"] for name in MECHANISMS}
        packed = records.pop("packing 4+2")
        self.assertEqual([int(each) for each in records.values()], [1, 3, 6])
        # 3.75 if all sets are full; two in a set have 4.5, copies 3.
        self.assertTrue(3.6 < packed < 4.7, packed)

    def test_wrong_words_are_refused(self):
        ran = subprocess.run(
            [sys.executable, SCRIPTS, "absent", "--quick", "--pages", ROOT],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(ran.returncode, 2, ran.stderr)
        self.assertIn("a quick run", ran.stderr)


if __name__ == "__main__":
    unittest.main()
