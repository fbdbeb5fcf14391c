"""Draws at finite width: literal matrices, and ways to draw the same law without them.

Each is a function of (layer, size, coordinates, rng) that returns `Draws`; `attncheck.methods` chooses between them.
"""
