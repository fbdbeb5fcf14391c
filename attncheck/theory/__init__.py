"""Computed laws: limits, rates, and the conjectured limit of stacks."""
