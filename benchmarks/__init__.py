"""Benchmarks of the hot paths, one module each, all run by `python -m benchmarks` (or `make bench`).

Each gives rows of (what, measured, raw limit): the limit is what the machine does for the bare bytes in the
same run, so that a figure means something on another machine too.
"""
