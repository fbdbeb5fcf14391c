"""Whatever runs here is attncheck's: say in the header what is examined."""

from __future__ import annotations

from pathlib import Path

import pytest

from attncheck.pytest_plugin import deselect_theory, engage


def pytest_sessionstart(session: pytest.Session) -> None:
    engage(session.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    deselect_theory(config, items, Path(__file__).parent)
