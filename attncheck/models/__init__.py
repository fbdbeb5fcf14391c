"""Inspection of whole models at initialisation: every attention module, and every parameter."""
