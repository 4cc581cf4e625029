"""Experiments of the paper, each run as `python -m experiments.NAME`."""
