"""From training data to a model: landmarks, sums over samples, conditional embedding operators."""
