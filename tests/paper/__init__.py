"""Tests of the paper's experiments; a package, so that they share the tiny run of `conftest`."""
