"""Views of a module for a subject, through its attention call or its hand-written softmax."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from attncheck.frameworks.binding import Arrays, FloatArray, Instrument
from attncheck.frameworks.effective import ROLES, AttentionCall, ModuleReader
from attncheck.frameworks.factors import Factors
from attncheck.frameworks.rotary import Rotation
from attncheck.frameworks.softmax import HIDDEN, Products, Watcher
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights

#: Number of output neurons returned.
NEURONS = 2
# Biases below this fraction of their product are rounding errors.
_NO_BIAS = 1e-5
# Relative tolerance for sums in a different order.
_SAME = 1e-3


class AttentionView(Protocol):
    """Access to a module's attention."""

    @property
    def instrument(self) -> Instrument:
        """The binding."""
        ...

    @property
    def width(self) -> int:
        """Neurons of an input."""
        ...

    def drawn(self, state: Any, arrays: Sequence[Arrays], x: FloatArray) -> dict[str, FloatArray]:
        """Return draws of N modules on x, (N, L, n), one input each, with the names of `attncheck.Draws`."""
        ...

    def if_the_same(self, state: Any, arrays: Sequence[Arrays], x: FloatArray) -> Self:
        """Return a view that runs modules in one batch, if results agree."""
        ...

    def matrices(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the matrices of a module, by role."""
        ...

    def biases(self, state: Any) -> dict[str, FloatArray]:
        """Return biases by role, one row per head."""
        ...

    def outputs(self, state: Any, layer: AttentionLayer, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return outputs on x, (1, L, n), and those of a layer with the module's matrices, both (1, L, m)."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class CallView:
    """Access to queries, keys and values by a module's call of an attention function.

    Parameters
    ----------
    reader : ModuleReader
    factor : float
        Factor of the products of queries and keys as initialised.
    rotation : Rotation, optional
    gains : mapping of str to float
        Factors of queries and keys, by role.
    at_once : bool
        Whether modules run in one batch.
    """

    reader: ModuleReader
    factor: float
    rotation: Rotation | None = None
    gains: Mapping[str, float] = dataclasses.field(default_factory=dict)
    at_once: bool = False

    @property
    def instrument(self) -> Instrument:
        """The binding."""
        return self.reader.instrument

    @property
    def width(self) -> int:
        """Neurons of an input."""
        return self.reader.width

    def drawn(self, state: Any, arrays: Sequence[Arrays], x: FloatArray) -> dict[str, FloatArray]:
        """Return outputs, scores, and keys or Gram matrices of keys and values."""
        if self.at_once:
            return self._exposed(self.reader.see_each(state, _stacked(arrays), x))
        filled = self.instrument.fill
        seen = (self.reader.see(filled(state, a), each) for a, each in zip(arrays, x[:, None], strict=True))
        parts = [self._exposed(each) for each in seen]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def if_the_same(self, state: Any, arrays: Sequence[Arrays], x: FloatArray) -> Self:
        """Return a view that runs modules in one batch, if results agree."""
        faster = dataclasses.replace(self, at_once=True)
        one_by_one = self.drawn(state, arrays, x)
        try:
            together = faster.drawn(state, arrays, x)
        except Exception:  # batched runs fail in many ways
            return self
        same = (
            together[name].shape == a.shape and np.abs(together[name] - a).max() <= _SAME * np.abs(a).max()
            for name, a in one_by_one.items()
        )
        return faster if all(same) else self

    def _exposed(self, seen: AttentionCall) -> dict[str, FloatArray]:
        y, scores, k, v = self._taken(seen)
        size = v.shape[-1]
        return {
            "outputs": y[:, :, :NEURONS],
            "scores": scores,
            **({"keys": self.rotation.undone(k)} if self.rotation else {"key_gram": k @ k.swapaxes(-1, -2) / size}),
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
        """Return outputs on x, (1, L, n), and those of a layer from queries, keys, values and W_O."""
        y, scores, _, v = self._taken(self.reader.see(state, x))
        matrices = self.reader.read(state)
        merged = (attention_weights(layer.replace(seq_len=x.shape[1]), scores) @ v).swapaxes(1, 2)
        made = merged.reshape(*merged.shape[:2], -1) @ matrices.output + matrices.biases["output"]
        return y, np.asarray(made)

    def _taken(self, seen: AttentionCall) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return outputs, scores, and keys and values as initialised, for all heads."""
        repeat = functools.partial(np.repeat, axis=1)
        heads = seen.query.shape[1]
        q, k, v = (repeat(each, heads // each.shape[1]) for each in (seen.query, seen.key, seen.value))
        q, k = q / self._gain("query"), k / self._gain("key")
        return seen.y, self.factor * (q @ k.swapaxes(-1, -2)), k, v

    def _gain(self, role: str) -> float:
        return self.gains.get(role, 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxView:
    """View through a softmax, with matrices found among the parameters."""

    watcher: Watcher
    factors: Factors

    @property
    def instrument(self) -> Instrument:
        """The binding."""
        return self.watcher.instrument

    @property
    def width(self) -> int:
        """Neurons of an input."""
        return self.watcher.width

    def drawn(self, state: Any, arrays: Sequence[Arrays], x: FloatArray) -> dict[str, FloatArray]:
        """Return outputs and scores."""
        filled = self.instrument.fill
        seen = (self.watcher.watch(filled(state, a), each) for a, each in zip(arrays, x[:, None], strict=True))
        y, scores = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        return {"outputs": y[:, :, :NEURONS], "scores": np.where(scores < HIDDEN, -np.inf, scores)}

    def if_the_same(self, state: Any, arrays: Sequence[Arrays], x: FloatArray) -> Self:
        """Return this view: it does not batch modules."""
        return self

    def matrices(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the matrices of a module, by role."""
        return self.factors.matrices(self.instrument.parameters(state))

    def biases(self, state: Any) -> dict[str, FloatArray]:
        """Return biases by role, one row per head."""
        return biases_of(self.watcher.read(state)[0], self.factors, self.matrices(state))

    def outputs(self, state: Any, layer: AttentionLayer, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return outputs on x, (1, L, n), in the span of the unit vectors, and those of the products."""
        products, x = self.watcher.read(state)[0], x.copy()
        x[:, :, self.watcher.side :] = 0.0
        y, scores = self.watcher.watch(state, x)
        values = x[0, :, : self.watcher.side] @ products.values + products.value_bias[:, None]
        weights = attention_weights(layer.replace(seq_len=x.shape[1]), scores[0])
        return y, np.asarray((weights @ values).sum(axis=0) + products.silent)[None]


def _stacked(arrays: Sequence[Arrays]) -> dict[str, FloatArray]:
    return {name: np.stack([each[name] for each in arrays]) for name in arrays[0]}


def biases_of(products: Products, found: Factors, matrices: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return biases by role: (H, d), and (1, m) for the output."""
    m, heads = products.values.shape[1], len(products.values)
    blocks = matrices["output"].reshape(heads, found.head_dim, -1).swapaxes(1, 2)
    beside = {"value": (blocks, products.value_bias, products.values)}
    if "query" in matrices:
        query, key = (found.factor * matrices[role][:m].swapaxes(0, 1) for role in ("query", "key"))
        beside |= {"query": (key, products.column, products.scores), "key": (query, products.row, products.scores)}
    biases = {role: np.zeros((heads, 1)) for role in ROLES} | {"output": products.silent[None]}
    for role, (of, bias, product) in beside.items():
        # Smaller values are rounding errors of the products.
        if np.abs(bias).max() > _NO_BIAS * np.abs(product).max():
            biases[role] = (np.linalg.pinv(of) @ bias[..., None])[..., 0]
    return biases
