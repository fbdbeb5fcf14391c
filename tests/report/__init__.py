"""Tests of the report; a package, so that they share the records of `conftest`."""
