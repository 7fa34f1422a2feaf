"""`make bench`: Plimsoll side by side with its peers, on this machine, in one run. See docs/benchmarks.md."""
