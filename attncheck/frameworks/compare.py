"""`compare`: differences between two attention layers at initialisation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from attncheck.frameworks.adapter import Adapter
from attncheck.frameworks.initialiser import SYMBOLS
from attncheck.frameworks.inspection import inspect
from attncheck.frameworks.laws import Z
from attncheck.frameworks.notes import WRONG
from attncheck.frameworks.result import Inspection

# Compared attributes, with their names in messages.
_SHAPE = {"num_heads": "heads", "kv_heads": "keys and values", "head_dim": "neurons of a head"}
_FORWARD = {
    "map": "map",
    "mask": "mask",
    "scale": "scale of scores",
    "positions": "positions in queries and keys",
    "rotary_base": "base of rotary positions",
}


@dataclasses.dataclass(frozen=True)
class InspectionComparison:
    """Two inspections and their differences.

    Attributes
    ----------
    one, other : Inspection
    differences : tuple of str
        One sentence per difference. All reported differences of estimated numbers are real with probability 1 - 1e-6.
    """

    one: Inspection
    other: Inspection
    differences: tuple[str, ...]

    def require(self) -> None:
        """Raise an `AssertionError` that lists any differences."""
        __tracebackhide__ = True
        if self.differences:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join(self.differences) or "no difference found"


def compare(
    one: Callable[..., Any] | Adapter,
    other: Callable[..., Any] | Adapter,
    width: int,
    call: Callable[..., Any] | None = None,
    *,
    draws: int = 8,
    seed: int = 0,
) -> InspectionComparison:
    """Compare two layers at initialisation.

    Parameters
    ----------
    one, other : callable or attncheck.frameworks.adapter.Adapter
    width : int
    call : callable, optional
    draws, seed : int
        As for `inspect`.

    Returns
    -------
    InspectionComparison

    Raises
    ------
    InputError
        As for `inspect`.
    """
    found = [inspect(make, width, call, draws=draws, seed=seed) for make in (one, other)]
    return InspectionComparison(found[0], found[1], tuple(_differences(found[0], found[1])))


def _differences(one: Inspection, other: Inspection) -> Iterator[str]:
    for name, words in _SHAPE.items():
        yield from _unequal(words, getattr(one, name), getattr(other, name))
    for role, symbol in SYMBOLS.items():
        yield from _of_matrices(one, other, role, symbol)
    for name, words in _FORWARD.items():
        yield from _unequal(words, getattr(one.forward, name), getattr(other.forward, name))
    for mine, theirs, words in ((one, other, "first"), (other, one, "second")):
        told = {note.text for note in theirs.notes}
        yield from (
            f"only in the {words}: {note}" for note in mine.notes if note.level == WRONG and note.text not in told
        )


def _of_matrices(one: Inspection, other: Inspection, role: str, symbol: str) -> Iterator[str]:
    m, w = one.weights.get(role), other.weights.get(role)
    if m is None or w is None:
        if m is not w:
            yield f"{symbol}: known only in the {'first' if w is None else 'second'}"
        return
    # Compare the difference with its standard error.
    error = math.hypot(*((each.high - each.low) / (2 * Z) for each in (m, w)))
    if abs(m.std - w.std) > Z * error:
        yield f"{symbol}: std {m.std:.3f} against {w.std:.3f}"
    if not set(m.laws) & set(w.laws):
        yield f"{symbol}: {m.law} against {w.law}"
    if (m.bias_std > 0) != (w.bias_std > 0):
        yield f"{symbol}: bias {m.bias_std:.3g} against {w.bias_std:.3g}"


def _unequal(words: str, mine: object, theirs: object) -> Iterator[str]:
    if mine != theirs:
        yield f"{words}: {mine} against {theirs}"
