"""A module as a subject for checks, sampled by its own forward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_choice, refuse
from attncheck._lib.text import listed
from attncheck.frameworks import laws as entry_laws
from attncheck.frameworks.adapter import Adapter, Arrays
from attncheck.frameworks.effective import ROLES, AttentionCall, ModuleReader, agree
from attncheck.frameworks.initialiser import SYMBOLS
from attncheck.frameworks.rotary import Rotation
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import PARTS
from attncheck.layers.parts.position_bias import mean_offset
from attncheck.simulators.weights import GAUSSIAN, WEIGHT_LAWS

if TYPE_CHECKING:
    from attncheck.frameworks.result import Inspection

#: Number of output neurons returned.
NEURONS = 2
OWN = "own"
# Tolerance for outputs computed from the module's own matrices, relative to the largest output.
_CLOSE = 1e-2
# The module rescales a parameter if the root mean squares of the matrix and of the stored parameter differ by a factor
# above this. Chance alone causes smaller factors.
_GAIN = 1.25
# Smaller biases are zeros up to rounding.
_SMALL = 1e-6
# Number of bias entries needed to estimate their law, and maximum number of modules drawn to obtain them.
_ENTRIES, _MODULES = 2**13, 1024
# Number of decimals to which rows of a bias are compared, because biases that are computed from products are inexact.
_DIGITS = 3
_SEEDS = 2**31
_NORMAL = "normal"


#: Function that draws the arrays of one module.
Draw = Callable[[np.random.Generator], Arrays]


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
        Standard deviations of module parameters that optional parts hide from inspection, by role, as returned by
        `LayerPart.unread`.
    order : tuple of int
        Permutation of the heads that makes the heads of a group consecutive; empty if they already are.
    """

    reader: ModuleReader
    factor: float
    rotation: Rotation | None = None
    gains: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unread: Mapping[str, float] = dataclasses.field(default_factory=dict)
    order: tuple[int, ...] = ()

    @property
    def adapter(self) -> Adapter:
        """Adapter to the module's framework."""
        return self.reader.adapter

    def drawn(self, state: Any, arrays: Iterable[Arrays], x: FloatArray) -> dict[str, FloatArray]:
        """Return what checks examine, by name, for one module per sequence of `x`, (N, positions, n).

        Names are "outputs", "value_gram", "scores" or "attention" (weights), and "keys" or "key_gram". The module is
        filled with the next element of `arrays` for each sequence.
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
        """Return the module's outputs on x, (1, positions, n), and the outputs of `layer` with the module's matrices.

        If both agree, the outputs contain nothing but attention.
        """
        call = self.reader.see(state, x)
        y, scores, _, v = self._taken(call)
        matrices = self.reader.read(state)
        layer = layer.replace(seq_len=x.shape[1])
        weights = self._ordered(call.weights)
        if "weights" not in self.unread:
            weights = layer.attention_weights(scores + mean_offset(layer))
        heads = weights @ v
        output = self._ordered(matrices.output.reshape(1, heads.shape[1], heads.shape[-1], -1))[0]
        expected = np.einsum("bhsd,hdn->bsn", heads, output) + matrices.biases["output"]
        return y, np.asarray(expected)

    def lengths(self, *preferred: int) -> tuple[int, ...]:
        """Return the given sequence lengths, or the only one that the module accepts."""
        return preferred if self.reader.any_length else (self.reader.length,)

    def _taken(self, call: AttentionCall) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the outputs, scores, keys and values of a call, with keys and values repeated for every query head.

        Keys are divided by the factor that multiplies them before attention, if it is known.
        """
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


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleSubject:
    """A module that is called like a simulator: ``subject(layer, inputs, rng)``.

    Parameters
    ----------
    view : AttentionView
    state
        Module whose arrays are replaced in every draw.
    layer : AttentionLayer
    weights : str or mapping
        Laws, as for `attncheck.simulators.weights.WeightLaws.of`.
    arrays : callable
        ``arrays(rng)`` returns the arrays of one module.

    Attributes
    ----------
    layers : list of AttentionLayer
        Layers that a run checks by default.
    """

    view: AttentionView
    state: Any
    layer: AttentionLayer
    weights: str | Mapping[str, Any]
    arrays: Draw

    @property
    def layers(self) -> list[AttentionLayer]:
        """The module's layer with 2, 4 and 8 positions, or with the only number that the module accepts."""
        return [self.layer.replace(seq_len=length) for length in self.view.lengths(2, 4, 8)]

    def supports(self, layer: AttentionLayer) -> bool | str:
        """Return True if a layer has the module's width and heads, else a text that says it has not.

        Other fields are not compared here, because a run tests the module against them.
        """
        mine = all(getattr(layer, name) == getattr(self.layer, name) for name in ("width", "num_heads", "head_width"))
        return mine or "the module has a different width or heads"

    def __call__(self, layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw one module per sequence of inputs, (N, positions, width); return results on these sequences by name."""
        drawn = self.view.drawn(self.state, (self.arrays(rng) for _ in inputs), inputs)
        if "scores" in drawn:
            drawn["scores"] = drawn["scores"] + mean_offset(self.layer.replace(seq_len=inputs.shape[1]))
        return drawn


def subject_of(inspection: Inspection, layer: AttentionLayer, weights: str) -> ModuleSubject:
    """Return the module of an inspection as a subject for checks.

    If `weights` is "gaussian", matrices are drawn from normal laws with the module's scales; if it is "own", weights
    are drawn by the module's initialiser. `layer` describes the inspected layer. Raises `InputError` if arrays cannot
    be replaced, or if outputs contain more than attention.
    """
    check_choice("weights", weights, (GAUSSIAN, OWN))
    view, stds, adapter = inspection.view, inspection.stds, inspection.view.adapter
    if not adapter.fills:
        remedy = "give it the methods `parameters` and `fill`"
        refuse("weights", weights, "needs an adapter that can replace arrays", remedy)
    state = adapter.fresh(0)
    view = dataclasses.replace(view, unread={k: std for part in PARTS for k, std in part.unread(layer).items()})
    if weights == OWN and view.unread:
        refuse("weights", weights, "needs the laws of all matrices, some of which are unknown", "pass 'gaussian'")
    if weights == OWN and isinstance(layer.sink, tuple):
        refuse("sink", layer.sink, "differs between heads, so that it may be random, too", "pass 'gaussian'")
    if weights == OWN and adapter.draws:
        problem = f"needs a new module in every draw, but only {len(adapter.draws)} models were initialised"
        refuse("weights", weights, problem, "pass weights='gaussian', or inspect the module without its model")
    if weights == OWN:
        # If the score scale is none that `AttentionLayer` supports, `layer.query_std` includes a factor, which then
        # also applies to the bias of queries.
        declared: dict[str, Any] = {role: _law(m.name, m.laws) for role, m in inspection.weights.items()}
        declared |= _biases(view, layer, {"query": layer.query_std / stds["query"]})
        return _checked(ModuleSubject(view, state, layer, declared, functools.partial(_initialised, adapter)))
    fans = _fans(layer)
    entry_stds = {role: std / fans[role] ** 0.5 for role, std in stds.items()}
    arrays = functools.partial(_gaussian, _copied(adapter, state), _by_array(view, state, entry_stds))
    return _checked(ModuleSubject(view, state, layer, GAUSSIAN, arrays))


def _law(field: str, accepted: Sequence[str]) -> str:
    known = [name for name in WEIGHT_LAWS if (_NORMAL if name == GAUSSIAN else name) in accepted]
    if not known:
        problem = f"has entries of a law that checks do not know ({' or '.join(accepted)})"
        refuse(field, OWN, problem, "pass weights='gaussian'")
    return known[0]


def _biases(view: AttentionView, layer: AttentionLayer, factors: Mapping[str, float]) -> dict[str, tuple[str, float]]:
    """Return the law and the standard deviation times √fan-in of each random bias, by name such as "query_bias".

    Biases have few entries, so additional modules are drawn. `factors` multiply the standard deviations, by role.
    """
    drawn: dict[str, list[FloatArray]] = {}
    for seed in range(_MODULES):
        for role, bias in view.biases(view.adapter.fresh(seed)).items():
            drawn.setdefault(role, []).append(_different(bias))
        if all(np.abs(rows[0]).max() <= _SMALL or sum(map(np.size, rows)) >= _ENTRIES for rows in drawn.values()):
            break
    biases, fans = {}, _fans(layer)
    for role, rows in drawn.items():
        entries = np.concatenate(rows, axis=None)
        if np.abs(entries).max() > _SMALL:
            scale = entry_laws.scale_of(entries)
            law = _law(f"bias of {SYMBOLS[role]}", entry_laws.laws_of(entries, scale, view.adapter.precision))
            biases[f"{role}_bias"] = (law, scale.std * factors.get(role, 1.0) * fans[role] ** 0.5)
    return biases


def _different(bias: FloatArray) -> FloatArray:
    """Return the distinct rows of a bias, (heads, d); rows that agree up to rounding count as one."""
    digits = np.round(bias / max(float(np.abs(bias).max()), _SMALL), _DIGITS)
    return bias[np.unique(digits, axis=0, return_index=True)[1]]


def _fans(layer: AttentionLayer) -> dict[str, int]:
    return dict.fromkeys(ROLES, layer.width) | {"output": layer.num_heads * layer.head_width}


def _initialised(adapter: Adapter, rng: np.random.Generator) -> Arrays:
    return adapter.initialised(int(rng.integers(_SEEDS)))


def _gaussian(arrays: Arrays, stds: Mapping[str, float], rng: np.random.Generator) -> Arrays:
    return {**arrays, **{name: std * rng.standard_normal(arrays[name].shape) for name, std in stds.items()}}


def _copied(adapter: Adapter, state: Any) -> Arrays:
    return {name: array.copy() for name, array in adapter.parameters(state).items()}


def _by_array(view: AttentionView, state: Any, stds: Mapping[str, float]) -> dict[str, float]:
    """Return the standard deviation with which to redraw each array, by array name.

    `stds` has the standard deviation of an entry for each role whose matrix is known. Arrays of biases get 0, and
    arrays that are not in the result keep their values. Each array is multiplied by -2 in turn; what changes with it
    shows its roles.
    """
    adapter, arrays, missing = view.adapter, _copied(view.adapter, state), dict(view.unread)
    matrices, biases, hidden = view.matrices(state), view.biases(state), _hidden(view, state)
    array_stds: dict[str, float] = {}
    for name, array in arrays.items():
        other = adapter.filled(state, {**arrays, name: -2.0 * array})
        changed = _changed(matrices, view.matrices(other), adapter.precision) if array.ndim > 1 else []
        roles = [role for role in stds if role in changed]
        scales = {stds[role] for role in roles}
        if len(scales) > 1:
            names = ", ".join(SYMBOLS[role] for role in roles)
            problem = f"are different scales for {names}, which share one array"
            refuse(name, sorted(scales), problem, "pass weights='own'")
        if scales:
            _refuse_gains(name, array, {role: matrices[role] for role in roles})
            array_stds[name] = scales.pop()
        elif _changed(biases, view.biases(other), adapter.precision):
            array_stds[name] = 0.0
        for role in _changed(hidden, _hidden(view, other), adapter.precision) if array.ndim > 1 else ():
            array_stds.setdefault(name, view.unread[role])
            missing.pop(role, None)
    adapter.filled(state, arrays)
    if missing:
        symbols = listed(SYMBOLS.get(role, "the biases of the scores") for role in missing)
        problem = f"needs {symbols}, which no matrix or table of this module determines"
        refuse("subject", type(state).__name__, problem, "check a simulator of `layer` instead")
    return array_stds


def _hidden(view: AttentionView, state: Any) -> dict[str, FloatArray]:
    """Return, by role, the inputs or weights of attention that matrices hidden by optional parts determine."""
    if not view.unread:
        return {}
    # The second sequence is zero, so its attention weights show only what is added to scores.
    x = np.zeros((2, view.lengths(4)[0], view.reader.width))
    x[0] = np.random.default_rng(0).standard_normal(x.shape[1:])
    call = view.reader.see(state, x)
    return {role: call[role][1:] if role == "weights" else call[role] for role in view.unread}


def _changed(before: Mapping[str, FloatArray], after: Mapping[str, FloatArray], precision: float) -> list[str]:
    """Return the roles whose matrix or bias changed beyond rounding."""
    return [role for role, array in before.items() if not agree(array, after[role], precision)]


def _refuse_gains(name: str, array: FloatArray, effective: Mapping[str, FloatArray]) -> None:
    """Refuse an array that the module rescales.

    `name` is the name of the array, and `effective` has the matrices that are computed from it, by role.
    """
    for role, matrix in effective.items():
        gain = float(np.sqrt(np.mean(matrix**2) / np.mean(array**2)))
        if not 1 / _GAIN < gain < _GAIN:
            refuse(
                name,
                round(gain, 3),
                f"is the ratio of the sizes of {SYMBOLS[role]} and this array: the module rescales it",
                "pass weights='own'",
            )


def _checked(subject: ModuleSubject) -> ModuleSubject:
    """Return the subject; refuse a module whose outputs contain more than attention."""
    view, rng = subject.view, np.random.default_rng(0)
    state = view.adapter.filled(subject.state, subject.arrays(rng))
    if subject.weights == GAUSSIAN:
        for role, bias in view.biases(state).items():
            if np.abs(bias).max() > _SMALL:
                remedy = "make the module without biases, or pass weights='own'"
                refuse(
                    "bias", float(np.abs(bias).max()), f"is added with {SYMBOLS[role]}, and cannot be set to 0", remedy
                )
    length = view.lengths(4)[0]
    y, expected = view.outputs(state, subject.layer, rng.standard_normal((1, length, view.reader.width)))
    off = float(np.abs(y - expected).max() / np.abs(y).max())
    if not off < _CLOSE:
        problem = f"differs from attention alone by {off:.2g} of its largest output, e.g. by a residual path or a norm"
        refuse(
            "call", type(state).__name__, problem, "pass call=lambda module, x: ..., which returns attention's output"
        )
    return subject
