"""Measured false-alarm rates of checks."""
