"""Notes on the scale of scores, which distinguish conventions from mistakes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from attncheck.frameworks.forward import AXES, OTHER, RIGHT, Forward
from attncheck.frameworks.initialiser import MatrixStatistics
from attncheck.frameworks.inputs import PLURALS
from attncheck.frameworks.laws import Z
from attncheck.frameworks.notes import ASKS, NOTE, Note, asks, wrong

# A factor this close to 1 counts as 1.
_GAIN = 1e-2
# Relative tolerance within which 1/factor² is a whole number.
_EQUAL = 1e-3
# Scores that are multiplied by less than this, times 1/√head_dim, have no effect.
_NOTHING = 1e-6
# Standard deviation of scores above which attention is nearly one-hot.
_LARGE = 8.0
# A ratio of standard deviations identifies a scale if its relative error is below this. Otherwise, the scale is merely
# possible.
_SURE = 0.1
#: Expectation that declares a scale.
DECLARED = "scale"
# Answers of `_folded`, as parts of a sentence.
_YES, _MAYBE = "is", "may be"


def about_scale(
    forward: Forward,
    gains: Mapping[str, float],
    weights: Mapping[str, MatrixStatistics],
    head_dim: int,
    attributed: bool,
) -> Iterator[Note]:
    """Yield notes on a scale other than 1/√head_dim; common conventions are not reported as errors.

    `gains` are the factors of queries and keys relative to their parameters; `attributed` tells whether all such
    factors are known.
    """
    yield from _about_size(forward, weights, head_dim)
    known = forward.known and (forward.map in AXES or forward.map == "linear")
    if not known or forward.scale in (RIGHT, OTHER) or math.isnan(forward.factor):
        if forward.scale == RIGHT and _folded(weights, head_dim) == _YES:
            text = "W_Q has W_K's scale times 1/sqrt(head_dim): scores seem to be scaled twice, by 1/head_dim in all"
            yield wrong(text)
        return
    names = {forward.scale, *forward.ties}
    factors = {round(gain, 2) for gain in gains.values()}
    for role, gain in gains.items():
        if abs(gain - 1) > _GAIN:
            cause = f"{PLURALS[role]} are multiplied by {gain:.4g} before attention"
            yield Note(f"{cause}: scores times {forward.scales} in all")
    if "1" in names and (folded := _folded(weights, head_dim)):
        text = f"scores times 1: 1/sqrt(head_dim) {folded} in W_Q's initialisation"
        yield Note(text, NOTE if folded == _YES else ASKS, (DECLARED,))
    elif "1/head_dim" in names:
        others = "".join(f" = {name}" for name in (forward.scale, *forward.ties) if name != "1/head_dim")
        text = f"scores times 1/head_dim{others}, as in maximal-update parametrisation, not 1/sqrt(head_dim)"
        yield asks(text, DECLARED)
    elif forward.positions != "none" and len(factors) == 1 and factors != {1.0}:
        yield asks(f"scores times {forward.scales}: rotary positions with a factor, as in YaRN", DECLARED)
    elif not attributed:
        beside = "in addition to any factor in queries and keys"
        if root := _whole_root(forward.factor):
            yield asks(f"scores times 1/sqrt({root}), where head_dim is {head_dim}, {beside}", DECLARED)
        else:
            yield Note(f"scores times {forward.scales}, {beside}")
    elif abs(forward.factor) * head_dim**0.5 < _NOTHING:
        yield wrong("attention weights do not depend on queries and keys: are all keys hidden?", DECLARED)
    else:
        yield wrong(f"scores times {forward.scales}, not {RIGHT}", DECLARED)


def _whole_root(factor: float) -> int:
    """Return m if a factor is 1/√m for a whole number m ≥ 2, else 0.

    Examples
    --------
    >>> _whole_root(0.25), _whole_root(-0.25), _whole_root(0.3)
    (16, 0, 0)
    """
    m = factor**-2 if factor > 0.0 else 0.0
    return round(m) if m > 1.5 and abs(m - round(m)) <= _EQUAL * m else 0


def _about_size(forward: Forward, weights: Mapping[str, MatrixStatistics], head_dim: int) -> Iterator[Note]:
    """Report scores so large that attention is nearly one-hot."""
    if not {"query", "key"} <= weights.keys() or not forward.known:
        return
    std = weights["query"].std * weights["key"].std * abs(forward.factor) * head_dim**0.5
    if std > _LARGE:
        yield Note(f"scores have a standard deviation of {std:.3g}: attention is nearly one-hot at initialisation")


def _folded(weights: Mapping[str, MatrixStatistics], head_dim: int) -> str:
    """Return whether W_Q, compared with W_K, is initialised with an additional factor 1/√head_dim.

    The result is `_YES`, or `_MAYBE` if the standard deviations are not known precisely enough, or an empty string if
    it is not.
    """
    if not {"query", "key"} <= weights.keys() or head_dim == 1:
        return ""
    q, k = weights["query"], weights["key"]
    error = Z * math.hypot(*((m.high - m.low) / (2 * Z * max(m.std, 1e-300)) for m in (q, k)))
    if not set(q.laws) & set(k.laws) or k.std == 0 or abs(q.std / k.std / head_dim**-0.5 - 1) > error:
        return ""
    return _YES if error < _SURE else _MAYBE
