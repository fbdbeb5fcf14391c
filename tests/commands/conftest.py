"""What tests of commands share."""

from __future__ import annotations


def refused(said: str) -> str:
    """Return an error after asserting that it is one line with its origin first."""
    assert said.startswith("attncheck: ")
    assert said.count("\n") == 1
    assert said.endswith("\n")
    assert "Traceback" not in said
    return said
