"""The version of attncheck, and where the files that come with it are."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

#: The folder of the package.
PACKAGE = Path(__file__).resolve().parents[1]
