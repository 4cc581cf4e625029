"""Hyperparameter selection: closed-form scores, losses, and gradient descent through inference."""
