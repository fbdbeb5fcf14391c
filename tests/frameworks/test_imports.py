"""Frameworks are imported only to inspect their layers."""

from __future__ import annotations

import subprocess
import sys

FRAMEWORKS = ("torch", "jax", "flax", "keras", "equinox", "transformers")


def test_frameworks_are_not_imported_with_attncheck() -> None:
    code = f"import sys, attncheck; attncheck.inspect; print({set(FRAMEWORKS)} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "set()\n"
