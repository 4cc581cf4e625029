"""Shared modules of the experiments: command line, results, tables, search, timing, data sets."""
