"""Search for the factors of matrix products among a module's parameters.

A parameter block with the column span of W_Q W_Kᵀ is W_Q, one with its row span W_K, up to the score scale.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from attncheck.frameworks.binding import FloatArray

# Tolerance for equal blocks and products: relative, and in unit roundoffs.
_ALIKE, _ROUNDED = 1e-3, 16.0
# Limit on the blocks tried in pairs.
_PAIRS = 64
# Fewer entries can agree by chance.
_FEWEST = 16


# Packing of heads in rows: consecutive; strided over all rows or each third; or with queries, keys and values
# alternating.
_WAYS = ("consecutive", "strided", "strided thirds", "thirds")


@dataclasses.dataclass(frozen=True)
class HeadBlock:
    """Location of a head's block."""

    name: str
    turned: bool
    way: str
    index: int

    def take(self, parameters: Mapping[str, FloatArray], head_dim: int) -> FloatArray:
        """Return the block, (d, n)."""
        block: FloatArray = _cut(parameters[self.name], self.turned, self.way, head_dim)[self.index]
        return block


#: Blocks of one parameter, (number, d, n), with the location of the first.
Blocks = tuple[HeadBlock, FloatArray]


@dataclasses.dataclass(frozen=True)
class Factors:
    """Blocks of each head, and the factors of their products.

    Attributes
    ----------
    places : mapping of tuple of HeadBlock
        By role, one per head; without "query" and "key" if unknown.
    factor : float
        Factor of the scores; NaN if unknown.
    gain : float
        Factor of the outputs.
    head_dim : int
    inputs : float
        Factor of the inputs.
    """

    places: Mapping[str, tuple[HeadBlock, ...]]
    factor: float
    gain: float
    head_dim: int
    inputs: float = 1.0

    def of_inputs(self, factor: float, tolerance: float) -> Factors:
        """Return these factors with the gain attributed to the inputs, if the scores are consistent with that."""
        times = self.gain
        if abs(times - 1) <= tolerance or abs(self.factor / times**2 / factor - 1) > tolerance:
            return self
        return dataclasses.replace(self, factor=self.factor / times**2, gain=1.0, inputs=times)

    def matrices(self, parameters: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """Return W_Q, W_K, W_V, (n, H, d), and W_O, (H·d, m)."""
        flat = _flat(parameters)
        taken = {r: np.array([p.take(flat, self.head_dim) for p in of]) for r, of in self.places.items()}
        made = {role: self.inputs * blocks.transpose(2, 0, 1) for role, blocks in taken.items() if role != "output"}
        return made | {"output": self.gain * taken["output"].reshape(-1, taken["output"].shape[-1])}


def _flat(parameters: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return all parameters as matrices, in every common layout of heads."""
    found = {name: array for name, array in parameters.items() if array.ndim == 2}
    for name, array in parameters.items():
        if array.ndim == 3:
            found[f"{name}, heads between"] = array.reshape(len(array), -1)
            found[f"{name}, heads before rows"] = array.reshape(-1, array.shape[-1])
            found[f"{name}, heads before"] = array.swapaxes(0, 1).reshape(array.shape[1], -1)
    return found


def _cut(parameter: FloatArray, turned: bool, way: str, d: int) -> FloatArray:
    """Return the blocks of d rows, (number, d, n), if any."""
    matrix = parameter.T if turned else parameter
    rows, n = matrix.shape
    if rows % d or (way != "consecutive" and (d == 1 or rows == d)) or ("thirds" in way and rows % (3 * d)):
        return np.zeros((0, d, n))
    if "strided" in way:
        parts = 3 if "thirds" in way else 1
        return matrix.reshape(parts, d, -1, n).swapaxes(1, 2).reshape(-1, d, n)
    if way == "thirds":
        return matrix.reshape(-1, d, 3, n).swapaxes(1, 2).reshape(-1, d, n)
    return matrix.reshape(-1, d, n)


def _blocks(parameters: Mapping[str, FloatArray], d: int, n: int) -> Iterator[Blocks]:
    """Yield all blocks of d rows and n columns."""
    for name, parameter in _flat(parameters).items():
        if not np.ptp(parameter):
            continue
        for turned, way in itertools.product((False, True), _WAYS):
            if parameter.shape[0 if turned else 1] == n and len(found := _cut(parameter, turned, way, d)):
                yield HeadBlock(name, turned, way, 0), found


def factors_of(
    scores: FloatArray | None,
    values: FloatArray,
    parameters: Mapping[str, FloatArray],
    head_dim: int,
    width: int,
    precision: float,
    centred: bool,
) -> Factors | None:
    """Return the parameter blocks with these products, or None.

    Parameters
    ----------
    scores : ndarray, (H, m, m), or None
        Leading part of W_Q W_Kᵀ per head.
    values : ndarray, (H, m, k)
        First m rows of W_V W_O per head.
    parameters : mapping of ndarray
    head_dim, width : int
    precision : float
    centred : bool
        Whether a layer norm removed the row means.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> q, k, v, o = rng.standard_normal((4, 8, 8))
    >>> products = [np.array([a[:4].T @ b[:4], a[4:].T @ b[4:]]) for a, b in ((q, k), (v, o))]
    >>> held = {"packed": np.concatenate([q, k, v]), "o": o.T}
    >>> found = factors_of(0.5 * products[0], products[1], held, 4, 8, 2**-24, centred=False)
    >>> round(found.factor, 9), [place.index for place in found.places["key"]]
    (0.5, [2, 3])
    """
    if head_dim < 1:  # all products are 0
        return None
    tolerance = max(_ALIKE, _ROUNDED * precision)
    inputs = list(_blocks(parameters, head_dim, width))
    m = values.shape[1]
    outputs = [(place, blocks[..., :m]) for place, blocks in _blocks(parameters, head_dim, values.shape[-1])]
    values = values[..., :m]
    seen = [(place, _less_mean(blocks, centred)[..., :m]) for place, blocks in inputs]
    valued = _pairs(values, seen, outputs, tolerance)
    scored = [] if scores is None else _pairs(scores, seen, seen, tolerance)
    if valued is None or scored is None:
        return None
    places = {
        "query": tuple(one for one, _, _ in scored),
        "key": tuple(other for _, other, _ in scored),
        "value": tuple(one for one, _, _ in valued),
        "output": tuple(other for _, other, _ in valued),
    }
    factor, gain = (float(np.mean([each for _, _, each in of])) if of else math.nan for of in (scored, valued))
    return Factors({role: of for role, of in places.items() if of}, factor, gain, head_dim)


def _pairs(
    products: FloatArray, left: Sequence[Blocks], right: Sequence[Blocks], tolerance: float
) -> list[tuple[HeadBlock, HeadBlock, float]] | None:
    """Return each head's two blocks with the given product, or None."""
    pairs = [pair for each in products if (pair := _pair(each, left, right, tolerance)) is not None]
    factors = np.array([factor for _, _, factor in pairs])
    if len(pairs) < len(products) or np.ptp(factors) > tolerance * abs(factors[0]):
        return None
    return pairs


def _less_mean(blocks: FloatArray, centred: bool) -> FloatArray:
    return blocks - blocks.mean(axis=-1, keepdims=True) if centred else blocks


def gain_of(matrix: FloatArray, parameters: Mapping[str, FloatArray], precision: float, centred: bool) -> float | None:
    """Return the factor of a matrix, (n, d), relative to a parameter block, or None.

    Examples
    --------
    >>> weight = np.random.default_rng(0).standard_normal((8, 8))
    >>> gain_of(0.25 * weight[4:].T, {"q": weight}, 2**-24, centred=False)
    0.25
    """
    size = float(np.sum(matrix**2))
    if matrix.size < _FEWEST:
        return None
    for _, blocks in _blocks(parameters, matrix.shape[1], matrix.shape[0]):
        some = _less_mean(blocks, centred)
        products, squares = np.tensordot(some, matrix.T, 2), np.sum(some**2, axis=(1, 2))
        # Squared sine of the angle between the two.
        apart = 1 - products**2 / np.maximum(squares * size, 1e-300)
        best = int(np.argmin(apart))
        if apart[best] <= max(_ALIKE, _ROUNDED * precision) ** 2:
            return float(products[best] / squares[best])
    return None


def _pair(
    product: FloatArray,
    left: Sequence[Blocks],
    right: Sequence[Blocks],
    tolerance: float,
) -> tuple[HeadBlock, HeadBlock, float] | None:
    """Return the two blocks whose product is a multiple of the given one, (m, k), with the factor."""
    u, s, w = np.linalg.svd(product, full_matrices=False)
    if s[0] == 0.0:
        return None
    if not (left and right):
        return None
    # With as many neurons as rows, every basis spans the whole space.
    d = left[0][1].shape[1]
    lefts, rights = _spanning(left, u[:, :d].T, tolerance), _spanning(right, w[:d], tolerance)
    for (one, a), (other, b) in itertools.product(lefts[:_PAIRS], rights[:_PAIRS]):
        made = a.T @ b
        factor = float(np.sum(made * product) / np.sum(made**2))
        if np.abs(factor * made - product).max() <= tolerance * np.abs(product).max():
            return one, other, factor
    return None


def _spanning(blocks: Sequence[Blocks], basis: FloatArray, tolerance: float) -> list[tuple[HeadBlock, FloatArray]]:
    """Return the blocks with the row span of an orthonormal basis, (rank, m)."""
    found = []
    for place, some in blocks:
        size = np.sum(some**2, axis=(1, 2))
        left = size - np.sum((some @ basis.T) ** 2, axis=(1, 2))
        for i in np.flatnonzero((left <= (10 * tolerance) ** 2 * size) & (size > 0)):
            found.append((dataclasses.replace(place, index=int(i)), some[i]))
    return found
