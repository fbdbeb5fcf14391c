"""Statements of attncheck's own theory: they validate its formulas, not a simulator.

Run them with ``pytest properties/theory``.
"""
