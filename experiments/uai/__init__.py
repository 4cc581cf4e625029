"""Public discrete models with cycles: loopy methods beside exact answers."""
