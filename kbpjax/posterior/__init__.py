"""What is observed, and what follows: evidence, beliefs, and summaries of them."""
