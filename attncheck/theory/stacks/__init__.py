"""Stacks of attention layers: the paper's open problem. What is said of their limit is a conjecture.

`attncheck.theory.stacks.distance` computes how far finite width is from it, and `attncheck.theory.stacks.rate` how fast
that falls.
"""
