"""Stacks of attention layers: the paper's open problem. What is said of their limit is a conjecture.

`AttentionStack` describes a stack, `attncheck.simulate` draws it and `attncheck.limit` gives the conjectured law;
`attncheck.stacks.distance` computes how far finite width is from it, and `attncheck.stacks.rate` how fast that falls.
"""

from __future__ import annotations

from attncheck.stacks.stack import AttentionStack

__all__ = ["AttentionStack"]
