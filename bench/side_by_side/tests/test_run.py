"""Whole quick runs of `make bench`, of PLIMSOLL_BINARY and the peers that are there."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from side_by_side.__main__ import ROWS
from side_by_side.flags import ROOT, TARGET

SCRIPTS = os.path.join(ROOT, "bench", "side_by_side")
BINARY = os.path.abspath(os.environ["PLIMSOLL_BINARY"]) if "PLIMSOLL_BINARY" in os.environ else None
SECONDS_MAX = 600
# A second: on a busy machine a server may not run at all for a few tenths.
FEW = ["--quick", "--keys", "2000", "--seconds", "1"]


def living(word):
    """Processes whose command lines hold a word."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                if word.encode() in file.read():
                    found.append(int(number))
        except OSError:
            continue
    return found


class Runs(unittest.TestCase):
    def setUp(self):
        self.assertIsNotNone(BINARY, "PLIMSOLL_BINARY names the server: make bench-test sets it")
        # Beside the code and not in /tmp: direct I/O needs a drive.
        place = os.path.join(TARGET, "bench-test")
        os.makedirs(place, exist_ok=True)
        self.holder = tempfile.TemporaryDirectory(dir=place)
        self.addCleanup(self.holder.cleanup)
        self.data, self.out = (os.path.join(self.holder.name, name) for name in ("data", "out"))
        os.mkdir(self.data)

    def command(self, binary, *flags):
        return [sys.executable, SCRIPTS, binary, "--dir", self.data, "--out", self.out, *FEW, *flags]

    def run_it(self, binary, *flags, **more):
        return subprocess.run(
            self.command(binary, *flags),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            **more,
        )

    def result(self):
        with open(os.path.join(self.out, "result.json"), encoding="utf-8") as file:
            return json.load(file)

    def nothing_is_left(self):
        self.assertEqual(os.listdir(self.data), [])
        self.assertEqual(living(self.data), [])

    def wrapper(self, text):
        """A program that stands in for the server's binary."""
        path = os.path.join(self.holder.name, "wrapper")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n{text}\nexec {BINARY} "$@"\n')
        os.chmod(path, 0o755)
        return path

    def test_all_rows_run_from_end_to_end(self):
        ran = self.run_it(BINARY)
        self.assertEqual(ran.returncode, 0, ran.stderr[-3000:])
        told = self.result()
        self.assertIn("redis-server", told["versions"], "make prepare installs redis-server")
        tables = {table["name"]: table for table in told["tables"]}
        self.assertLessEqual(
            {
                "flash-1024",
                "flash-4096",
                "flash-16384",
                "cached",
                "set-1024",
                "set-16384",
                "overwrite",
                "costs",
            },
            tables.keys(),
        )
        judged = {bar["row"] for table in told["tables"] for bar in table["bars"]}
        self.assertLessEqual(ROWS - {8, 9}, judged)
        for table in told["tables"]:
            for measure in table["measures"]:
                self.assertEqual(len(measure["rounds"]), 1, measure["key"])
                self.assertTrue(all(value >= 0 for value in measure["rounds"][0].values()), measure)
            for bar in table["bars"]:
                self.assertEqual(bool(bar["values"]), bar["lacks"] is None, bar)
        for bar in tables["cached"]["bars"]:
            self.assertEqual(len(bar["values"]), 1, bar)

        def first(table, key):
            return next(each for each in tables[table]["measures"] if each["key"] == key)["rounds"][0]

        get = first("flash-1024", "ours")
        self.assertGreaterEqual(get["read_bytes"], 1024)
        self.assertGreater(get["cpu_us"], 0)
        self.assertGreater(first("costs", "restart_ours_sigkill")["restart_ms"], 0)
        names = set(os.listdir(os.path.join(self.out, "plots")))
        self.assertEqual(names, {"bars.svg", "get.svg", "set.svg", "latency.svg", "cpu.svg"})
        self.nothing_is_left()

    def test_peers_that_are_not_there_are_named_and_the_rest_goes_on(self):
        empty = os.path.join(self.holder.name, "empty")
        os.mkdir(empty)
        ran = self.run_it(BINARY, "--rows", "4", env={"PATH": empty})
        self.assertEqual(ran.returncode, 0, ran.stderr[-3000:])
        for program, package in (
            ("redis-server", "redis-server"),
            ("db_bench", "rocksdb-tools"),
            ("fio", "fio"),
            ("memcached", "memcached"),
        ):
            self.assertIn(f"{program} is missing (package {package})", ran.stderr)
        self.assertIn("not judged: redis not there", ran.stdout)
        [table] = self.result()["tables"]
        self.assertEqual({measure["key"] for measure in table["measures"]}, {"ours", "ours_pipeline"})
        self.nothing_is_left()

    def test_a_load_that_fails_ends_the_run(self):
        ran = self.run_it(
            self.wrapper('[ "$1" = bench ] && { echo WRONG VALUES: 1; exit 1; }'), "--rows", "4"
        )
        self.assertEqual(ran.returncode, 1)
        self.assertIn("failed with status 1", ran.stderr)
        self.assertIn("WRONG VALUES: 1", ran.stderr)
        self.assertFalse(os.path.exists(self.out), "nothing is written")
        self.nothing_is_left()

    def test_a_server_that_dies_ends_the_run(self):
        dies = self.wrapper('[ "$1" = serve ] && { (sleep 3; kill -9 $$) & }')
        ran = self.run_it(dies, "--rows", "4", "--seconds", "5")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("bench: plimsoll ended by itself, status -9 (SIGKILL): ", ran.stderr)
        self.assertRegex(ran.stderr, "(?s)ended by itself.* ready ", "its last lines")
        self.assertNotIn("Traceback", ran.stderr)
        self.assertFalse(os.path.exists(self.out), "nothing is written")
        self.nothing_is_left()

    def test_an_interrupt_leaves_nothing_behind(self):
        # Whoever is begun in the background may inherit that it ignores interrupts; so may what it begins.
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for sent, status in ((signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)):
            process = subprocess.Popen(
                self.command(BINARY, "--rows", "4", "--seconds", "60"),
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for line in process.stderr:
                if "--workload get" in line:
                    break
            self.assertGreater(len(living(self.data)), 1)
            process.send_signal(sent)
            process.stderr.read()
            self.assertEqual(process.wait(60), status)
            process.stderr.close()
            self.nothing_is_left()

    def test_wrong_words_are_refused(self):
        for flags, says in (
            (["--rows", "77"], "there are"),
            (["--rows", "x"], "numbers with commas"),
            (["--pages", ROOT], "a quick run"),
            (["--rounds", "0"], "--rounds: 0: a whole number above 0"),
            (["--seconds", "-1"], "--seconds: -1: a number above 0"),
            (["--keys", "many"], "--keys: many: a whole number above 0"),
            (["--out", os.path.join(BINARY, "out")], "--out"),
            (["--dir", BINARY], f"--dir {BINARY} cannot be written: Not a directory"),
        ):
            ran = self.run_it(BINARY, *flags)
            self.assertEqual(ran.returncode, 2, ran.stderr)
            self.assertIn(says, ran.stderr)
            self.assertNotIn("Traceback", ran.stderr)
        for binary in (os.path.join(self.holder.name, "absent"), self.data):
            ran = self.run_it(binary)
            self.assertEqual(ran.returncode, 1)
            self.assertIn("make build", ran.stderr)
        self.assertEqual(os.listdir(self.holder.name), ["data"], "nothing was made")
        self.nothing_is_left()


if __name__ == "__main__":
    unittest.main()
