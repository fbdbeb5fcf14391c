"""Access to a module's attention, for use as a subject."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.adapter import Adapter, Arrays
from attncheck.frameworks.effective import ROLES, AttentionCall, ModuleReader
from attncheck.frameworks.rotary import Rotation
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights
from attncheck.layers.parts.scores import mean_offset

#: Number of output neurons returned.
NEURONS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionView:
    """Access to a module's queries, keys, values and outputs.

    Parameters
    ----------
    reader : ModuleReader
    factor : float
        Factor of the products of queries and keys in scores.
    rotation : Rotation, optional
    gains : mapping of str to float
        Factors that multiply queries and keys, by role.
    unread : mapping of str to float
        Standard deviations of arrays behind optional parts, as from `LayerPart.unread`.
    order : tuple of int
        Heads in the order in which groups follow each other; empty if they do.
    """

    reader: ModuleReader
    factor: float
    rotation: Rotation | None = None
    gains: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, float] = dataclasses.field(default_factory=dict)
    order: tuple[int, ...] = ()

    @property
    def adapter(self) -> Adapter:
        """The adapter."""
        return self.reader.adapter

    def drawn(self, state: Any, arrays: Iterable[Arrays], x: FloatArray) -> dict[str, FloatArray]:
        """Return outputs, scores or attention weights, keys or their Gram matrices, and those of values, by name.

        Each module has one of `arrays`, and one sequence of `x`, (N, positions, n).
        """
        filled = self.adapter.filled
        calls = (self.reader.see(filled(state, a), each) for a, each in zip(arrays, x[:, None], strict=True))
        parts = [self._exposed(each) for each in calls]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _exposed(self, call: AttentionCall) -> dict[str, FloatArray]:
        y, scores, k, v = self._taken(call)
        size = v.shape[-1]
        keys = {"keys": self.rotation.undone(k)} if self.rotation else {"key_gram": k @ k.swapaxes(-1, -2) / size}
        return {
            "outputs": y[:, :, :NEURONS],
            **({"attention": self._ordered(call.weights)} if "weights" in self.unread else {"scores": scores}),
            **({} if "key" in self.unread else keys),
            "value_gram": v @ v.swapaxes(-1, -2) / size,
        }

    def matrices(self, state: Any) -> dict[str, FloatArray]:
        """Return the matrices as initialised, by role."""
        read = self.reader.read(state)
        return {role: read[role] / self._gain(role) for role in (*ROLES, "output")}

    def biases(self, state: Any) -> dict[str, FloatArray]:
        """Return biases by role, one row per head."""
        return {role: np.atleast_2d(b) / self._gain(role) for role, b in self.reader.biases(state).items()}

    def outputs(self, state: Any, layer: AttentionLayer, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the module's outputs on x, (1, positions, n), and those of `layer` with the module's matrices."""
        call = self.reader.see(state, x)
        y, scores, _, v = self._taken(call)
        matrices = self.reader.read(state)
        layer = layer.replace(seq_len=x.shape[1])
        weights = self._ordered(call.weights)
        if "weights" not in self.unread:
            weights = attention_weights(layer, scores + mean_offset(layer))
        heads = weights @ v
        output = self._ordered(matrices.output.reshape(1, heads.shape[1], heads.shape[-1], -1))[0]
        expected = np.einsum("bhsd,hdn->bsn", heads, output) + matrices.biases["output"]
        return y, np.asarray(expected)

    def lengths(self, *preferred: int) -> tuple[int, ...]:
        """Return the given sequence lengths, or the only one that the module accepts."""
        return preferred if self.reader.any_length else (self.reader.length,)

    def _taken(self, call: AttentionCall) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return outputs, scores, keys divided by their factor, and values, repeated for all heads."""
        repeat = functools.partial(np.repeat, axis=1)
        heads = call.query.shape[1]
        every = (repeat(array, heads // array.shape[1]) for array in (call.query, call.key, call.value))
        q, k, v = map(self._ordered, every)
        q, k = q / self._gain("query"), k / self._gain("key")
        return call.y, self.factor * (q @ k.swapaxes(-1, -2)), k, v

    def _ordered(self, of_heads: FloatArray) -> FloatArray:
        """Return an array (draws, heads, ...) with heads in the order of the groups."""
        return of_heads[:, self.order] if self.order else of_heads

    def _gain(self, role: str) -> float:
        return self.gains.get(role, 1.0)
