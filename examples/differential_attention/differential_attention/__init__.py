"""Differential attention, and its check for attncheck."""

from differential_attention.simulator import simulate

__all__ = ["simulate"]
