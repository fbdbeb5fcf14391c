"""Probe of one module: do its outputs follow from its matrices, and by which formula?"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from attncheck._lib.text import listed
from attncheck.frameworks.binding import FloatArray, untouched
from attncheck.frameworks.effective import NONE, ROLES, Effective, ModuleReader, normed
from attncheck.frameworks.forward import (
    AMONG_HEADS,
    AXES,
    OTHER,
    REPEATED,
    TILED,
    Booleans,
    Formula,
    added_mask,
    candidates,
    names_of,
    plot,
    scales,
    solved,
    spread,
    visible,
)
from attncheck.frameworks.notes import Note

_BATCH, _MOST_POSITIONS = 3, 7
# Standard deviation of the scores, chosen so that their scale and every single score affect the outputs.
_SPREAD = 1.0
# Factor of inputs to a norm, to make its epsilon negligible.
_BEYOND = 8.0
# Error of solved weights relative to that of outputs.
_READ = 10.0
# Factor of the error bound for fitted numbers.
_FITTED = 10.0
# A factor this close to a named one gets its name.
_NAMED = 1e-3
# If rounding explains more than this fraction of attention's contribution, the test is coarse.
_COARSE = 0.05
# Rounding of stored values, and of sums: a random walk in steps of the unit roundoff.
_STORED, _SUMMED = 5.0, 4.0
_SINGLE = float(np.finfo(np.float32).eps) / 2


#: Scale of scores if only products are known: another scale would change W_Q W_Kᵀ.
UNTOLD = "1/sqrt(head_dim), by convention"
#: Scale of a correct layer.
RIGHT = "1/sqrt(head_dim)"


@dataclasses.dataclass(frozen=True)
class Forward:
    """Formula of a forward pass.

    Attributes
    ----------
    map : str
        "softmax" (over the keys), "softmax over the query axis", "softmax over the heads", "linear", "relu",
        "sigmoid" or "other".
    mask : str
        "none", "causal", "anticausal", "strictly causal", "strictly anticausal", "window of w", "two-sided window
        of w" or "other".
    scale : str
        Factor of the products of queries and keys, by name or digits; "other" if unknown.
    factor : float
        The same as a number.
    error : float
        Largest difference from the formula, relative to attention's largest contribution.
    bound : float
        Largest `error` that rounding explains.
    biased : bool
        Whether scores have a bias by position.
    positions : str
        "none", "rotary" or "other".
    rotary_base : float or None
        Base of the angles, with "rotary".
    ties : tuple of str
        Other names of the same scale.
    """

    map: str
    mask: str
    scale: str
    factor: float
    error: float
    bound: float
    biased: bool = False
    positions: str = NONE
    rotary_base: float | None = None
    ties: tuple[str, ...] = ()

    @property
    def scales(self) -> str:
        """All names of the scale."""
        return " = ".join((self.scale, *self.ties))

    @property
    def known(self) -> bool:
        """Whether the formula gives the outputs up to rounding."""
        return self.error <= self.bound

    def __str__(self) -> str:
        if self.error == math.inf:
            return "unknown"
        if not self.known:
            explained = f"where rounding explains {self.bound:.1g}"
            return f"not those of a known formula: the nearest is off by {self.error:.2g}, {explained}"
        mask = {"none": "no mask", "causal": "causal mask"}.get(self.mask, f"mask: {self.mask}")
        if self.rotary_base is not None:
            mask += f", rotary positions (base {self.rotary_base:g})"
        scale = "unknown scale of scores" if self.scale == OTHER else f"scores times {self.scales}"
        return f"{self.map}, {mask}, {scale}; equal to the formula to {self.error:.1g}"


def rounding(precision: float, terms: int) -> float:
    """Return the relative error that rounding explains; sums are taken in float32 or better."""
    return _STORED * precision + _SUMMED * min(precision, _SINGLE) * math.sqrt(terms)


def _missing(y: FloatArray) -> str:
    """Return the positions with non-finite outputs, of (B, L, m)."""
    return ", ".join(map(str, np.flatnonzero(~np.isfinite(y).all(axis=(0, 2)))))


def _unseen(shown: Booleans) -> list[Note]:
    """Report positions that attend to nothing, or that nothing attends to."""
    notes, of = [], f", of 0 to {len(shown) - 1}"
    idle, unseen = (np.flatnonzero(~shown.any(axis)) for axis in (1, 0))
    if len(idle):
        one = len(idle) == 1
        which = f"{'position' if one else 'positions'} {listed(idle)} {'attends' if one else 'attend'}"
        notes.append(Note(f"{which} to nothing{of}", blames=True))
    if len(unseen):
        notes.append(Note(f"nothing attends to {'position' if len(unseen) == 1 else 'positions'} {listed(unseen)}{of}"))
    return notes


class Probe:
    """A module with inputs that give moderate scores; `matrices` have all rows."""

    def __init__(self, reader: ModuleReader, state: Any, matrices: Effective, seed: int = 0) -> None:
        self.reader, self.state, self.matrices = reader, state, matrices
        #: Factor of queries and keys before attention.
        self.gain = 1.0
        #: Nearest formula of the last `forward`.
        self.formula: Formula | None = None
        self.head_dim, self.value_dim = matrices.query.shape[-1], matrices.value.shape[-1]
        self.num_heads = matrices.query.shape[1]
        self.bound = rounding(reader.instrument.precision, max(reader.width, self.num_heads * self.value_dim))
        self.x = self._inputs(seed)
        self.seen = reader.see(state, self.x)
        self.y = self.output(reader.path)
        self.silent = reader.see(state, self.x, silent=True).y
        self.linear = self._linear_inputs()
        self.merged = self._linear_output(seed)

    @property
    def idle(self) -> bool:
        """Whether outputs depend nonlinearly on inputs, but not on attention."""
        linear = self.matrices.biases["output"] + self.x @ self.matrices.past
        return not self.matrices.output.any() and self.differs(self.y, linear) and not self.differs(self.y, self.silent)

    @property
    def steady(self) -> bool:
        """Whether two calls on one input agree."""
        return not self.differs(self.y, self.output(self.reader.path))

    @property
    def unsteady(self) -> tuple[Forward, list[Note]]:
        """Empty result for a random forward pass."""
        return Forward(OTHER, OTHER, OTHER, math.nan, math.inf, self.bound), []

    @property
    def apart(self) -> bool:
        """Whether outputs are the same for any batching; True if outputs are random."""
        alone = self.output(self.reader.path, self.x[:1])
        return not (self.steady and self.differs(self.y[:1], alone))

    def output(self, path: str, x: FloatArray | None = None) -> FloatArray:
        """Return the module's output on one path, without interception."""
        swapped, x = self.reader.layout.first_axis, self.x if x is None else x
        y = self.reader.instrument.run(self.state, x.swapaxes(0, 1) if swapped else x, untouched, path)
        return y.swapaxes(0, 1) if swapped else y

    @property
    def _scales(self) -> dict[str, float]:
        return scales(self.head_dim, self.reader.width, self.num_heads, self.x.shape[1])

    def differs(self, one: FloatArray, other: FloatArray) -> bool:
        """Return whether two outputs differ by more than rounding."""
        finite = np.isfinite(one)
        if not np.array_equal(finite, np.isfinite(other)):
            return True
        return not bool(np.abs(np.where(finite, one - other, 0.0)).max() <= 2 * self.bound * self._largest)

    @property
    def _largest(self) -> float:
        return max(float(np.abs(np.where(np.isfinite(self.y), self.y, 0.0)).max()), 1e-300)

    def forward(self, y: FloatArray) -> tuple[Forward, list[Note]]:
        """Return the formula of the outputs on `x`, with notes."""
        if missing := _missing(y):
            made = Forward(OTHER, OTHER, OTHER, math.nan, math.inf, self.bound)
            return made, [Note(f"outputs are NaN or infinite at positions {missing}", blames=True)]
        added = float(np.abs(y - self.silent).max())
        bound = self.bound * float(np.abs(y).max()) / added if added > 0 else math.inf
        if bound >= 1.0:
            made = Forward(OTHER, OTHER, OTHER, math.nan, math.inf, bound)
            return made, [Note("attention adds nothing to the outputs beyond rounding: its formula is unknown")]
        best, error = self._candidate(y)
        if error > bound and self.merged is not None:
            found, left = self._read_off(y)
            if found is not None and left < error:
                best, error = found, left
        self.formula = best
        known = self._scales
        factor = best.factor * self.gain
        names = names_of(factor, known, max(_NAMED, 4 * bound)) or (f"{factor:.3g}",)
        scale, *ties = names if best.map != OTHER else (OTHER,)
        ties = [] if scale == RIGHT else ties
        fitted = best.bias is not None or (scale[:1].isdigit() and scale not in known)
        explained = bound * (_FITTED if fitted else 1.0)
        made = Forward(best.map, best.mask, scale, factor, error, explained, best.bias is not None, ties=tuple(ties))
        coarse = f"rounding hides effects below {bound:.0%} of what attention adds"
        return made, [*self._told(made, best), *([Note(coarse)] if bound > _COARSE else [])]

    def _told(self, made: Forward, formula: Formula) -> list[Note]:
        if not made.known:
            return [Note(f"the outputs are {made}", blames=True)]
        notes = []
        if formula.bias is not None:
            said = Note("scores have a bias that depends on positions only: ALiBi, or relative positions")
            notes.append((added_mask(formula.bias) if made.mask == NONE else None) or said)
        if made.map == AMONG_HEADS:
            shape = "(batch, positions, heads, head_dim)"
            notes.append(Note(f"attends over the heads of one position, not over positions: queries are {shape}", True))
        elif made.map != "softmax":
            text = made.map if made.map in AXES else f"the attention map is {made.map}, not softmax"
            notes.append(Note(text, blames=True))
        if made.mask not in ("none", "causal"):
            notes.append(Note(f"the mask is neither none nor causal: {made.mask}"))
        length = self.x.shape[1]
        notes += _unseen(visible(made.mask, length, length) if formula.shown is None else formula.shown)
        if made.scale != RIGHT:
            notes.append(Note(f"scores times {made.scales}, not 1/sqrt(head_dim)", blames=True))
        if formula.groups == TILED:
            of = ", ".join(str(h % self.seen.key.shape[1]) for h in range(self.num_heads))
            size = self.num_heads // self.seen.key.shape[1]
            right = ", ".join(str(h // size) for h in range(self.num_heads))
            notes.append(Note(f"KV heads are tiled ({of}), not repeated ({right})", blames=True))
        return notes

    # Inputs ---------------------------------------------------------------------------------------

    def _inputs(self, seed: int) -> FloatArray:
        """Return inputs, (B, L, n), exact in every float type."""
        rng = np.random.default_rng(seed)
        taken = {self.num_heads, self.head_dim, self.reader.width}
        fits = min(_MOST_POSITIONS, self.value_dim, max(3, self.matrices.output.shape[1] // self.num_heads))
        length = next((s for s in range(fits, 1, -1) if s not in taken), max(fits, 2))
        x = np.clip(np.round(rng.standard_normal((_BATCH, length, self.reader.width)) * 8), -31, 31) / 8
        if self.reader.norm != NONE:
            return np.asarray(x * (_BEYOND if self.reader.instrument.precision <= _SINGLE else 1.0))
        q, k = self.lin("query", x), self.lin("key", x)
        size = math.sqrt(float(np.mean(q**2) * np.mean(k**2)))
        return np.asarray(x * 2.0 ** round(math.log2(_SPREAD / size) / 2) if size > 0 else x)

    def lin(self, role: str, x: FloatArray | None = None) -> FloatArray:
        """Return x W + b, (B, H, L, d)."""
        made = (
            np.tensordot(normed(self.x if x is None else x, self.reader.norm), self.matrices[role], 1)
            + self.matrices.biases[role]
        )
        return np.asarray(made.swapaxes(1, 2))

    def _linear_inputs(self) -> dict[str, FloatArray]:
        """Return queries, keys and values, from the matrices if they match."""
        found = {}
        for role in ROLES:
            lin, seen = self.lin(role), self.seen[role][:, :, : self.x.shape[1]]
            if np.abs(lin - seen).max() <= 2 * self.bound * max(np.abs(lin).max(), 1e-300):
                found[role] = np.concatenate([lin, self.seen[role][:, :, self.x.shape[1] :]], axis=2)
            else:
                found[role] = self.seen[role]
        return found

    # What becomes of heads ------------------------------------------------------------------------

    def _linear_output(self, seed: int) -> str | None:
        """Return how heads are merged if only W_O follows."""
        shape = (*self.x.shape[:1], self.num_heads, self.x.shape[1], self.value_dim)
        heads = np.round(np.random.default_rng(seed + 1).standard_normal(shape) * 8) / 8
        after = self.reader.see(self.state, self.x, heads).y - self.silent
        for way in ("right", "wrong"):
            made = self._merge(heads, way) @ self.matrices.output
            if np.abs(made - after).max() <= 4 * self.bound * max(np.abs(after).max(), self._largest):
                return way
        return None

    def _merge(self, heads: FloatArray, way: str | None) -> FloatArray:
        flat = heads if way == "wrong" else heads.swapaxes(1, 2)
        return flat.reshape(len(heads), self.x.shape[1], -1)

    def _outcome(self, formula: Formula) -> FloatArray:
        """Return the output of a formula."""
        heads = formula.heads(*(self.linear[role] for role in ROLES))
        if self.merged is None:
            return self.reader.see(self.state, self.x, heads).y
        return self.silent + self._merge(heads, self.merged) @ self.matrices.output

    # The formula ----------------------------------------------------------------------------------

    def _error(self, formula: Formula, y: FloatArray) -> float:
        return float(np.abs(self._outcome(formula) - y).max() / np.abs(y - self.silent).max())

    def _candidate(self, y: FloatArray) -> tuple[Formula, float]:
        """Return the nearest common formula and its error."""
        grouped = 1 < self.linear["key"].shape[1] < self.num_heads
        found = []
        for formula in candidates(self._scales, grouped):
            if self.reader.layout.form == "positions":
                formula = dataclasses.replace(formula, map=AMONG_HEADS)
            found.append((self._error(formula, y), formula))
        error, formula = min(found, key=lambda each: each[0])
        return formula, error

    def _read_off(self, y: FloatArray) -> tuple[Formula | None, float]:
        """Return the formula of the solved attention weights and its error."""
        q, k, v = (self.linear[role] for role in ROLES)
        if self.merged == "wrong" or self.reader.layout.form == "positions" or k.shape[2] != q.shape[2]:
            return None, math.inf
        found: list[tuple[Formula, float]] = []
        for groups in (REPEATED, TILED) if 1 < k.shape[1] < self.num_heads else (REPEATED,):
            read = solved(y - self.silent, v, self.matrices.output, groups)
            if read is None or read[1] > _READ * self.bound:
                continue
            scores = q @ spread(k, self.num_heads, groups).swapaxes(-1, -2)
            shown = plot(read[0], scores, _READ * self.bound, groups)
            if shown.map == OTHER:
                continue
            # Fitted factors are inexact, so one close to a named factor is taken for it.
            close = [f for f in self._scales.values() if abs(shown.factor / f - 1) <= _NAMED]
            tried = [shown, *(dataclasses.replace(shown, factor=factor) for factor in close[:1])]
            found += [(each, self._error(each, y)) for each in tried]
        return min(found, key=lambda each: each[1], default=(None, math.inf))
