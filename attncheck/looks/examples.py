"""Random layers and programs that hypothesis draws before a run."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from attncheck._lib.streams import seed_sequence


class _SearchEnded(BaseException):
    """Ends a search of hypothesis, which takes what is an Exception for a failure to look into."""


def draw_examples(strategy: Any, count: int, run_seed: int, key: str) -> list[Any]:
    """Return at most `count` different layers or programs from a strategy, the same for the same seed and key.

    hypothesis draws configurations only, never random numbers of a simulation, and draws them all before
    the first look: what is planned is known, and a search cannot turn into a hunt for an unlucky seed.

    Parameters
    ----------
    strategy : hypothesis strategy of AttentionLayer or ProgramCase
    count : int
        A hard cap; fewer if the strategy has fewer values.
    run_seed : int
    key : str
        Keys the examples, usually the name of a property.

    Returns
    -------
    list of what the strategy gives

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

    # Explicit settings, because hypothesis's CI profile would derandomise and ignore the seed. The health
    # check for slow generation reads a clock: a busy machine must not change which layers are drawn.
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

    with _callbacks_kept(), contextlib.suppress(_SearchEnded):
        collect()
    return list(found)


@contextlib.contextmanager
def _callbacks_kept() -> Iterator[None]:
    """Leave callbacks of garbage collection as they were: what is raised in one is lost, a Ctrl-C too.

    hypothesis has one from its first example on, to take such pauses off its deadlines.
    """
    kept = list(gc.callbacks)
    try:
        yield
    finally:
        gc.callbacks[:] = kept
