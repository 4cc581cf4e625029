"""Predict the backbone angles of proteins on chains."""
