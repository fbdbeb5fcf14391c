"""Checks: each one a statistic for a claim, with its null, its power and the data it needs."""
