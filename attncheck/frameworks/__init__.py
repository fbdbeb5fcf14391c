"""Inspection of attention layers of PyTorch, flax, keras and equinox, each imported only when needed."""
