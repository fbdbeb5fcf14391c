"""Result of an inspection: table, layer description and requirements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attncheck._lib.errors import refuse
from attncheck._lib.text import counted
from attncheck.frameworks.expectations import declared as declarations
from attncheck.frameworks.expectations import unmet
from attncheck.frameworks.forward import OTHER, Forward
from attncheck.frameworks.initialiser import MatrixStatistics
from attncheck.frameworks.layer_parts import mask_fields
from attncheck.frameworks.notes import Note, PrintedInspection
from attncheck.frameworks.subject import AttentionView, ModuleSubject, subject_of
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import GAUSSIAN

# Fields of `AttentionLayer` that must be known.
_STDS = ("query_std", "key_std", "value_std")
# Range of standard deviations shown with three decimals.
_SMALL, _LARGE = 0.01, 1e4
# Default number of positions.
_POSITIONS = 4
# Names of the fields of an inspection's JSON form.
_SHAPE = ("width", "num_heads", "kv_heads", "head_dim", "draws")
_FIELDS = (*_SHAPE, "weights", "forward", "paths", "notes", "attentions", "verdict")


@dataclasses.dataclass(frozen=True)
class Inspection(PrintedInspection):
    """An attention layer at initialisation.

    Attributes
    ----------
    width, num_heads, kv_heads, head_dim : int
        `kv_heads` counts distinct keys and values.
    draws : int
        Number of modules initialised.
    weights : mapping of str to MatrixStatistics
        By "query", "key", "value" and "output"; a note explains each missing matrix.
    forward : Forward
        Formula of the first code path that calls attention.
    paths : mapping of str to Forward
        Formulas of the examined code paths, by name.
    notes : tuple of Note
    view : AttentionView
        Access to the module, for `subject`.
    extra : int
        Number of keys beyond the positions.
    value_dim : int or None
        Head dimension of values if it differs from `head_dim`.
    attentions : int
        Number of times attention runs in a forward pass; the first one is inspected.
    """

    width: int
    num_heads: int
    kv_heads: int
    head_dim: int
    draws: int
    weights: Mapping[str, MatrixStatistics]
    forward: Forward
    paths: Mapping[str, Forward]
    notes: tuple[Note, ...]
    view: AttentionView = dataclasses.field(repr=False, compare=False)
    extra: int = dataclasses.field(default=0, repr=False)
    value_dim: int | None = None
    attentions: int = 1

    @property
    def stds(self) -> dict[str, float]:
        """Standard deviations times √fan-in by role, averaged if not significantly different."""
        averages = {}
        for role, matrix in self.weights.items():
            near = [m.std for m in self.weights.values() if m.low <= matrix.high and matrix.low <= m.high]
            averages[role] = float(np.mean(near)) if len(near) > 1 else matrix.std
        return averages

    def layer(self, seq_len: int | None = None, **changes: Any) -> AttentionLayer:
        """Return the description of the layer as an `AttentionLayer`, for checks and theory.

        Standard deviations with overlapping intervals are averaged. Score scales other than 1/√head_dim and 1/head_dim
        become part of `query_std`. A random bias by distance has the standard deviation of the inspected bias.

        Parameters
        ----------
        seq_len : int, optional
            Default: 4, or the only length that the module accepts.
        **changes
            Other fields of `AttentionLayer`, or replacements.

        Raises
        ------
        InputError
            If no description matches the layer, for example because of its mask or of unknown matrices.
        """
        if seq_len is None:
            seq_len = self.view.lengths(_POSITIONS)[0]
        parts = dict(self.forward.parts)
        stds = {f"{role}_std": std for role, std in self.stds.items()}
        stds |= {name: parts.pop(name) for name in _STDS if name in parts}
        if missing := [name for name in _STDS if name not in stds | changes]:
            refuse(missing[0], None, "is unknown", f"pass it, e.g. {missing[0]}=1.0")
        if not self.forward.known or self.forward.map not in ("softmax", "linear"):
            remedy = "mend the layer, or write AttentionLayer(...) yourself"
            map_name = self.forward.map if self.forward.known else "no known formula"
            map_name = "unknown" if self.forward.error == math.inf else map_name
            refuse("forward", map_name, "cannot be described by an AttentionLayer", remedy)
        if unlike := self.forward.unlike or "keys beyond the positions" * bool(self.extra):
            problem = f"comes with {unlike}, which AttentionLayer does not support"
            refuse("forward", self.forward.map, problem, "inspect the layer without it")
        if self.value_dim is not None:
            problem = f"comes with values of {self.value_dim} neurons per head, which AttentionLayer does not support"
            refuse("head_dim", self.head_dim, problem, "use as many neurons for values as for keys")
        mask = mask_fields(self.forward.mask)
        if not mask and "mask" not in changes:
            refuse("mask", self.forward.mask, "is not available in AttentionLayer", "pass mask=..., e.g. a function")
        if self.forward.positions == OTHER and "rotary_base" not in changes:
            problem = "in a way that no rotary_base describes"
            refuse(
                "positions", OTHER, f"means that queries or keys depend on positions {problem}", "pass rotary_base=None"
            )
        scaling, plain = "1/sqrt(n)", self.head_dim**-0.5
        if self.forward.scale == "1/head_dim":
            scaling, plain = "1/n", 1 / self.head_dim
        if "query_std" in stds and math.isfinite(self.forward.factor):
            # The sign of the factor does not matter, because the laws of weights are symmetric.
            stds["query_std"] *= abs(self.forward.factor) / plain
        fields: dict[str, Any] = {
            "width": self.width,
            "seq_len": seq_len,
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "score_scaling": scaling,
            "attention_map": self.forward.map,
            "rotary_base": self.forward.rotary_base,
            "num_kv_heads": None if self.kv_heads == self.num_heads else self.kv_heads,
            **stds,
            **mask,
            **parts,
        }
        return AttentionLayer(**(fields | changes))

    def subject(self, weights: str = GAUSSIAN, seq_len: int | None = None) -> ModuleSubject:
        """Return the module as a subject for checks, sampled by its own forward pass.

        Parameters
        ----------
        weights : {"gaussian", "own"}
            "gaussian": matrices with the scales of `layer` replace the module's, so that every exact result can be
            tested. "own": weights and biases as initialised.
        seq_len : int, optional
            Number of positions of the layer, as for `layer`.

        Raises
        ------
        InputError
            As for `layer`; if outputs contain more than attention; if arrays cannot be replaced; with "own", if checks
            do not support the law of the entries.
        """
        return subject_of(self, self.layer(seq_len), weights)

    def require(self, *declared: str, **expected: Any) -> None:
        """Raise an error if the layer differs from expectations.

        Parameters
        ----------
        *declared
            Expectations as text, as for ``attncheck inspect --expect``: "causal", "unmasked", "mup" (scores times
            1/head_dim), "rotary", "unbiased"; an initialiser with the standard deviation of its entries, such as
            "query=normal(0.02)"; or any of the following, such as "query_std=1.0".
        **expected
            - ``query_std``, ``key_std``, ``value_std``, ``output_std``: a number that must lie in the interval.
            - ``query_law`` and so on: a law that must not be rejected: "normal" (or "gaussian"), "uniform",
              "truncated normal", "orthogonal" or "constant".
            - ``bias``, ``query_bias`` and so on: whether there are nonzero biases.
            - ``mask``, ``map``, ``scale``: of the forward pass; the scale by name or as a number.
            - ``positions``, ``rotary_base``: "none", "rotary" or "other", and the base of rotary positions.
            - ``num_heads``, ``kv_heads``, ``head_dim``.
            - ``blamed=False``: no note reports an error. ``asked=False``: no note asks about a choice, unless another
              expectation declares that choice; ``asked="KV heads are tiled"`` allows notes with that text, too.

        Raises
        ------
        AssertionError
            With the values found.
        InputError
            For an unknown name or value.
        """
        __tracebackhide__ = True
        if failures := self.unmet(*declared, **expected):
            raise AssertionError("\n".join(failures))

    def unmet(self, *declared: str, **expected: Any) -> list[str]:
        """Return one sentence per unmet expectation; arguments as for `require`."""
        for text in declared:
            expected |= declarations(text, self.weights)
        return unmet(self.confirmed({*expected}), expected)

    def expecting(self, *declared: str) -> Inspection:
        """Return a copy in which declared conventions are confirmed.

        If the layer meets an expectation, the conventions that this expectation declares are no longer in question.
        """
        names = {name for text in declared if not self.unmet(text) for name in declarations(text, self.weights)}
        return self.confirmed(names)

    def confirmed(self, names: set[str]) -> Inspection:
        """Return a copy in which the choices that the expectations `names` declare are no longer in question."""
        return dataclasses.replace(self, notes=tuple(note.confirmed(names) for note in self.notes))

    def _fields(self) -> dict[str, Any]:
        weights = {role: dataclasses.asdict(matrix) | {"law": matrix.law} for role, matrix in self.weights.items()}
        return {name: getattr(self, name) for name in _FIELDS} | {"weights": weights}

    @property
    def examined(self) -> str:
        """The part that the verdict covers, if attention runs several times; else empty."""
        return f" in the first of {self.attentions} attentions" * (self.attentions > 1)

    @property
    def headline(self) -> str:
        """Width, heads and draws as text."""
        heads = f"{counted(self.num_heads, 'head')} of {counted(self.head_dim, 'neuron')}"
        if self.kv_heads != self.num_heads:
            heads += f", {self.kv_heads} of keys and values"
        return f"Attention of width {self.width}: {heads}; {counted(self.draws, 'draw')}"

    @property
    def tables(self) -> Mapping[str, list[tuple[str, ...]]]:
        """Tables by title, each a list of rows of text that starts with the heading."""
        rows: list[tuple[str, ...]] = [("", "law", "std·√fan-in", "from", "to", "bias", "matches initialiser")]
        for m in self.weights.values():
            spec = ".3f" if m.std == 0.0 or _SMALL <= m.std < _LARGE else ".4g"
            numbers = (format(number, spec) for number in (m.std, m.low, m.high))
            rows.append((m.name, m.law, *numbers, f"{m.bias_std:.3g}", ", ".join(m.known) or "none"))
        return {"Matrices": rows}

    @property
    def told(self) -> list[tuple[str, str]]:
        """Lines below the table, as pairs of a label ("forward", or the level of a note) and a text."""
        unknown = math.isfinite(self.forward.error) and not self.forward.known
        return [("forward", f"{'weights are ' if unknown else ''}{self.forward}"), *super().told]
