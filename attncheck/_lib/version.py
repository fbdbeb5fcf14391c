"""The version of attncheck and the folder of the package."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

#: The folder of the package.
PACKAGE = Path(__file__).resolve().parents[1]
