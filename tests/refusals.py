"""The body of all tables of refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attncheck._lib.errors import InputError


def refused(call: Callable[[], object], pattern: str) -> str:
    """Assert that a call is refused on one line with a remedy, and return the message."""
    with pytest.raises(InputError, match=pattern) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message.partition("; ")[2]) >= len("pass 1")
    return message
