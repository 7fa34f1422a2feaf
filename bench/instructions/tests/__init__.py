"""Tests of `make bench-array`: `make bench-test` runs them."""
