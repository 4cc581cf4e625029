"""What the experiments share: command line, results, tables, timing, data sets."""
