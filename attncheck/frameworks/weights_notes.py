"""Notes on attention weights: map, mask, scale, and biases of scores by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.text import first_few, listed
from attncheck.frameworks.effective import AttentionCall
from attncheck.frameworks.forward import (
    AMONG_HEADS,
    AXES,
    BACKWARD,
    OFF_BY_ONE,
    OTHER,
    TILED,
    Formula,
    Forward,
    added_mask,
    centred,
    visible,
)
from attncheck.frameworks.notes import NOTE, WRONG, Note, asks, wrong
from attncheck.layers.parts.position_bias import alibi_slopes

# If hidden scores are below this value, their weights are smaller than rounding errors in single precision.
_FAINT = -16.0
# Relative tolerance within which a bias of scores is a function of the distance, and smallest bias that is not
# rounding.
_FITTED, _NO_BIAS = 2e-2, 1e-3
# Base of rotary positions below which most angles are large.
_LEAST_BASE = 50.0
# Minimum number of distances for a bias that is linear in the distance; two distances would fit any slope.
_FEWEST = 3


def about_weights(
    forward: Forward, formula: Formula, call: AttentionCall, derivation: str = "", maps: int = 1
) -> list[Note]:
    """Return notes on the formula of attention weights.

    `forward` and `formula` describe the formula that was fitted to `call`, for users and in numbers. `derivation` is a
    text on how the weights derive from a known formula, if they do. `maps` is the number of attention maps that share
    queries, keys or values.
    """
    length = call.query.shape[2]
    hidden = _idle(_visible(forward, formula, length)) if forward.known else []
    infinite = [i for i in np.flatnonzero(~np.isfinite(call.weights).all(axis=(0, 1, 3))) if i not in hidden]
    notes = [wrong(f"attention weights are NaN or infinite at positions {listed(infinite)}")] if infinite else []
    if not forward.known and any(np.abs(call.weights.sum(axes) - 1).max() < _NO_BIAS for axes in (0, (0, 1))):
        return [wrong("softmax over an axis that is neither keys, queries nor heads, such as the batch")]
    if derivation:
        return notes or [wrong(derivation)]
    if not forward.known:
        return notes or [asks(f"the attention weights are {forward}")]
    notes += [*_about_map(forward), *_about_mask(forward, formula, length, maps), *_about_scores(forward, formula)]
    if forward.rotary_base is not None and forward.rotary_base <= _LEAST_BASE:
        text = f"rotary positions have base {forward.rotary_base:g}: are their exponents multiples of 2/head_dim?"
        notes.append(asks(text, "rotary_base"))
    if formula.groups == TILED and maps == 1:
        kv, number = call.key.shape[1], call.query.shape[1]
        notes.append(tiled_heads(kv, number))
    return notes


def tiled_heads(kv: int, number: int) -> Note:
    """Report that `number` query heads use `kv` key and value heads in turn (tiled), not in blocks (repeated)."""
    of = ", ".join(str(h % kv) for h in range(number))
    blocks = ", ".join(str(h // (number // kv)) for h in range(number))
    return asks(f"KV heads are tiled ({of}), not repeated ({blocks})")


def _about_map(forward: Forward) -> Iterator[Note]:
    if forward.map == AMONG_HEADS:
        shape = "(batch, positions, heads, head_dim)"
        yield wrong(f"attends over the heads of one position, not over positions: queries are {shape}")
    elif forward.map in AXES and forward.map != "softmax":
        yield wrong(forward.map)
    elif forward.map != "softmax":
        yield asks(f"the attention map is {forward.map}, not softmax", "map")


def _about_mask(forward: Forward, formula: Formula, length: int, maps: int) -> Iterator[Note]:
    support, inverted = _visible(forward, formula, length), forward.mask == BACKWARD[1]
    if inverted:
        yield wrong("the causal mask is inverted: positions see only later ones, and not themselves")
    yield from _about_hidden(support)
    differ = formula.shown is not None and formula.shown.ndim == 3
    if formula.shown is not None and differ:
        by_map = np.split(formula.shown, maps)
        same = all(np.array_equal(mask, masks[0]) for masks in by_map for mask in masks)
        yield wrong("heads have different masks") if not same else asks("attention maps have different masks")
    if forward.mask == OFF_BY_ONE or _sees_next(support, forward.mask):
        yield wrong("position i sees i + 1: the causal mask is off by one")
    elif differ:
        return
    elif support[0].any() and np.array_equal(support[1:], np.tri(len(support), k=-1, dtype=bool)[1:]):
        yield asks("positions see only earlier ones, and not themselves: is the causal mask off by one?", "mask")
    elif later := _past_a_gap(support):
        yield wrong(f"the mask is causal, except that {first_few(f'position {i} sees {j}' for i, j in later)}")
    elif forward.mask == BACKWARD[0]:
        text = f"the mask is {forward.mask}, so that positions see later ones and no earlier ones: is it transposed?"
        yield asks(text, "mask")
    elif forward.mask not in ("none", "causal") and not inverted:
        yield Note(f"the mask is neither none nor causal: {forward.mask}")


def _past_a_gap(support: BoolArray) -> list[tuple[int, int]]:
    """Return the pairs (i, j) for which query i sees position j, but not all positions before j.

    The list is empty unless every query sees itself and all earlier positions. Masks with a visible prefix, or with
    blocks of positions that see each other, have no such pairs.
    """
    support = support[:, : len(support)]
    if not support[np.tril_indices(len(support))].all():
        return []
    return [(int(i), int(j)) for i, j in zip(*np.nonzero(support), strict=True) if not support[i, :j].all()]


def _sees_next(support: BoolArray, mask: str) -> bool:
    """Return whether, under a mask without a name, each position sees the next one, but none after that."""
    at = np.arange(len(support) - 1)
    return bool(mask == OTHER and support[at, at + 1].all() and not np.triu(support, 2).any())


def _visible(forward: Forward, formula: Formula, length: int) -> BoolArray:
    """Return which keys are visible to any head, as booleans (queries, keys)."""
    support = visible(forward.mask, length, length) if formula.shown is None else formula.shown
    return support if support.ndim == 2 else np.asarray(support.any(axis=0))


def _idle(support: BoolArray) -> list[int]:
    """Return the positions that attend to nothing."""
    return [int(i) for i in np.flatnonzero(~support.any(axis=1))]


def _about_hidden(support: BoolArray) -> Iterator[Note]:
    """Report positions that attend to nothing, or that nothing attends to."""
    of = f", of 0 to {len(support) - 1}"
    idle, ignored = _idle(support), np.flatnonzero(~support.any(axis=0))
    if idle:
        one = len(idle) == 1
        which = f"{'position' if one else 'positions'} {listed(idle)} {'attends' if one else 'attend'}"
        yield wrong(f"{which} to nothing{of}")
    if len(ignored):
        yield Note(f"nothing attends to {'position' if len(ignored) == 1 else 'positions'} {listed(ignored)}{of}")


def _about_scores(forward: Forward, formula: Formula) -> Iterator[Note]:
    """Report parts of scores that may be mistakes; the text of `forward` names all others."""
    if formula.fill is not None:
        text = f"scores hidden by the {forward.mask} mask are {round(formula.fill, 3) or 0.0:g}, not -inf"
        yield Note(text, WRONG if formula.fill > _FAINT else NOTE)
    if formula.factors:
        yield own_scales(formula.factors)
    if formula.bias is not None:
        masked = added_mask(formula.bias, -_FAINT) if forward.mask == "none" else None
        yield from [masked] if masked else about_slopes(formula.bias)


def own_scales(factors: Iterable[float]) -> Note:
    """Report scales of scores that differ between heads."""
    return asks(f"heads have their own scales of scores: {', '.join(f'{factor:.3g}' for factor in factors)}", "scale")


def about_slopes(bias: FloatArray) -> Iterator[Note]:
    """Report a bias of scores, (heads, positions, positions), that is linear in the distance, but not ALiBi's.

    The bias is known up to a constant per row.

    Examples
    --------
    >>> distance = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    >>> print(*about_slopes(0.25 * distance[None]), *about_slopes(-0.5 * distance[None]), sep=", ")
    scores grow with distance, slopes -0.25: the sign of ALiBi is wrong, slopes by distance are 0.5; ALiBi's are 0.00391
    """
    slopes, _, distances = by_distance(bias)
    if not slopes or distances < _FEWEST:  # two distances alone would fit any slope
        return
    falls, alibi = [-slope for slope in slopes], alibi_slopes(len(slopes))
    text = ", ".join(dict.fromkeys(f"{fall:.3g}" for fall in falls))
    if min(falls) < 0.0:
        yield wrong(f"scores grow with distance, slopes {text}: the sign of ALiBi is wrong")
    elif not np.allclose(falls, alibi, rtol=_FITTED):
        yield asks(f"slopes by distance are {text}; ALiBi's are {', '.join(f'{slope:.3g}' for slope in alibi)}")


def by_distance(bias: FloatArray) -> tuple[list[float], list[FloatArray], int]:
    """Return the slope of a bias in each head, its values as a function of i - j, and the number of distances |i - j|.

    The bias has shape (heads, positions, positions) and is known up to a constant per row. The list of slopes is empty
    if a head's bias is not linear in the distance, and the list of values if a head's bias is no function of i - j.
    """
    support = (bias != 0.0) | np.eye(bias.shape[-1], dtype=bool)
    behind = np.subtract.outer(np.arange(bias.shape[1]), np.arange(bias.shape[2]))
    slopes, tables = list[float](), list[FloatArray]()
    for head, use in zip(bias, support, strict=True):
        rows, columns = np.nonzero(use)
        steps, index = np.unique(behind[rows, columns], return_inverse=True)
        design = np.hstack([np.eye(len(steps))[index], np.eye(len(head))[rows]])
        table = np.linalg.lstsq(design, head[use], rcond=None)[0]
        b, d = (_less_mean(a, use) for a in (head, np.abs(behind)))
        slope = float(np.sum(b * d)) / max(float(np.sum(d**2)), 1e-300)
        small = _FITTED * max(float(np.abs(b).max()), _NO_BIAS)
        slopes += [slope] if np.abs(b - slope * d).max() <= small else []
        tables += [table[: len(steps)]] if np.abs(head[use] - design @ table).max() <= small else []
    distances = len(np.unique(np.abs(behind)[support.any(axis=0)]))
    heads = len(bias)
    return slopes if len(slopes) == heads else [], tables if len(tables) == heads else [], distances


def _less_mean(a: FloatArray, use: BoolArray) -> FloatArray:
    return np.where(use, centred(a, use, -1), 0.0)
