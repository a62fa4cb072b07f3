"""Gradients of single examples on PyTorch models: their norms, and sums in which each is clipped."""
