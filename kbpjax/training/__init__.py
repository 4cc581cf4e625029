"""Potentials trained through the inference that uses them."""
