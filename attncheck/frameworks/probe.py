"""Call one module on a few inputs, to find the formula of its attention weights and how it uses the result."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks.adapter import SINGLE
from attncheck.frameworks.effective import (
    NONE,
    WITHOUT_TRANSPOSE,
    AttentionCall,
    Effective,
    ModuleReader,
    normed,
    rounding,
)
from attncheck.frameworks.fits import formula_of, undropped
from attncheck.frameworks.forward import AMONG_HEADS, OTHER, REPEATED, TILED, Formula, Forward, names_of, scales, spread
from attncheck.frameworks.layer_parts import parts_of
from attncheck.frameworks.trace import Trace

_BATCH, _POSITIONS = 3, 7
# Approximate standard deviation of the scores. It is small enough for every single score to affect the weights.
_SPREAD = 1.0
# Factor of inputs to a norm, to make its epsilon negligible.
_BEYOND = 8.0
# Number of attempts at smaller inputs if weights underflow.
_TRIES = 3
# Tolerance within which attention weights are equal.
_TOLERANCE = 1e-6
# Relative tolerance within which a factor gets the name of a known factor.
_NAMED = 1e-3
# Outputs are more than rounding errors if the bound of these errors is below this fraction of the outputs. Sums of rows
# differ if their range exceeds this fraction of the largest sum.
_CLEAR = 0.1
# Relative tolerance within which a known factor is tried in place of a fitted one.
_NEAR = 2e-2


class Probe:
    """A module and its complete `matrices`, with the result of a call on inputs for which scores are moderate."""

    def __init__(self, reader: ModuleReader, state: Any, matrices: Effective) -> None:
        self.reader, self.state, self.matrices = reader, state, matrices
        #: Constant by which the scores are multiplied because queries or keys are scaled before attention.
        self.gain = 1.0
        self.head_dim, self.value_dim = matrices.query.shape[-1], matrices.value.shape[-1]
        self.num_heads = matrices.query.shape[1]
        self.bound = rounding(reader.adapter.precision, max(reader.width, self.num_heads * self.value_dim))
        self.maps = reader.layout.parallel
        reaches = [block.any() for block in np.split(matrices.output, self.maps)]
        if any(reaches) and not all(reaches):
            refuse("attentions", self.maps, "have separate outputs", "inspect each one in a separate module")
        #: Roles whose matrices all attention maps share.
        self.by_maps = matrices.shared_by(self.maps, reader.adapter.precision)
        self.length = _POSITIONS if reader.any_length else reader.length
        for smaller in range(1 + _TRIES):
            #: Factor of the inputs that keeps weights from underflowing.
            self.size = 4.0**-smaller
            self.x = self.inputs(_BATCH, self.length)
            self.seen = reader.see(state, self.x)
            if reader.norm != NONE or not _underflows(self.seen.weights):
                break
        self.y = self.output(reader.path)
        self._divide()
        #: Whether the output is a linear function of the heads, given by W_O alone.
        self.linear = reader.merged is not None and self._is_linear()

    @property
    def idle(self) -> bool:
        """Whether outputs depend nonlinearly on inputs, but not on attention."""
        linear = self.matrices.biases["output"] + self.x @ self.matrices.past
        return not self.matrices.output.any() and self.differs(self.y, linear) and not self.differs(self.y, self.silent)

    @property
    def steady(self) -> bool:
        """Whether two calls with the same inputs agree."""
        return not self.differs(self.y, self.output(self.reader.path))

    @property
    def apart(self) -> bool:
        """Whether the sequences of a batch do not affect each other; True if outputs are random."""
        alone = self.output(self.reader.path, self.x[:1])
        return not (self.steady and self.differs(self.y[:1], alone))

    def output(self, path: str, x: FloatArray | None = None) -> FloatArray:
        """Return the module's output on one code path, without replacing attention."""
        return self.reader.outputs(self.state, self.x if x is None else x, Trace(), path)

    def differs(self, first: FloatArray, second: FloatArray) -> bool:
        """Return whether two outputs differ by more than rounding."""
        finite = np.isfinite(first)
        if not np.array_equal(finite, np.isfinite(second)):
            return True
        return not bool(np.abs(np.where(finite, first - second, 0.0)).max() <= 2 * self.bound * self._largest)

    @property
    def _largest(self) -> float:
        return max(float(np.abs(np.where(np.isfinite(self.y), self.y, 0.0)).max()), 1e-300)

    def on(self, reader: ModuleReader) -> Probe:
        """Return a probe of another code path of the module, with the same inputs."""
        probe = copy.copy(self)
        probe.reader = reader
        probe.seen, probe.y = reader.see(self.state, self.x), self.output(reader.path)
        probe._divide()
        return probe

    def _divide(self) -> None:
        """Find out whether the module divides by the sums of rows of weights only after the product with the values.

        If so, weights are divided by these sums from now on.
        """
        self.silent = self.reader.see(self.state, self.x, silent=True).y
        sums = self.seen.weights.sum(axis=-1, keepdims=True)
        if not np.isfinite(sums).all() or np.ptp(sums) <= _CLEAR * sums.max():  # equal sums show nothing
            return
        # Results of attention that are proportional to these sums become equal in all rows, if the module divides by
        # the sums.
        vectors = np.random.default_rng(0).standard_normal((1, self.num_heads, 1, self.value_dim))
        outputs = self.reader.see(self.state, self.x, sums * vectors).y - self.silent
        small = 4 * self.bound * max(float(np.abs(outputs).max()), self._largest)
        if np.ptp(outputs, axis=(0, 1)).max() <= small < _CLEAR * np.abs(outputs).max():
            self.reader.divides_later = True
            self.seen = self.seen.normalised()

    # The formula ----------------------------------------------------------------------------------

    def formula(self, call: AttentionCall) -> Formula:
        """Fit a formula to the attention weights of a call."""
        query, key, weights = call.query, call.key, np.where(np.isfinite(call.weights), call.weights, 0.0)
        if self.reader.layout.among_heads:
            query, key, weights = (a.swapaxes(1, 2) for a in (query, key, weights))
        if query.any() and key.any():  # if all scores are 0, the weights of every row are equal
            weights = _without_idle(weights)
        number, kv = query.shape[1], key.shape[1]
        error = rounding(self.reader.adapter.precision, self.head_dim) / 2
        candidates = []
        for groups in (REPEATED, TILED) if 1 < kv < number else (REPEATED,):
            products = query @ spread(key, number, groups).swapaxes(-1, -2)
            formula = formula_of(weights, products, error, groups)
            # A fitted factor is inexact, so a named factor close to it is tried.
            close = [f / self.gain for f in self._scales.values() if abs(formula.factor * self.gain / f - 1) <= _NEAR]
            plain = not formula.adjusted
            exact = [dataclasses.replace(formula, factor=f) for f in close[:1]]
            tried = [candidate.compared(weights, products, error, exact=plain) for candidate in exact]
            candidates.append(next((candidate for candidate in tried if candidate.known), formula))
        return min(candidates, key=lambda candidate: candidate.error)

    def forward(self, call: AttentionCall) -> tuple[Forward, Formula]:
        """Fit a formula to the attention weights of a call; return it as `Forward`, for users, and as `Formula`."""
        formula = self.formula(call)
        factor = max(formula.factors or (formula.factor,), key=abs) * self.gain
        names = names_of(factor, self._scales, max(_NAMED, 4 * formula.bound)) or (f"{factor:.4g}",)
        unknown = formula.map == OTHER or bool(formula.factors) or math.isnan(factor)
        scale, *ties = (OTHER,) if unknown else names
        among = self.reader.layout.among_heads
        parts, unlike = parts_of(formula)
        description = Forward(
            AMONG_HEADS if among and formula.map != OTHER else formula.map,
            formula.mask,
            scale,
            factor,
            formula.error,
            formula.bound * (formula.map != OTHER),
            formula.adjusted,
            ties=tuple(ties),
            parts=tuple(parts.items()),
            unlike=unlike,
        )
        return description, formula

    def derivation(self, call: AttentionCall) -> str:
        """Return a text on how weights of an unknown formula derive from a known one, or an empty string.

        They may result from a second softmax, from dropout, or from weights of a known formula whose rows are rescaled.
        """
        sums = call.weights.sum(-1, keepdims=True)
        if np.abs(sums - 1.0).max() <= max(_TOLERANCE, 4 * self.bound):
            text = "softmax is applied twice; the first time, the weights are"
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = np.log(call.weights)
                weights = logs + (1.0 - logs.sum(-1, keepdims=True)) / logs.shape[-1]  # rows have the sum 1
        elif dropped := self._undropped(call):
            rate, weights = dropped
            text = f"every call drops the same attention weights, at rate {rate:.2g}; before that, they are"
        else:
            ends = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (sums.min(), sums.max())))
            text = f"rows of the attention weights sum to {ends}, and not to 1; divided by these, they are"
            weights = call.weights / np.where(sums > 0.0, sums, np.nan)
        if not np.all(weights > -_TOLERANCE):
            return ""
        weights = np.where(weights > _TOLERANCE, weights, 0.0)
        forward, _ = self.forward(dataclasses.replace(call, weights=weights))
        return f"{text} {forward}" if forward.known else ""

    def _undropped(self, call: AttentionCall) -> tuple[float, FloatArray] | None:
        """Return the rate of dropout that the weights of a call show, and the weights before it, or None."""
        products = call.query @ spread(call.key, call.query.shape[1], REPEATED).swapaxes(-1, -2)
        return undropped(call.weights, products) if products.shape == call.weights.shape else None

    def unknown(self) -> Forward:
        """Return the `Forward` of an unknown formula."""
        return Forward(OTHER, OTHER, OTHER, math.nan, math.inf, self.bound)

    @property
    def _scales(self) -> dict[str, float]:
        return scales(self.head_dim, self.reader.width, self.num_heads, self.x.shape[1])

    # Inputs ---------------------------------------------------------------------------------------

    def inputs(self, batch: int, length: int) -> FloatArray:
        """Return inputs, (batch, length, width), that are exact in every float type."""
        rng = np.random.default_rng(0)
        x = np.clip(np.round(rng.standard_normal((batch, length, self.reader.width)) * 8), -31, 31) / 8
        if self.reader.norm != NONE:
            return np.asarray(x * (_BEYOND if self.reader.adapter.precision <= SINGLE else 1.0))
        q, k = self.lin("query", x), self.lin("key", x)
        size = math.sqrt(float(np.mean(q**2) * np.mean(k**2)))
        return np.asarray(self.size * x * 2.0 ** round(math.log2(_SPREAD / size) / 2) if size > 0 else x)

    def longer(self, lengths: tuple[int, ...], most: int) -> FloatArray | None:
        """Return inputs with two sequences, or None if no length is possible.

        Their length is the first of `lengths` that the module accepts, and for which positions² × width is at most
        `most`.
        """
        for length in lengths if self.reader.any_length else ():
            if length * length * self.reader.width > most:
                continue
            x = self.inputs(2, length)
            try:
                self.output(self.reader.path, x)
            except InputError:
                continue
            return x
        return None

    def lin(self, role: str, x: FloatArray | None = None) -> FloatArray:
        """Return x W + b for a role, "query", "key" or "value", (batch, heads, positions, d).

        By default, x are the inputs of the probe.
        """
        z = normed(self.x if x is None else x, self.reader.norm)
        return np.asarray((np.tensordot(z, self.matrices[role], 1) + self.matrices.biases[role]).swapaxes(1, 2))

    # From the heads to the output ------------------------------------------------------------------

    def _is_linear(self) -> bool:
        """Return whether the output is a linear function of the heads, given by W_O alone."""
        shape = (*self.x.shape[:1], self.num_heads, self.x.shape[1], self.value_dim)
        heads = np.round(np.random.default_rng(1).standard_normal(shape) * 8) / 8
        after = self.reader.see(self.state, self.x, heads).y - self.silent
        flat = heads if self.reader.merged == WITHOUT_TRANSPOSE else heads.swapaxes(1, 2)
        expected = flat.reshape(*self.x.shape[:2], -1) @ self.matrices.output
        return bool(np.abs(expected - after).max() <= 4 * self.bound * max(np.abs(after).max(), self._largest))


def _underflows(weights: FloatArray) -> bool:
    """Return whether weights, (batch, ...), are 0 in some but not all sequences, which no mask causes."""
    nothing = weights == 0.0
    return bool((nothing.any(axis=0) & ~nothing.all(axis=0)).any())


def _without_idle(weights: FloatArray) -> FloatArray:
    """Set the weights to 0 at idle positions, which give the same weight to every key.

    At such a position, all keys are hidden by the same finite number. If all positions are idle, weights are not
    changed.
    """
    uniform = np.abs(weights - 1 / weights.shape[-1]).max(axis=(0, 1, 3)) <= _TOLERANCE
    idle = uniform & ~uniform.all()
    return np.where(idle[:, None], 0.0, weights)
