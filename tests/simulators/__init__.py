"""Tests of the simulators; a package, to share the definition and the level of `conftest`."""
