"""Test items (one property on one case), and the looks that decide their verdicts."""
