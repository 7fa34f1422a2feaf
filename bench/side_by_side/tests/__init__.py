"""Tests of `make bench`: `make bench-test` runs them."""
