"""Predict depth from a single image."""
