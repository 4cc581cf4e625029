"""Learn the messages of expectation propagation with kernels, just in time."""
