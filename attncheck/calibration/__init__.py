"""Measured false-alarm rates and power of checks."""
