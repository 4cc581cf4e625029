"""Choice of hyperparameters: scores, losses, and descent through inference."""
