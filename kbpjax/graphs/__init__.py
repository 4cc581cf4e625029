"""Graphs as index arrays, and their precomputed tables: plans, forests, colorings, partitions."""
