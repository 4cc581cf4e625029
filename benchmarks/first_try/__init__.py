"""Benchmark: problems solved by one call of `fit` and one of `infer`, without options."""
