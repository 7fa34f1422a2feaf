"""`make bench`: Plimsoll beside its peers, on this machine, in one run. See docs/benchmarks.md."""
