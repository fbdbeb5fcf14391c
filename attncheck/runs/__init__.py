"""A run from its plan to its verdict, and the check of samples made elsewhere."""
