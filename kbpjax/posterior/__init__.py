"""Evidence, beliefs, and posterior summaries."""
