"""Diagnosis of violations: estimates, likely causes, and messages."""
