"""Where the committed results come from, and how many trials each method had."""
