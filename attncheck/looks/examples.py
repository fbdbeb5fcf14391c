"""Random layers and programs, drawn by hypothesis before a run."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from attncheck._lib.signals import interrupts_held
from attncheck._lib.streams import seed_sequence


class _SearchEnded(BaseException):
    """Ends a hypothesis search, which would treat an Exception as a failure."""


def draw_examples(strategy: Any, count: int, run_seed: int, key: str) -> list[Any]:
    """Return at most `count` distinct layers or programs from a strategy, determined by seed and key.

    All are drawn before the first look, so that the search cannot look for cases that fail by chance.

    Examples
    --------
    >>> from attncheck.strategies import layers
    >>> first = draw_examples(layers(max_entries=500), 3, run_seed=0, key="scores")
    >>> len(first), first == draw_examples(layers(max_entries=500), 3, run_seed=0, key="scores")
    (3, True)
    """
    if count < 1:
        return []
    from hypothesis import HealthCheck, Phase, given, seed, settings

    found: dict[Any, None] = {}

    # Explicit settings: hypothesis's CI profile would ignore the seed, and the health check for slow generation
    # depends on a clock.
    @settings(
        max_examples=5 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @seed(int(seed_sequence(run_seed, key, role="examples").generate_state(1)[0]))
    @given(strategy)
    def collect(layer: Any) -> None:
        found.setdefault(layer)
        if len(found) == count:
            raise _SearchEnded

    with interrupts_held(), _callbacks_kept(), contextlib.suppress(_SearchEnded):
        collect()
    return list(found)


@contextlib.contextmanager
def _callbacks_kept() -> Iterator[None]:
    """Restore garbage-collection callbacks: hypothesis adds one that would swallow a Ctrl-C.

    Callers defer Ctrl-C while hypothesis's callback is installed.
    """
    kept = list(gc.callbacks)
    try:
        yield
    finally:
        gc.callbacks[:] = kept
