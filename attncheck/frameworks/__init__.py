"""Inspection of PyTorch, flax, keras and equinox layers; each framework is imported only when needed."""
