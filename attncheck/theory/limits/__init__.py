"""The infinite-width limit: kernels by Definition 1, and the hierarchical law of Theorem 1."""
