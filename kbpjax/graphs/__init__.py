"""Graphs as index arrays, and what is computed of them once: plans, forests, colorings, partitions."""
