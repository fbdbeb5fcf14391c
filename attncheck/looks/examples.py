"""Random layers and programs, drawn by hypothesis before a run."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attncheck._lib.signals import interrupts_deferred
from attncheck._lib.streams import seed_sequence, stream
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.features import features_of
from attncheck.layers.inputs import NORMS
from attncheck.layers.parts import PARTS
from attncheck.layers.program import ProgramCase

# Number of candidates that are drawn per chosen layer.
_CANDIDATES = 8
# Maximum numbers of positions, heads and neurons of a small layer. Larger layers are expensive and reveal little more,
# so only one layer in `_LARGE` may be larger.
_POSITIONS, _HEADS, _NEURONS, _LARGE = 6, 4, 16, 5


@functools.lru_cache(maxsize=4)
def random_layers(count: int, run_seed: int, fixed: tuple[AttentionLayer, ...] = ()) -> tuple[AttentionLayer, ...]:
    """Return random layers for all properties.

    They are chosen such that, together with the `fixed` layers, they cover many pairs of traits.

    Examples
    --------
    >>> layers = random_layers(12, run_seed=0)
    >>> any(layer.mask == "causal" and layer.num_kv_heads for layer in layers)
    True
    """
    from attncheck.strategies import layers  # hypothesis is slow to import

    large = count // _LARGE
    small = draw_examples(layers(max_width=_NEURONS).filter(_small), _CANDIDATES * count, run_seed, "small layers")
    chosen = _choose(small, count - large, fixed)
    chosen = _choose(draw_examples(layers(), _CANDIDATES * large, run_seed, "layers"), large, chosen)
    return tuple(chosen[len(fixed) :])


def layers_with_parts(run_seed: int) -> list[AttentionLayer]:
    """Return one small layer for each part that the paper's layer lacks, such as a window; its values are random.

    Examples
    --------
    >>> [layer.window for layer in layers_with_parts(0) if layer.window]
    [1]
    """
    plain = AttentionLayer(width=8, seq_len=4, num_heads=2)
    options: dict[str, Sequence[Mapping[str, Any]]] = {"norm": [{"norm": name} for name in NORMS]}
    options |= {part.name: part.values(plain) for part in PARTS}
    chosen = {name: int(stream(run_seed, name, role="parts").integers(len(values))) for name, values in options.items()}
    return [plain.replace(**options[name][index]) for name, index in chosen.items()]


@functools.lru_cache(maxsize=4)
def random_programs(count: int, run_seed: int) -> tuple[ProgramCase, ...]:
    """Return random programs at width 1: first those with scores, about two thirds, then those without."""
    from attncheck.strategies import program_cases

    without = -(-count // 3)
    scoring = draw_examples(program_cases((1,), min_scores=1), count - without, run_seed, "programs with scores")
    return (*scoring, *draw_examples(program_cases((1,), max_scores=0), without, run_seed, "programs"))


def traits(layer: AttentionLayer) -> frozenset[str]:
    """Return the names of a layer's traits: features, attention map, activation, and fewer neurons than positions.

    Examples
    --------
    >>> sorted(traits(AttentionLayer(width=2, seq_len=3, mask="causal")))
    ['causal', 'clip', 'few neurons', 'softmax']
    """
    few = ["few neurons"] if layer.seq_len > layer.width else []
    return frozenset([*features_of(layer), str(layer.attention_map), layer.activation, *few])


def _small(layer: AttentionLayer) -> bool:
    return layer.seq_len <= _POSITIONS and layer.num_heads <= _HEADS


def _pairs(layer: AttentionLayer) -> set[tuple[str, ...]]:
    """Return the single traits and the pairs of traits of a layer, as tuples of names."""
    names = sorted(traits(layer))
    return {*itertools.combinations(names, 1), *itertools.combinations(names, 2)}


def _choose(candidates: Sequence[AttentionLayer], count: int, chosen: Sequence[AttentionLayer]) -> list[AttentionLayer]:
    """Return the layers `chosen`, extended by `count` of the candidates.

    Candidates are added one after another, each time the one that adds most new pairs of traits.
    """
    selection = list(chosen)
    visited = set[tuple[str, ...]]().union(*map(_pairs, selection))
    rest = {layer: _pairs(layer) for layer in candidates}
    for _ in range(min(count, len(rest))):
        best = max(rest, key=lambda layer: len(rest[layer] - visited))
        visited |= rest.pop(best)
        selection.append(best)
    return selection


class _SearchEnded(BaseException):
    """Ends a hypothesis search, which would treat an Exception as a failure."""


def draw_examples(strategy: Any, count: int, run_seed: int, key: str) -> list[Any]:
    """Return at most `count` distinct layers or programs drawn from a strategy, as determined by seed and key.

    All are drawn before the first look; otherwise the strategy could search for cases that fail by chance.

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

    from attncheck.looks.choices import BACKEND

    examples: dict[Any, None] = {}

    # Set all settings here: hypothesis's CI profile would ignore the seed, one health check depends on the clock, and
    # another one would fail because only about one layer in four is small.
    @settings(
        max_examples=5 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=False,
        backend=BACKEND,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @seed(int(seed_sequence(run_seed, key, role="examples").generate_state(1)[0]))
    @given(strategy)
    def collect(layer: Any) -> None:
        examples.setdefault(layer)
        if len(examples) == count:
            raise _SearchEnded

    with interrupts_deferred(), _callbacks_restored(), contextlib.suppress(_SearchEnded):
        collect()
    return list(examples)


@contextlib.contextmanager
def _callbacks_restored() -> Iterator[None]:
    """Restore the garbage-collection callbacks at the end, because hypothesis adds one that would swallow a Ctrl-C.

    Callers defer Ctrl-C while this callback is installed.
    """
    callbacks = list(gc.callbacks)
    try:
        yield
    finally:
        gc.callbacks[:] = callbacks
