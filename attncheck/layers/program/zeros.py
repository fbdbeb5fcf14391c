"""Lines that are 0 at every width."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Score

# Trial points, up to the largest Gaussian vectors.
_POINTS: Final = 64
_SIZES: Final = np.geomspace(1e-2, 256.0, _POINTS)


def zero_lines(nodes: Iterable[Node]) -> set[Node]:
    """Return the vectors and scores that are always 0, without lines that depend on scores.

    Functions are evaluated at trial points, which differ between different vectors.

    Examples
    --------
    >>> from attncheck.layers.program.lines import Lines
    >>> program = Lines()
    >>> h, still = program.initial("h"), program.initial("still", std=0.0)
    >>> W, U = (program.weight(name) for name in "WU")
    >>> p = program.score(program.matmul(W, program.nonlin(np.tanh, still)), program.matmul(U, h))
    >>> [node.name for node in program.nodes if node in zero_lines(program.nodes)]
    ['still', 'x1', 'g1', 'p1']
    """
    rng, tried, known = np.random.default_rng(0), dict[Node, FloatArray](), dict[Any, FloatArray]()

    def points(key: Any) -> FloatArray:
        return known.setdefault(key, _SIZES * rng.standard_normal(_POINTS))

    zero = set[Node]()
    for node in nodes:
        if isinstance(node, Score):
            if not node.factor or zero.intersection(node.parents):
                zero.add(node)
            continue
        if not all(parent in tried for parent in node.parents):
            continue
        values = _values(node, tried, points)
        if values is not None:
            tried[node] = values
            if not values.any():
                zero.add(node)
    return zero


def _values(node: Node, tried: dict[Node, FloatArray], points: Callable[[Any], FloatArray]) -> FloatArray | None:
    """Return a vector at the trial points, or None if it depends on scores."""
    if isinstance(node, Initial):
        parts = [root * points((node.group, k)) for k, root in enumerate(node.root)]
        return np.asarray(node.mean + sum(parts, np.zeros(_POINTS)))
    if isinstance(node, MatMul):
        vector = tried[node.parents[0]]
        alive = bool(node.weight.std) and vector.any()
        return points((node.weight, vector.tobytes())) if alive else np.zeros(_POINTS)
    if isinstance(node, Nonlin):
        with np.errstate(all="ignore"):
            found = np.asarray(node.function(*(tried[parent][None] for parent in node.parents)), dtype=np.float64)
        return found.reshape(_POINTS)
    return None
