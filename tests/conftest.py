"""What tests of several folders share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that a test starts be interrupted, also where a shell runs the tests in the background.

    A process that ignores SIGINT hands that on to those it starts; one that handles it does not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
