"""Denoise one large image with several processes."""
