"""Recognition of rotary positions from the queries and keys that attention receives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.forward import OTHER
from attncheck.frameworks.inputs import DEPENDENT, PLACED, ROTATED, TWISTED
from attncheck.frameworks.notes import Note, asks, wrong
from attncheck.frameworks.probe import Probe

NONE, ROTARY = "none", "rotary"
#: Base reported for a single plane, whose rotation by one radian per position fits any base.
_ANY_BASE = 1e4
# Angles are estimated from the rotation between positions 0 and 1. Up to the last position, their error may grow by
# this factor.
_STEPS = 16.0
_MOST_DIGITS = 12
# If rounding errors are smaller than this, fixed neurons can be distinguished from slowly rotating ones.
_FINE = 1e-4


@dataclasses.dataclass(frozen=True)
class Rotation:
    """Rotation of queries or keys by angles that grow with the position.

    Attributes
    ----------
    base : float or None
        b in the angles c j b^{-2f/d} of plane f at position j, for d rotated neurons; None for other angles.
    halves : bool
        Whether neurons f and f + d/2 form a plane, as in Llama; else neurons 2f and 2f + 1, as in GPT-J.
    sign : int
        1, or -1 for the opposite direction.
    neurons : int
        Number of rotated neurons per head, which are consecutive.
    first : int
        Index of the first rotated neuron.
    factor : float
        c in these angles, usually 1.
    """

    base: float | None
    halves: bool
    sign: int
    neurons: int
    first: int = 0
    factor: float = 1.0

    def undone(self, vectors: FloatArray) -> FloatArray:
        """Return keys, (..., positions, d), before rotation, with neurons in the order of `attncheck.Draws`."""
        planes = _planes(vectors, self.halves)
        positions, pairs = np.arange(planes.shape[-2])[:, None], planes.shape[-1]
        planes = planes * np.exp(-1j * self.sign * positions * _frequencies(self.base or _ANY_BASE, pairs))
        return np.concatenate([planes.real, self.sign * planes.imag], axis=-1)


@dataclasses.dataclass(frozen=True)
class Positions:
    """Effect of positions on a layer's scores.

    Attributes
    ----------
    name : {"none", "rotary", "other"}
    rotation : Rotation or None
        The rotation of queries and keys, with "rotary".
    notes : tuple of Note
    """

    name: str
    rotation: Rotation | None = None
    notes: tuple[Note, ...] = ()


def positions_of(probe: Probe, kinds: Mapping[str, tuple[str, ...]]) -> Positions:
    """Return the effect of positions on queries and keys, with notes on unusual rotations.

    `kinds` says by role how queries, keys and values differ from x W + b, as in `InputFindings`.
    """
    if any({PLACED, TWISTED, DEPENDENT} & {*role_kinds} for role_kinds in kinds.values()):
        return Positions(OTHER)
    rotated = {role for role, role_kinds in kinds.items() if ROTATED in role_kinds}
    if not rotated:
        return Positions(NONE)
    if not {"query", "key"} <= rotated:
        mistake = wrong("only one of queries and keys is rotated")
        return Positions(OTHER, notes=() if rotated == {"value"} else (mistake,))
    # If all positions have the same input, queries and keys at different positions differ only by the rotation.
    call = probe.reader.see(probe.state, np.repeat(probe.x[:, :1], probe.length, axis=1))
    query, key = (_rotation(call[role][:, :, : probe.length], probe.bound) for role in ("query", "key"))
    if query is None or key is None:
        return Positions(OTHER, notes=(Note("this rotation is not that of rotary positions"),))
    if query != key:
        opposite = dataclasses.replace(query, sign=-query.sign) == key
        text = "opposite ways: scores depend on sums of positions" if opposite else "by different angles"
        text = text if query.first == key.first else "in different neurons: scores do not depend on distances alone"
        return Positions(OTHER, notes=(wrong(f"queries and keys are rotated {text}"),))
    if query.base is None:
        return Positions(OTHER, notes=(Note("rotary angles are not powers of one base"),))
    if query.factor != 1.0:
        twice = ": are rotary positions applied twice?" if query.factor == 2.0 else ""
        text = f"rotary angles are {query.factor:g} times those of base {query.base:g}{twice}"
        return Positions(OTHER, notes=(asks(text, "positions"),))
    if query.neurons < probe.head_dim:
        message = f"rotary positions (base {query.base:g}) turn {query.neurons} of {probe.head_dim} neurons of a head"
        return Positions(OTHER, notes=(Note(message),))
    return Positions(OTHER) if "value" in rotated else Positions(ROTARY, query)


def _planes(vectors: FloatArray, halves: bool) -> NDArray[np.complex128]:
    """Return vectors, (..., d), as complex numbers, (..., d/2).

    The real and imaginary parts are neurons f and f + d/2 if `halves` is True, otherwise neurons 2f and 2f + 1.
    """
    half = vectors.shape[-1] // 2
    first, second = (vectors[..., :half], vectors[..., half:]) if halves else (vectors[..., ::2], vectors[..., 1::2])
    return np.asarray(first + 1j * second)


def _frequencies(base: float, pairs: int) -> FloatArray:
    return np.asarray(base ** -(np.arange(pairs) / pairs))


def _rotation(vectors: FloatArray, rounding: float) -> Rotation | None:
    """Return the rotation by which vectors, (batch, heads, positions, d), differ between positions, or None."""
    small = _STEPS * rounding * float(np.abs(vectors).max())
    neurons = _rotated_neurons(vectors, small) if rounding <= _FINE else slice(0, vectors.shape[-1])
    after = vectors[..., neurons]
    number = after.shape[-1]
    if number % 2 or number == 0 or after.shape[2] < 2:
        return None
    for halves in (True, False):
        rotated = _planes(after, halves)
        planes = np.broadcast_to(rotated[:, :, :1], rotated.shape)
        angles = np.angle((planes.conj() * rotated)[:, :, 1].sum(axis=(0, 1)))
        if _off(planes, rotated, angles) <= small:
            sign = -1 if angles[0] < 0 else 1
            # A factor of 1 comes first: rounding must not change it.
            factors = (1.0, float(f"{abs(angles[0]):.3g}") or 1.0)
            candidates = ((b, factor) for factor in factors for b in _bases(np.abs(angles) / factor))
            fitting = (
                (b, factor)
                for b, factor in candidates
                if _off(planes, rotated, sign * factor * _frequencies(b, len(angles))) <= small
            )
            base, factor = next(fitting, (None, 1.0))
            return Rotation(base, halves, sign, number, neurons.start or 0, factor)
    return None


def _rotated_neurons(vectors: FloatArray, small: float) -> slice:
    """Return the slice from the first to the last neuron that depends on the position.

    Changes by at most `small` / `_STEPS` count as rounding.
    """
    moves = np.flatnonzero(np.abs(vectors - vectors[:, :, :1]).max(axis=(0, 1, 2)) > small / _STEPS)
    return slice(int(moves[0]), int(moves[-1]) + 1) if moves.size else slice(0)


def _off(planes: NDArray[np.complex128], rotated: NDArray[np.complex128], angles: FloatArray) -> float:
    """Return the largest difference between `rotated` and `planes` after a rotation by `angles` times the position.

    Both arrays have shape (batch, heads, positions, d/2).
    """
    positions = np.arange(planes.shape[2])[:, None]
    return float(np.abs(planes * np.exp(1j * positions * angles) - rotated).max())


def _bases(angles: FloatArray) -> Iterator[float]:
    """Yield candidates for the base of rotary angles, those with few digits first."""
    pairs = len(angles)
    if pairs == 1:
        yield _ANY_BASE
        return
    best = 1 + int(np.argmax(np.arange(1, pairs) * angles[1:]))
    log = -pairs / best * math.log(max(float(angles[best]), 1e-300))
    if 0.0 < log < math.log(1e12):
        yield from (float(f"{math.exp(log):.{digits}g}") for digits in range(1, _MOST_DIGITS))
