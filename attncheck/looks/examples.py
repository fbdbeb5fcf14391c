"""What a run is about: anchors, and random layers and programs that hypothesis draws before the run."""

from __future__ import annotations

import contextlib
from typing import Any

from attncheck._lib.streams import seed_sequence
from attncheck.checks.programs import RATE_PROPERTIES
from attncheck.checks.registry import PROGRAM_PROPERTIES
from attncheck.layers.case import EXACT_WIDTHS, RATE_WIDTHS
from attncheck.layers.program import ProgramCase
from attncheck.programs import EXAMPLES


class _Enough(BaseException):
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
            raise _Enough

    with contextlib.suppress(_Enough):
        collect()
    return list(found)


def widths_of(name: str) -> tuple[int, ...]:
    """Return the widths at which a property of programs is examined."""
    return RATE_WIDTHS if name in RATE_PROPERTIES else EXACT_WIDTHS


def program_anchors(name: str) -> list[ProgramCase]:
    """Return the example programs at the widths of a property, those with scores first."""
    cases = [ProgramCase.of(write(), widths_of(name)) for write in EXAMPLES.values()]
    with_scores = [case for case in cases if case.scores]
    about_scores = name in ("program_scores", "theorem1")
    return with_scores if about_scores else with_scores + [case for case in cases if not case.scores]


def strategy_of(name: str) -> Any:
    """Return the strategy that the random layers or programs of a property are drawn from."""
    from attncheck.strategies import layers, program_cases  # hypothesis is slow to import

    if name not in PROGRAM_PROPERTIES:
        return layers()
    # Fact 1 is about programs without scores; what is said of scores takes some.
    least, most = {"fact1": (0, 0), "netsor": (0, 3)}.get(name, (1, 3))
    return program_cases(widths_of(name), min_scores=least, max_scores=most)
