"""Stacks of attention layers: their limit is conjectured (the paper's open problem)."""
