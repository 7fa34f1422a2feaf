"""Parts of `make bench` by themselves: what is judged, read and refused."""

import argparse
import os
import sys
import tempfile
import unittest
from unittest import mock

from side_by_side import flags, load, report, rows_get, servers, summary
from side_by_side.children import Children, Failed, run
from side_by_side.measure import Bar, Table
from side_by_side.run import Run

HERE = os.sched_getaffinity(0)


def table_of(ours, theirs):
    """A table of two servers, with such rates in its rounds."""
    table = Table("t", "title", 1)
    for key, rates in (("ours", ours), ("redis", theirs)):
        for rate in rates or []:
            table.take(key, key, "GET", {"per_second": rate})
    return table


def judged(bar, ours, theirs):
    table = table_of(ours, theirs)
    table.judge(
        bar,
        lambda ours, redis: ours["per_second"] / redis["per_second"],
        ["ours", "redis"],
        ("per_second", "ours", ["redis"]),
    )
    return bar.plain()


class Bars(unittest.TestCase):
    def test_ratios_are_made_within_their_rounds(self):
        told = judged(Bar(1, "x", "y", 0.9, True), [50, 100, 300], [100, 100, 100])
        self.assertEqual(told["values"], [0.5, 1.0, 3.0])
        self.assertEqual((told["median"], told["is_met"], told["ours"]), (1.0, True, 100))

    def test_both_kinds_of_bars_can_be_missed(self):
        self.assertFalse(judged(Bar(1, "x", "y", 1, True), [99], [100])["is_met"])
        self.assertTrue(judged(Bar(1, "x", "y", 1, True), [100], [100])["is_met"])
        self.assertFalse(judged(Bar(1, "x", "y", 1, False), [101], [100])["is_met"])
        self.assertTrue(judged(Bar(1, "x", "y", 1, False), [100], [100])["is_met"])

    def test_rounding_meets_no_bar_and_hides_none_that_is_missed(self):
        for ours, words, is_met in [(9949, "0.99", False), (9961, "0.996", False), (10_040, "1.004", True)]:
            told = judged(Bar(1, "x", "y", 1, True), [ours], [10_000])
            self.assertEqual((report.values(summary.of_bar(told)), told["is_met"]), (words, is_met))

    def test_a_bar_without_its_peer_is_not_judged(self):
        told = summary.of_bar(judged(Bar(1, "x", "y", 1, True), [100], None))
        self.assertEqual((told["is_met"], told["values"], told["lacks"]), (None, [], "redis"))
        self.assertEqual(report.verdict(told), "not judged: redis not there")

    def test_rounds_that_do_not_match_are_an_error(self):
        with self.assertRaises(ValueError):
            judged(Bar(1, "x", "y", 1, True), [1, 2], [1])

    def test_turns_alternate(self):
        seen, table = [], Table("t", "title", 1)

        def step(key):
            return key, key, "x", lambda: seen.append(key) or {"per_second": 1}

        table.alternate(3, [step("a"), step("b")])
        self.assertEqual(seen, ["a", "b", "b", "a", "a", "b"])
        self.assertEqual(len(table.measures["a"].rounds), 3)


class Programs(unittest.TestCase):
    WORDS = (
        "overwrite    :    1549.557 micros/op 38624 ops/sec 3.338 seconds 128936 operations;   38.3 MB/s\n"
        "Percentiles: P50: 1398.93 P75: 1785.03 P99: 6001.62 P99.9: 20220.58 P99.99: 90379.30\n"
        "rocksdb.wal.bytes COUNT : 134709432\n"
    )

    def test_db_bench_is_read(self):
        sample = load.of_db_bench(self.WORDS, "overwrite")
        self.assertEqual(
            sample,
            {
                "count": 128936,
                "per_second": 38624.0,
                "p50_us": 1398.93,
                "p99_us": 6001.62,
                "p99_9_us": 20220.58,
            },
        )
        self.assertEqual(load.counter(self.WORDS, "rocksdb.wal.bytes"), 134709432)

    def test_db_bench_that_finds_less_or_says_nothing_is_an_error(self):
        found = "readrandom : 9 micros/op 9 ops/sec 3 seconds 20 operations; 53 MB/s ({} of 20 found)\n"
        self.assertEqual(load.of_db_bench(found.format(20), "readrandom")["count"], 20)
        for words in (found.format(19), found.format(20) + "(3 of 4 found)", "", self.WORDS):
            with self.assertRaises(Failed):
                load.of_db_bench(words, "readrandom")
        with self.assertRaises(Failed):
            load.counter(self.WORDS, "rocksdb.flush.write.bytes")

    def test_a_load_that_did_nothing_is_an_error(self):
        told = {
            "tenants": [{"name": "load", "rows": [{"count": 0, "per_second": 0, "mean_us": 0}]}],
            "server": None,
        }
        with self.assertRaises(Failed):
            load.of_report(told, "load")

    def test_reads_that_cannot_come_from_the_drive_are_an_error(self):
        self.assertEqual(rows_get.from_flash({"read_bytes": 1024}, 1024), {"read_bytes": 1024})
        with self.assertRaises(Failed):
            rows_get.from_flash({"read_bytes": 1023}, 1024)

    def test_data_that_fits_too_well_into_memory_is_refused_with_the_keys_that_would_do(self):
        context = mock.Mock(is_quick=False)
        held = 90 << 20
        with self.assertRaisesRegex(Failed, "only 0.7 times .* about --keys ([0-9]+) would do") as refused:
            rows_get.prove_much(context, held, 60_000, 1024)
        enough = int(str(refused.exception).split("--keys ")[1].split()[0])
        grown = held + rows_get.KEY_MEMORY_BYTES * (enough - 60_000)
        rows_get.prove_much(context, grown, enough, 1024)

    def test_commands_that_fail_or_hang_end_the_run(self):
        self.assertEqual(run("echo", ["echo", "yes"], HERE, 10).words, "yes\n")
        with self.assertRaisesRegex(Failed, "status 3(.|\n)*out\n+err"):
            run("it", ["sh", "-c", "echo out; echo err >&2; exit 3"], HERE, 10)
        with self.assertRaisesRegex(Failed, "more than 0 s"):
            run("it", ["sleep", "20"], HERE, 0.2)

    def test_a_server_that_ends_by_itself_is_found_out(self):
        with tempfile.TemporaryDirectory() as directory:
            children = Children()
            child = children.start(
                "it", ["sh", "-c", "echo last words; exit 7"], HERE, os.path.join(directory, "log")
            )
            child.process.wait(10)
            with self.assertRaisesRegex(Failed, "it ended by itself, status 7: last words"):
                children.check()

    def test_a_file_is_laid_with_blank_ends_and_no_hole(self):
        with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(__file__))) as directory:
            path = os.path.join(directory, "file")
            servers.lay(path, 8 << 20)
            with open(path, "rb") as file:
                data = file.read()
            self.assertEqual((len(data), os.stat(path).st_blocks * 512 >= 8 << 20), (8 << 20, True))
            mib = 1 << 20
            self.assertEqual((data[:mib].count(0), data[-mib:].count(0)), (mib, mib))
            self.assertLess(data[3 * mib : 4 * mib].count(0), mib // 100)
            servers.read_over(path)  # It ends at the end of the file, and leaves it as it is.
            with open(path, "rb") as file:
                self.assertEqual(file.read(), data)


class Words(unittest.TestCase):
    def test_what_cannot_be_measured_is_refused_in_words(self):
        for right in ("1", "12"):
            self.assertEqual(flags.count(right), int(right))
        for right in ("1", "0.5"):
            self.assertEqual(flags.seconds(right), float(right))
        for read, wrong in (
            (flags.count, ("", "0", "-1", "1.5", "x", "²")),
            (flags.seconds, ("", "0", "-1", "x", "nan", "inf")),
        ):
            for text in wrong:
                with self.assertRaisesRegex(argparse.ArgumentTypeError, f"{text}: .* above 0 is wanted"):
                    read(text)

    def test_a_place_that_cannot_be_written_is_refused_and_looking_makes_nothing(self):
        with tempfile.TemporaryDirectory() as directory:
            file, deep = os.path.join(directory, "file"), os.path.join(directory, "a", "b")
            with open(file, "w", encoding="utf-8"):
                pass
            flags.write_into(directory)
            flags.write_into(deep)
            for wrong in (file, os.path.join(file, "under"), "/proc/nothing"):
                with self.assertRaises(OSError):
                    flags.write_into(wrong)
            self.assertEqual(os.listdir(directory), ["file"])


class Falls(unittest.TestCase):
    def run_that(self, command, raises, directory):
        """The words by which a run ends, one of whose servers is this command, and that fails so."""
        said = mock.Mock(binary=sys.executable, dir=directory, out=directory, rounds=1, quick=True)
        ended = unittest.TestCase.assertRaises(self, (SystemExit, OSError))
        with ended, Run.of(said) as run:
            run.children.start("peer", command, HERE, os.path.join(run.directory, "log"))
            raise raises
        return str(ended.exception)

    def test_a_server_that_dies_is_named_whatever_noticed_it(self):
        dies = ["sh", "-c", "echo last words; sleep 0.2; kill -9 $$"]
        with tempfile.TemporaryDirectory() as directory:
            for noticed in (Failed("a connection was lost"), ConnectionResetError(), OSError("page")):
                ended = self.run_that(dies, noticed, directory)
                self.assertEqual(ended, "bench: peer ended by itself, status -9 (SIGKILL): last words")
            lives = ["sleep", "60"]
            self.assertEqual(self.run_that(lives, Failed("it failed"), directory), "bench: it failed")
            self.assertEqual(self.run_that(lives, OSError("another"), directory), "another")
            self.assertEqual(os.listdir(directory), [])


class Forgetful(servers.Memcached):
    """A memcached that has let go of so many keys."""

    def __init__(self, evictions):
        self.evictions, self.is_stopped = evictions, False

    def statistic(self, name):
        return {"evictions": self.evictions}[name]

    def stop(self):
        self.is_stopped = True


class LeftOut(unittest.TestCase):
    def test_a_server_that_forgets_keys_is_stopped_and_said_to_be_left_out(self):
        context = mock.Mock()
        for evictions, stays in ((0, True), (3, False)):
            peer, there = Forgetful(evictions), {"ours": object()}
            there["memcached"] = peer
            rows_get.leave_out_forgetful(context, there)
            self.assertEqual(("memcached" in there, peer.is_stopped), (stays, not stays))
        context.leave_out.assert_called_once_with("memcached", "what it forgot while it was loaded")

    def test_the_pages_tell_what_was_absent_from_what_was_left_out(self):
        lacks = {
            "fio": {"package": "fio", "purpose": "the drive's limits"},
            "memcached": {"package": None, "purpose": "what it forgot"},
        }
        absent = "Not there, and so not compared: fio (package fio), for the drive's limits."
        left_out = "Left out: memcached, for what it forgot."
        self.assertEqual(report.missing_words({"missing": lacks}), ["", absent, "", left_out])
        self.assertEqual(report.missing_words({"missing": {}}), [])


class Markers(unittest.TestCase):
    TEXT = "a\n<!-- bench:begin x -->\nold\n<!-- bench:end x -->\nb\n"

    def test_only_what_stands_between_is_replaced(self):
        self.assertEqual(report.splice(self.TEXT, "x", "new"), self.TEXT.replace("old", "new"))

    def test_markers_that_are_not_there_once_are_an_error(self):
        for text in ("", self.TEXT.replace("end", "END"), self.TEXT * 2):
            with self.assertRaises(Failed):
                report.splice(text, "x", "new")
