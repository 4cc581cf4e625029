"""Predict the categories of papers from their texts and their links."""
