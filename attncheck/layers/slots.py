"""Slots: initial vectors and matrices of a program, and the limits that depend on their laws.

The law of a matrix averages out if its fan-in grows with n. The laws of initial vectors and of matrices with a fixed
number of columns (W^O at fixed head_dim) do not average out: they affect coordinates, and averages of nonlinear
functions of coordinates (Golikov and Yang, 2022, for programs without scores).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.expansion import expand
from attncheck.layers.nonlinearity import Nonlinearity
from attncheck.layers.program import LinearCombination, Program
from attncheck.layers.program.mixes import AttentionRow
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score, Weight, made_from


@dataclasses.dataclass(frozen=True)
class Slot:
    """Matrix or initial vector whose law can be replaced by another of the same mean and covariance.

    Attributes
    ----------
    name : str
    kind : str
        "initial vector"; "matrix, scores downstream"; "matrix, no scores downstream"; or "output matrix", for a
        matrix whose products only outputs use.
    shows_in : tuple of str
        The lines whose limit depends on the law.
    """

    name: str
    kind: str
    shows_in: tuple[str, ...]

    @property
    def depends(self) -> bool:
        """Whether any limit depends on the law."""
        return bool(self.shows_in)

    def __str__(self) -> str:
        shown = ", ".join(self.shows_in)
        return f"{self.name} ({self.kind}): " + (
            f"the limit of {shown} depends on its law" if shown else "no limit does"
        )


def law_slots(described: AttentionLayer | Program) -> tuple[Slot, ...]:
    r"""Return the slots of a layer or program, and the limits that depend on their laws.

    The laws considered are i.i.d., have all moments, and have the mean and covariance of the Gaussian law. Functions
    not known to be linear count as nonlinear.

    Parameters
    ----------
    described : AttentionLayer or Program

    Returns
    -------
    tuple of Slot
        Initial vectors first, in program order.

    Raises
    ------
    InputError
        If `described` is neither.

    Examples
    --------
    >>> layer = AttentionLayer(width=8, seq_len=1, num_heads=1)
    >>> print(*law_slots(layer), sep="\n")
    h (initial vector): no limit does
    W1 (matrix, scores downstream): no limit does
    K1 (matrix, scores downstream): no limit does
    V1 (matrix, no scores downstream): no limit does
    Q1 (matrix, scores downstream): no limit does
    O1 (output matrix): no limit does
    >>> print(law_slots(layer.replace(head_dim=2))[-1])
    O1 (output matrix): the limit of o1,1, y1 depends on its law
    """
    if isinstance(described, AttentionLayer):
        described = expand(described).program
    if not isinstance(described, Program):
        given: Any = described
        refuse("described", given, "is neither a layer nor a program", "pass an AttentionLayer or a Program")
    nodes = described.lines()
    initial = [_initial(nodes, node) for node in nodes if isinstance(node, Initial)]
    weights = dict.fromkeys(node.weight for node in nodes if isinstance(node, MatMul))
    return (*initial, *(_matrix(nodes, weight) for weight in weights))


def _initial(nodes: Sequence[Node], slot: Initial) -> Slot:
    shown = _shown(nodes, {slot})
    # The vector itself counts only if no other line uses it.
    if any(slot in node.parents for node in nodes):
        shown = [node for node in shown if node is not slot]
    return Slot(slot.name, "initial vector", tuple(node.name for node in shown))


def _matrix(nodes: Sequence[Node], weight: Weight) -> Slot:
    images: set[Node] = {node for node in nodes if isinstance(node, MatMul) and node.weight is weight}
    after = made_from(nodes, images.__contains__)
    users = [node for node in nodes if any(image in node.parents for image in images)]
    if any(isinstance(node, Score) for node in after):
        kind = "matrix, scores downstream"
    elif all(isinstance(node, Output) for node in users):
        kind = "output matrix"
    else:
        kind = "matrix, no scores downstream"
    shown = _shown(nodes, images) if weight.columns is not None else []
    return Slot(weight.name, kind, tuple(node.name for node in shown))


def _shown(nodes: Sequence[Node], starts: set[Node]) -> list[Node]:
    """Return the lines whose law depends on that of `starts`, through coordinates, averages or scores."""
    coordinates: set[Node] = set()
    averages: set[Node] = set()
    for node in nodes:
        own = any(parent in coordinates for parent in node.parents)
        if any(parent in averages for parent in node.parents):
            averages.add(node)
        elif node in starts:
            coordinates.add(node)
        elif own and isinstance(node, Nonlin | Output):
            (coordinates if _linear(node) else averages).add(node)
        elif own and isinstance(node, MatMul) and node.weight.columns is not None:
            coordinates.add(node)
        elif own and isinstance(node, Score) and node.parents[0].size is not None:
            averages.add(node)
    return [node for node in nodes if node in coordinates or node in averages]


def _linear(node: Nonlin | Output) -> bool:
    """Return whether the covariances of a line depend only on the covariances of its arguments."""
    function = node.function
    if isinstance(function, LinearCombination | AttentionRow):
        return True
    return isinstance(function, Nonlinearity) and function.name == "identity"
