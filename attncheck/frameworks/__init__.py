"""Inspection of attention layers of PyTorch, flax, keras and equinox. Frameworks are imported only when needed."""
