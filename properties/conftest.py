"""Report the examined simulator in the header, and leave out attncheck's own theory unless it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.pytest_plugin import engage

_THEORY = Path(__file__).parent / "theory"


def pytest_sessionstart(session: pytest.Session) -> None:
    engage(session.config)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave the statements out of runs of the parent folder; pytest never asks about paths given to it."""
    return True if collection_path == _THEORY else None
