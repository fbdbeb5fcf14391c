"""Whatever runs here is attncheck's: say in the header what is examined, and leave its own theory out unless asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.pytest_plugin import engage

_THEORY = Path(__file__).parent / "theory"


def pytest_sessionstart(session: pytest.Session) -> None:
    engage(session.config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the statements out of a run of the folder above; pytest never asks about a path that it was given."""
    return True if collection_path == _THEORY and not config.option.attncheck_theory else None
