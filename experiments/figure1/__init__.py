"""Compare kernel belief propagation with discrete, Gaussian, nonparametric and particle belief propagation."""
