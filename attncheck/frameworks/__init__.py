"""Layers of frameworks, inspected: what a module is at initialisation, read off its own forward.

A framework is imported where a module of it is inspected, and nowhere else.
"""
