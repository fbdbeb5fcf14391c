"""Checks: each one a statistic on a claim, with its null, its power and what it needs."""
