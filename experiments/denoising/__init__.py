"""Denoise images with operators learned from one image and a noisy copy of it."""
