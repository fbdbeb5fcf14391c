"""Samples produced elsewhere: read from a file, and held to the exact law and the limit without fresh draws."""
