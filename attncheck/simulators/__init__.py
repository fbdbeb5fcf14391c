"""Draws at finite width."""
