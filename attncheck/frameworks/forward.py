"""Exact formula of attention: mask, scale and map."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attncheck.frameworks.binding import FloatArray
from attncheck.frameworks.notes import Note

Booleans = NDArray[np.bool_]

#: Axis of the weights, (B, H, L, L), that each map normalises.
AXES = {"softmax": -1, "softmax over the query axis": -2, "softmax over the heads": -3}
LINEAR, RELU, SIGMOID, OTHER = "linear", "relu", "sigmoid", "other"
#: Attention among the heads of each position.
AMONG_HEADS = "softmax among the heads of a position"
REPEATED, TILED = "repeated", "tiled"
# Largest condition number at which weights can be solved for.
_CONDITION = 1e3
# Relative tolerance for a bias that takes two values.
_TWO_NUMBERS = 1e-2
# With fewer positions, any bias by distance takes two values.
_FEWEST = 3
_BY_ANY_NUMBER = ("causal", "anticausal")


@dataclasses.dataclass(frozen=True)
class Formula:
    """Formula of the attention weights.

    Attributes
    ----------
    map : str
        One of `AXES`, `LINEAR`, `RELU`, `SIGMOID`, or `OTHER`.
    mask : str
        As in `attncheck.frameworks.probe.Forward`.
    factor : float
        Factor of the products of queries and keys.
    offset : float
        Added to scores before a sigmoid.
    bias : ndarray, (H, L, L'), or None
        Bias of the scores by position.
    groups : {"repeated", "tiled"}
        Which of G key heads query head h uses: h // (H/G), or h % G.
    shown : ndarray, (L, L'), or None
        Visible keys per query, for a mask without a name.
    """

    map: str = "softmax"
    mask: str = "none"
    factor: float = 1.0
    offset: float = 0.0
    groups: str = REPEATED
    bias: FloatArray | None = None
    shown: Booleans | None = None

    def weights(self, scores: FloatArray, visible: Booleans) -> FloatArray:
        """Return weights (B, H, L, L') from q·k and visible pairs."""
        p = scores * self.factor + (self.offset if self.bias is None else self.bias)
        if self.map in AXES:
            p = np.where(visible, p, -np.inf)
            with np.errstate(invalid="ignore"):
                a = np.exp(p - p.max(AXES[self.map], keepdims=True))
                return np.asarray(np.nan_to_num(a / a.sum(AXES[self.map], keepdims=True)))
        if self.map == SIGMOID:
            p = 1 / (1 + np.exp(-p))
        return np.asarray((np.maximum(p, 0) if self.map == RELU else p) * visible)

    def heads(self, query: FloatArray, key: FloatArray, value: FloatArray) -> FloatArray:
        """Return the result of attention, (B, H, L, d)."""
        if self.map == AMONG_HEADS:
            turned = (a.swapaxes(1, 2) for a in (query, key, value))
            return dataclasses.replace(self, map="softmax").heads(*turned).swapaxes(1, 2)
        number = query.shape[1]
        scores = query @ spread(key, number, self.groups).swapaxes(-1, -2)
        shown = visible(self.mask, *scores.shape[-2:]) if self.shown is None else self.shown
        weights = self.weights(scores, shown)
        return np.asarray(weights @ spread(value, number, self.groups))


def spread(a: FloatArray, heads: int, groups: str) -> FloatArray:
    """Return G heads expanded to H, (B, H, L, d)."""
    of = np.arange(heads)
    return a[:, of % a.shape[1] if groups == TILED else of // (heads // a.shape[1])]


def visible(mask: str, queries: int, keys: int) -> Booleans:
    """Return the visible keys per query, (L, L'), as booleans.

    Examples
    --------
    >>> visible("window of 2", 3, 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    behind = np.arange(queries)[:, None] - np.arange(keys)
    rules: dict[str, Booleans] = {
        "none": np.ones_like(behind, dtype=np.bool_),
        "causal": behind >= 0,
        "anticausal": behind <= 0,
        "strictly causal": behind > 0,
        "strictly anticausal": behind < 0,
    }
    if mask in rules:
        return rules[mask]
    kind, _, size = mask.partition(" of ")
    w = int(size)
    return np.asarray((behind >= 0) & (behind < w) if kind == "window" else np.abs(behind) < w)


def masks(queries: int) -> Iterator[str]:
    """Yield all named masks, the common ones first."""
    yield from ("none", "causal", "anticausal", "strictly causal", "strictly anticausal")
    for kind in ("window", "two-sided window"):
        yield from (f"{kind} of {w}" for w in range(1, queries))


def scales(head_dim: int, width: int, heads: int, positions: int) -> dict[str, float]:
    """Return known score factors by name, the correct one first."""
    return {
        "1/sqrt(head_dim)": head_dim**-0.5,
        "1/head_dim": 1 / head_dim,
        "1": 1.0,
        "1/sqrt(width)": width**-0.5,
        "1/width": 1 / width,
        "sqrt(head_dim)": head_dim**0.5,
        "1/sqrt(heads)": heads**-0.5,
        "1/sqrt(positions)": positions**-0.5,
        "head_dim**(-1/4)": head_dim**-0.25,
    }


def named(factor: float, known: dict[str, float], tolerance: float) -> str:
    """Return the first name of a factor, or its digits.

    Examples
    --------
    >>> known = scales(head_dim=16, width=64, heads=4, positions=5)
    >>> named(0.25, known, 1e-6), named(0.3, known, 1e-6)
    ('1/sqrt(head_dim)', '0.3')
    """
    return next(iter(names_of(factor, known, tolerance)), f"{factor:.3g}")


def names_of(factor: float, known: dict[str, float], tolerance: float) -> tuple[str, ...]:
    """Return all names of a factor.

    Examples
    --------
    >>> names_of(0.5, scales(head_dim=16, width=64, heads=4, positions=5), 1e-6)
    ('1/sqrt(heads)', 'head_dim**(-1/4)')
    """
    return tuple(name for name, value in known.items() if abs(factor / value - 1) <= tolerance)


def candidates(known: dict[str, float], grouped: bool) -> Iterator[Formula]:
    """Yield the common formulas, the correct one first."""
    factors = [known[name] for name in list(known)[:4]]
    for groups in (REPEATED, TILED) if grouped else (REPEATED,):
        for factor, mask in itertools.product(factors, ("none", "causal")):
            yield Formula(mask=mask, factor=factor, groups=groups)


def solved(after: FloatArray, value: FloatArray, output: FloatArray, groups: str) -> tuple[FloatArray, float] | None:
    """Solve for the attention weights, (B, H, L, L'), by least squares; return them with the relative residual.

    Attention adds Σ_a Σ_j A^a_ij v^{a,j} W_O,a to the outputs: for each i, one equation per neuron for H·L'
    weights. Shapes: `after` (B, L, m), `value` (B, G, L', d), `output` (H·d, m). Returns None if the weights are
    not unique.
    """
    d = value.shape[-1]
    blocks = output.reshape(-1, d, output.shape[-1])
    parts = spread(value, len(blocks), groups) @ blocks  # (B, H, L', m)
    batch, heads, keys, neurons = parts.shape
    flat = parts.reshape(batch, heads * keys, neurons)
    if heads * keys > neurons or not np.all(np.linalg.cond(flat) < _CONDITION):
        return None
    weights = after @ np.linalg.pinv(flat)
    left = float(np.abs(weights @ flat - after).max() / max(np.abs(after).max(), 1e-300))
    return weights.reshape(batch, -1, heads, keys).swapaxes(1, 2), left


def plot(weights: FloatArray, scores: FloatArray, tolerance: float, groups: str) -> Formula:
    """Return the formula that maps products q·k to weights, both (B, H, L, L').

    Examples
    --------
    >>> scores = np.random.default_rng(0).standard_normal((3, 2, 5, 5))
    >>> right = Formula("softmax over the query axis", "causal", 0.25)
    >>> found = plot(right.weights(scores, visible("causal", 5, 5)), scores, 1e-9, REPEATED)
    >>> found.map, found.mask, round(found.factor, 9)
    ('softmax over the query axis', 'causal', 0.25)
    """
    shown = np.abs(weights).max(axis=(0, 1)) > tolerance
    mask = next((m for m in masks(shown.shape[0]) if np.array_equal(visible(m, *shown.shape), shown)), OTHER)
    for name, axis in AXES.items():
        sums = weights.sum(axis)
        some = np.broadcast_to(shown, weights.shape).any(axis)
        if np.abs(np.where(some, sums - 1, 0)).max() <= 10 * tolerance:
            found = _normalised(name, mask, weights, scores, shown, tolerance, groups)
            return dataclasses.replace(found, shown=shown) if mask == OTHER else found
    if mask == OTHER:
        return Formula(OTHER, mask, groups=groups)
    for name in (LINEAR, RELU, SIGMOID):
        formula = _fitted(name, mask, weights, scores, shown, groups)
        if formula and np.abs(formula.weights(scores, shown) - weights).max() <= 10 * tolerance * np.abs(weights).max():
            return formula
    return Formula(OTHER, mask, groups=groups)


def _normalised(
    name: str,
    mask: str,
    weights: FloatArray,
    scores: FloatArray,
    shown: Booleans,
    tolerance: float,
    groups: str,
) -> Formula:
    """Return the formula of a softmax, from the logarithms of its weights."""
    axis = AXES[name]
    # Logarithms of tiny weights are mostly rounding error.
    use = np.broadcast_to(shown, weights.shape) & (weights > 10 * tolerance)
    logs = _centred(np.log(np.where(use, weights, 1.0)), use, axis) * use
    p = _centred(scores, use, axis) * use
    power = float(np.sum(p**2))
    factor = float(np.sum(p * logs)) / power if power else math.nan
    found = Formula(name, mask, factor, groups=groups)
    if np.abs(found.weights(scores, shown) - weights).max() <= 10 * tolerance:
        return found
    # A bias by position is constant over the batch, so variation over the batch gives the factor.
    use = np.broadcast_to(use.all(axis=0), use.shape)
    logs = _centred(np.log(np.maximum(weights, tolerance**2)), use, axis)
    p = _centred(scores, use, axis)
    change = np.where(use, p - p.mean(axis=0), 0.0)
    factor = float(np.sum(change * logs)) / max(float(np.sum(change**2)), 1e-300)
    bias = np.average(logs - factor * p, axis=0, weights=np.maximum(weights, tolerance**2) ** 2)
    return dataclasses.replace(found, factor=factor, bias=np.where(shown, bias, 0.0))


def added_mask(bias: FloatArray, most: float = math.inf) -> Note | None:
    """Return a note if a bias of scores, (H, L, L), is a mask added as numbers.

    Masks that lower scores by more than `most` are effective.

    Examples
    --------
    >>> str(added_mask(np.tri(5)[None]))
    'the causal mask is added as 0 and 1: positions that it should hide get a score lower by 1'
    """
    names = (name for name in masks(bias.shape[1]) if name != "none" and not name.endswith(" of 1"))
    for mask in names if bias.shape[1] >= _FEWEST else ():
        seen = visible(mask, *bias.shape[1:])
        both = seen.any(axis=1) & ~seen.all(axis=1)
        shown, hidden = (np.mean(bias[:, both], axis=-1, where=which[both]) for which in (seen, ~seen))
        less = float(np.mean(shown - hidden))
        left = bias - less * seen
        off = float(np.abs(left - left.mean(axis=-1, keepdims=True)).max())
        one = abs(abs(less) - 1.0) <= _TWO_NUMBERS
        if off > _TWO_NUMBERS * abs(less) or not (one or (mask in _BY_ANY_NUMBER and 0.0 < less < most)):
            continue
        numbers = ("0 and 1" if less > 0 else "1 and 0") if one else "a number"
        change = f"{'lower' if less > 0 else 'higher'} by {abs(less):.3g}"
        text = f"the {mask} mask is added as {numbers}: positions that it should hide get a score {change}"
        return Note(text, blames=True)
    return None


def _centred(a: FloatArray, use: Booleans, axis: int) -> FloatArray:
    mean = np.sum(a, axis, where=use, keepdims=True) / np.maximum(np.sum(use, axis, keepdims=True), 1)
    return np.asarray(a - mean)


def _fitted(
    name: str, mask: str, weights: FloatArray, scores: FloatArray, shown: Booleans, groups: str
) -> Formula | None:
    """Return the formula of a map that does not normalise."""
    use = np.broadcast_to(shown, weights.shape)
    if name == SIGMOID:
        if not np.all((weights > 0) & (weights < 1), where=use):
            return None
        logits = np.log(weights[use] / (1 - weights[use]))
        slope, offset = np.polyfit(scores[use], logits, 1)
        return Formula(name, mask, float(slope), float(offset), groups)
    p = scores[use] if name == LINEAR else np.maximum(scores[use], 0.0)
    power = float(np.sum(p**2))
    return Formula(name, mask, float(np.sum(p * weights[use])) / power, groups=groups) if power else None
