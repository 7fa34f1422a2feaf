"""`make bench-array`: six small drives as one, each mechanism beside none. See docs/benchmarks.md."""
