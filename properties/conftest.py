"""Whatever runs here is attncheck's: say in the header what is examined."""

from __future__ import annotations

import pytest

from attncheck.pytest_plugin import engage


def pytest_sessionstart(session: pytest.Session) -> None:
    engage(session.config)
