"""Tests of the paper's experiments; a package, to share the tiny run of `conftest`."""
