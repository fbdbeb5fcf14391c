"""Tests of the report; a package, to share the records of `conftest`."""
