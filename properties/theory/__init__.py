"""Statements of attncheck's own theory: they validate its formulas, and examine nothing of a simulator.

``pytest properties/theory`` runs them, ``--attncheck-theory`` adds them to a run of the properties.
"""
