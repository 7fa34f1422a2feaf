"""docs/benchmarks.md against the summary that it was made of, and what callgrind and perf say against what
is understood of it."""

import json
import os
import unittest

from instructions import counts, pages
from instructions.__main__ import LOADS
from side_by_side.children import Failed
from side_by_side.report import between
from side_by_side.run import ROOT

ANNOTATED = """--------------------------------------------------------------------------------
Ir
--------------------------------------------------------------------------------
1,000 (100.0%)  PROGRAM TOTALS

--------------------------------------------------------------------------------
Ir             file:function
--------------------------------------------------------------------------------
400 (40.00%)  crates/resp/src/parser.rs:plimsoll_resp::request::parser::Parser::parse [/plimsoll]
250 (25.00%)  ./string/memmove.S:__memcpy_avx_unaligned_erms [/libc.so.6]
200 (20.00%)  library/core/src/slice.rs:<plimsoll_flash::Partition as plimsoll_kv::Device>::execute
100 (10.00%)  alloc.c:mi_theap_malloc_aligned [/plimsoll]
 50 ( 5.00%)  ???:something else
"""


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Pages(unittest.TestCase):
    def test_the_page_is_of_the_summary(self):
        told = json.loads(read(pages.SUMMARY))
        text = read(pages.PAGE)
        start, stop = between(text, pages.MARKER)
        self.assertEqual(text[start:stop], "\n".join(pages.block(told)))
        self.assertEqual([each["name"] for each in told["loads"]], [load[0] for load in LOADS])


class Counts(unittest.TestCase):
    def test_every_function_is_somebodys_once(self):
        found = counts.functions(ANNOTATED)
        self.assertEqual(sum(found.values()), 1000)
        parts = counts.by_part(found, 10)
        there = {part: instructions for part, instructions in parts.items() if instructions}
        wanted = {"RESP": 40, "copies, zeros": 25, "engine": 20, "memory": 10, counts.OTHERS: 5}
        self.assertEqual(there, wanted)

    def test_no_function_is_a_failure(self):
        with self.assertRaises(Failed):
            counts.functions("file:function\n")

    def test_what_the_processor_counts(self):
        said = "1200,,instructions:u,5000,100.00,,\n300,,instructions:k,5000,100.00,,\n"
        self.assertEqual(counts.of_perf(said, 100), [12, 3])
        none = "1200,,instructions:u,1,1,,\n0,,instructions:k,1,1,,\n"
        self.assertEqual(counts.of_perf(none, 100), [12, None])
        unknown = "<not supported>,,instructions:u,0,100.00,,\n"
        self.assertEqual(counts.of_perf(unknown, 100), [None, None])
