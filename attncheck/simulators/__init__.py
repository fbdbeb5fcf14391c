"""Draws at finite width, with literal matrices or from the same law without them; `attncheck.methods` chooses."""
