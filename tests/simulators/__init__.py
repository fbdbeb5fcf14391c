"""Tests of the simulators; a package, so that they share the definition and the level of `conftest`."""
