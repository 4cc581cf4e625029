"""Denoise images with learned bandwidths, against total variation, non-local means and BM3D."""
