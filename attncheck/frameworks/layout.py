"""Identification of the axes of attention cores (batch, heads, positions) by changing inputs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import refuse
from attncheck.frameworks.adapter import PASS_CALL, NoAttentionCall
from attncheck.frameworks.forward import centred
from attncheck.frameworks.laws import correlation
from attncheck.frameworks.trace import AttentionCore

#: Names of axes: batch, heads and positions; for grouped queries also key heads and queries per key head.
BATCH, HEADS, POSITIONS, GROUPS, QUERIES = "bhlgr"
#: ``cores(inputs, count)`` calls the module on inputs, (batch, positions, n), with the results of its first `count`
#: attention cores replaced by zeros, and returns all cores.
Cores = Callable[[FloatArray, int], list[AttentionCore]]
_ROLES = ("query", "key", "value")
_BATCH = 2
_SWAPPED = str.maketrans("bl", "lb")
# Let r be the correlation of weights and scores. Another layout replaces the usual one if 1 - r is above `_ROUGHLY` for
# the usual layout, and if 1 - r for the other layout is below `_CLEARLY` times that number.
_CLEARLY, _ROUGHLY = 0.1, 1e-4
# An order of axes is better than another one if the share of the changes that it explains is larger by more than this.
_CLEAR = 1e-6


@dataclasses.dataclass(frozen=True)
class CoreLayout:
    """Order of the axes of queries, keys, values and weights in a module's attention cores.

    Attributes
    ----------
    query, key, value, result : str
        Order of the axes before the last one, such as "bhl"; `result` is the order in results and weights.
    num_heads, kv_heads : int
        Numbers of heads of all parallel cores together.
    parallel : int
        Number of cores that are independent of each other and act as heads of one attention.
    first_axis : bool
        Whether attention runs over the first axis of the inputs.
    among_heads : bool
        Whether attention runs over the heads of each position.
    turned : bool
        Whether the first factor of the scores contains the keys.
    extra : int
        Number of keys beyond the positions.
    leading : int
        Number of these keys that come before the positions.
    """

    query: str
    key: str
    value: str
    result: str
    num_heads: int
    kv_heads: int
    parallel: int = 1
    first_axis: bool = False
    among_heads: bool = False
    turned: bool = False
    extra: int = 0
    leading: int = 0

    def standard(self, cores: Sequence[AttentionCore], batch: int, length: int) -> dict[str, FloatArray]:
        """Return q, k, v and weights of parallel cores, (batch, heads, positions, ·), by name; extra keys come last."""
        parts: dict[str, list[FloatArray]] = {}
        keys = length + self.extra
        for core in cores:
            query, key = (core.key, core.query) if self.turned else (core.query, core.key)
            axes = {BATCH: batch, POSITIONS: length}
            specs = {
                "query": (query, self.query, axes, self._of("query")),
                "key": (key, self.key, axes | {POSITIONS: keys}, self._of("key")),
                "value": (core.value, self.value, axes | {POSITIONS: keys}, self._of("key")),
                "weights": (core.weights, self.result, axes, self._of("query")),
            }
            for name, (array, order, sizes, heads) in specs.items():
                result = _standard(array, order, self._sizes(sizes, heads))
                if self.leading and name != "query":
                    result = np.roll(result, -self.leading, axis=3 if name == "weights" else 2)
                parts.setdefault(name, []).append(result)
        return {name: np.concatenate(arrays, axis=1) for name, arrays in parts.items()}

    def own(self, heads: FloatArray, member: int, like: FloatArray) -> FloatArray:
        """Convert results of attention, (batch, heads, positions, e), to the module's layout.

        Only the heads of the parallel core with index `member` are returned; `like` are the weights of this core.
        """
        number = self._of("query")
        part = heads[:, member * number : (member + 1) * number]
        sizes = self._sizes({BATCH: part.shape[0], POSITIONS: part.shape[2]}, number)
        order = self.result
        split = part.reshape([sizes[a] for a in _sorted_axes(order)] + [part.shape[-1]])
        transposed = split.transpose([_sorted_axes(order).index(a) for a in order] + [len(order)])
        return np.asarray(transposed.reshape(*like.shape[:-1], part.shape[-1]))

    def _of(self, role: str) -> int:
        """Return the number of query heads per core if the role is "query", else the number of key heads per core."""
        return (self.num_heads if role == "query" else self.kv_heads) // self.parallel

    def _sizes(self, axes: Mapping[str, int], heads: int) -> dict[str, int]:
        groups = self.kv_heads // self.parallel
        return {**axes, HEADS: heads, GROUPS: groups, QUERIES: max(heads // groups, 1)}


def results(query: str, value: str) -> list[str]:
    """Return possible orders of the axes of weights, the usual one first, given the orders of queries and values.

    Examples
    --------
    >>> results("bhl", "hbl"), results("bgrl", "bhl")
    (['hbl'], ['bgrl', 'bglr'])
    """
    heads = HEADS if HEADS in query else GROUPS
    if query[-1] != HEADS and (query.index(BATCH) < query.index(heads)) != (value.index(BATCH) < value.index(HEADS)):
        query = query.translate(str.maketrans(BATCH + heads, heads + BATCH))
    return [query] + [query.translate(str.maketrans("rl", "lr"))] * (QUERIES in query)


def _sorted_axes(order: str) -> str:
    """Sort the letters of an order of axes: batch, heads (or groups and queries), positions."""
    return BATCH + (HEADS if HEADS in order else GROUPS + QUERIES) + POSITIONS


def _standard(a: FloatArray, order: str, sizes: Mapping[str, int]) -> FloatArray:
    """Transpose an array, whose axes are in the given order, to (batch, heads, positions, ·)."""
    split = a.reshape([sizes[axis] for axis in order] + [a.shape[-1]])
    transposed = split.transpose([order.index(axis) for axis in _sorted_axes(order)] + [len(order)])
    return np.asarray(transposed.reshape(sizes[BATCH], -1, sizes[POSITIONS], a.shape[-1]))


def order_of(
    a: FloatArray, sequence: FloatArray, position: FloatArray, sizes: Mapping[str, int], extra: int = 0
) -> str | None:
    """Find the order of the axes before the last one in an array (..., R, d), from the effects of changed inputs.

    R is the number of rows of a matrix.

    Parameters
    ----------
    a : ndarray, (..., R, d)
        The array for some inputs.
    sequence : ndarray, (..., R, d)
        The array after a change of sequence 1.
    position : ndarray, (..., R, d)
        The array after a change of position 1 in all sequences.
    sizes : mapping of int
        Sizes of batch ("b"), positions ("l") and heads ("h"); for grouped queries also of key heads ("g") and queries
        per key head ("r").
    extra : int
        Number of keys beyond the positions, which may come first.

    Returns
    -------
    order : str or None
        Such as "bhl": batch, heads, positions. None if the sizes fit no order.

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3, 1, 1) + np.zeros((4, 1))  # (B, L, H, d)
    >>> other, later = x.copy(), x.copy()
    >>> other[1], later[:, 1] = -1.0, -1.0
    >>> flat = [each.swapaxes(1, 2).reshape(8, 3, 1) for each in (x, other, later)]
    >>> order_of(*flat, {"b": 2, "l": 3, "h": 4})
    'bhl'
    """
    changes = [np.linalg.norm((array - a).reshape(-1, a.shape[-1]), axis=-1) for array in (sequence, position)]
    shares = [array / max(float(array.sum()), 1e-300) for array in changes]
    best, best_order = -1.0, None
    for order in _orders(sizes):
        if not _matches(order, sizes, a.shape):
            continue
        index = np.indices([sizes[axis] for axis in order]).reshape(len(order), -1)
        batch, positions = (index[order.index(axis)] for axis in "bl")
        clear = float(shares[0][batch == 1].sum()) + max(
            float(shares[1][positions == 1 + leading].sum()) for leading in range(extra + 1)
        )
        if clear > best + _CLEAR:
            best, best_order = clear, order
    return best_order


def _matches(order: str, sizes: Mapping[str, int], shape: tuple[int, ...]) -> bool:
    """Return whether an order of axes fits a shape (..., R, d); R is the size of the last one or two axes together."""
    counts = [sizes[axis] for axis in order]
    last = 2 if QUERIES in order and order[-1] in (QUERIES, POSITIONS) and order[-2] in (QUERIES, POSITIONS) else 1
    return math.prod(counts) == math.prod(shape[:-1]) and math.prod(counts[-last:]) == shape[-2]


def _orders(sizes: Mapping[str, int]) -> list[str]:
    """Return possible orders of axes, the usual ones first."""
    ungrouped = ["bhl", "hbl", "blh", "lbh", "hlb", "lhb"]
    if sizes.get(QUERIES, 1) == 1 or GROUPS not in sizes:
        return ungrouped
    return ungrouped + ["".join(p) for p in itertools.permutations("bglr") if p[-1] in "rl"]


def layout_of(cores: Cores, width: int, length: int) -> CoreLayout:
    """Find the layout of a module's attention cores by changing one sequence, and one position of all sequences.

    ``cores(inputs, count)`` returns the attention cores for inputs (batch, length, width), with the results of the
    first `count` cores replaced by zeros. Raises `NoAttentionCall` without cores, and `InputError` if no axis holds the
    positions, keys do not belong to the inputs, or there is one position.
    """
    if length < 2:
        problem = "must be at least 2, as one position attends to itself alone"
        refuse("positions", length, problem, "pass longer inputs, and masks of their shape")
    batch = _BATCH if length != _BATCH else _BATCH + 1
    rng = np.random.default_rng(0)
    x, redraw = np.clip(np.round(rng.standard_normal((2, batch, length, width)) * 8), -31, 31) / 8
    sequence, position = x.copy(), x.copy()
    sequence[1], position[:, 1] = redraw[1], redraw[:, 1]
    plainly = cores(x, 0)
    if not plainly:
        raise NoAttentionCall
    first, by_sequence, by_position = plainly[0], cores(sequence, 0)[0], cores(position, 0)[0]
    parallel = _parallel(plainly, cores(x, 1))
    query, key = first.query, first.key
    heads = math.prod(query.shape[:-1]) // (batch * length)
    groups = max(1, math.prod(key.shape[:-2]) // (length if query.shape[-2] == batch else batch))
    sizes = {"b": batch, "l": length, "h": heads, "g": groups, "r": max(heads // groups, 1)}
    order = order_of(query, by_sequence.query, by_position.query, sizes)
    if order is None:
        shape, rows = f"{query.shape} for inputs of shape {x.shape}", query.shape[-2]
        if rows > length:
            folded = f", {rows // length} of each, as if heads or windows were folded into them"
            added = ", as if tokens or padding were added inside"
            problem = f"has {rows} rows for {length} positions{added if rows % length else folded}"
            refuse("queries", shape, problem, "inspect the attention module alone, or pass call=lambda module, x: ...")
        problem = f"is the shape of attention's inputs, without an axis of {length} positions"
        some = rows < length and math.prod(query.shape[:-1]) % (batch * length) != 0
        cause = ": attention is called on some positions at a time" if some else ": were windows folded into the batch?"
        refuse("queries", shape, f"{problem}{cause}", PASS_CALL)
    attended = "l" if "r" in order[-2:] else order[-1]
    if attended == "h" and heads == 1:
        problem = "lets each position attend to itself alone: were windows folded into the batch?"
        refuse("queries", f"{query.shape} for inputs of shape {x.shape}", problem, PASS_CALL)
    fixed = all(np.array_equal(entry.key, first.key) for entry in (by_sequence, by_position))
    extra = 0 if attended == "h" else _extra(key, sizes[attended], fixed)
    groups = math.prod(key.shape[:-1]) // (batch * length // sizes.get(attended, 1) * key.shape[-2])
    beyond = sizes | {attended: key.shape[-2], "h": groups if attended != "h" else heads}
    keys = order_of(first.key, by_sequence.key, by_position.key, beyond, extra)
    values = order_of(first.value, by_sequence.value, by_position.value, beyond, extra)
    keys, values = keys or order, values or keys or order
    if swapped := attended == "b":
        order, keys, values = (entry.translate(_SWAPPED) for entry in (order, keys, values))
    among = attended == "h"
    counts = (heads * parallel, (heads if among else groups) * parallel)
    sides = (length, batch) if swapped else (batch, length)
    plain = not among and not extra and heads == groups
    layouts = [
        CoreLayout(order, keys, values, result, *counts, parallel, swapped, among, swap, extra)
        for result in results(order, values)
        for swap in ((False, True) if plain else (False,))
    ]
    best = _best(layouts, first, *sides)
    if not extra:
        return best
    first_key, changed_key = (best.standard([entry], *sides)["key"] for entry in (first, by_position))
    changes = np.abs(changed_key - first_key).max(axis=(0, 1, 3))
    return dataclasses.replace(best, leading=max(0, int(np.argmax(changes)) - 1))


def _extra(key: FloatArray, positions: int, fixed: bool) -> int:
    """Return the number of keys beyond the positions.

    Fewer keys than positions are refused. Additional keys are refused if no key changes with the inputs (`fixed`), as
    in cross-attention.
    """
    extra = int(key.shape[-2]) - positions
    if extra < 0:
        counts = f"{key.shape[-2]} for {positions} positions"
        refuse("keys", counts, "are fewer than the positions, as after pooling", "inspect the layer without it")
    if extra and fixed:
        refuse("keys", key.shape, "do not depend on the inputs: cross-attention", "inspect self-attention")
    return extra


def _parallel(cores: Sequence[AttentionCore], silenced: Sequence[AttentionCore]) -> int:
    """Return the number of parallel cores: the first core, and those after it that do not depend on its result.

    Parallel cores follow each other directly, and have equal shapes. `silenced` are the cores of a call in which the
    result of the first core is 0.
    """
    number = 1
    for one, silent_core in zip(cores[1:], silenced[1:], strict=True):
        same_shape = one.query.shape == cores[0].query.shape and one.value.shape == cores[0].value.shape
        if not same_shape or any(not np.array_equal(getattr(one, r), getattr(silent_core, r)) for r in _ROLES):
            break
        number += 1
    return number


def _best(layouts: Sequence[CoreLayout], core: AttentionCore, batch: int, length: int) -> CoreLayout:
    """Return the layout in which weights and scores have the largest correlation.

    The first layout is returned unless another one is clearly better.
    """
    if len(layouts) == 1:
        return layouts[0]
    residuals = [1.0 - _followed(layout.standard([core], batch, length)) for layout in layouts]
    best = int(np.argmin(residuals))
    return layouts[best if residuals[best] < _CLEARLY * residuals[0] and residuals[0] > _ROUGHLY else 0]


def _followed(arrays: Mapping[str, FloatArray]) -> float:
    """Return the correlation of weights, or of their logarithms if it is larger, with products of queries and keys.

    The sign of the correlation is ignored.
    """
    query, key, weights = arrays["query"], arrays["key"], arrays["weights"]
    scores = query @ np.repeat(key, query.shape[1] // key.shape[1], axis=1).swapaxes(-1, -2)
    weights = np.where(np.isfinite(weights), weights, 0.0)
    visible = np.broadcast_to((weights > 0.0).all(axis=0), weights.shape)
    logarithms = np.log(np.where(visible, weights, 1.0))
    # Subtract means over each row or column, since a softmax adds a constant to the logarithms there, and means over
    # sequences, since all sequences have the same bias by position.
    return max(
        abs(correlation(*(_less_means(a, visible, axis) for a in (scores, target))))
        for target in (weights, logarithms)
        for axis in (-1, -2)
    )


def _less_means(a: FloatArray, visible: BoolArray, axis: int) -> FloatArray:
    for dim in (0, axis):
        a = np.where(visible, centred(a, visible, dim), 0.0)
    return a
