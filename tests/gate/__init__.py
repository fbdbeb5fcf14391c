"""Tests of the gate; a package, to share its hand-made records."""
