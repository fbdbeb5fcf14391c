"""Computed laws of layers and programs: limits, rates, and the conjectured limit of stacks."""
