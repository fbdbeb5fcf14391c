"""Diagnosis of violations: estimates, likely causes, smaller layers with the same fault, and messages."""
