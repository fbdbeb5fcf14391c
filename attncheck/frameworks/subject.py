"""A module as a subject: sampled end to end through its own forward, as checks ask for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import check_choice, refuse
from attncheck.frameworks import laws as entry_laws
from attncheck.frameworks.binding import Arrays, FloatArray, Instrument
from attncheck.frameworks.effective import ROLES, alike
from attncheck.frameworks.initialiser import SYMBOLS
from attncheck.frameworks.views import AttentionView
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import GAUSSIAN, WEIGHT_LAWS

OWN = "own"
# A module's outputs follow from its own matrices to this part of the largest.
_CLOSE = 1e-2
# Beyond this ratio of sizes an array is no matrix by itself; entries of few are that far off by chance.
_GAIN = 1.25
# Biases below are the rounding of zeros.
_SMALL = 1e-6
# So many entries of a bias tell its law and its scale, from so many modules at most.
_ENTRIES, _MODULES = 2**13, 1024
# Biases that are read off products have so many digits.
_DIGITS = 3
_SEEDS = 2**31
_NORMAL = "normal"

# Modules that tell whether many run at once as they do one by one.
_FEW = 3
# Entries of modules that are drawn together, and of a module that takes longer to be drawn than to be called.
_STORED, _LARGE = 2**21, 2**16

#: Makes the arrays of one more module.
Draw = Callable[[np.random.Generator], Arrays]


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleSubject:
    """A module that draws as a simulator does: ``subject(layer, inputs, rng)``.

    Parameters
    ----------
    view : AttentionView
    state
        The module whose arrays are replaced, draw by draw.
    layer : AttentionLayer
        What it is, over some number of positions.
    weights : str or mapping
        The law of its matrices and its biases, as `attncheck.simulators.weights.WeightLaws.of` takes them.
    arrays : callable
        Draws the arrays of a module.

    Attributes
    ----------
    layers : list of AttentionLayer
        What a run examines it on.
    """

    view: AttentionView
    state: Any
    layer: AttentionLayer
    weights: str | Mapping[str, Any]
    arrays: Draw

    @property
    def layers(self) -> list[AttentionLayer]:
        """The layer that it is, over few and over more positions."""
        return [self.layer.replace(seq_len=length) for length in (2, 4, 8)]

    def supports(self, layer: AttentionLayer) -> bool | str:
        """Return whether it can draw a layer: one of its width and heads; all else of the layer is a claim on it."""
        mine = all(getattr(layer, name) == getattr(self.layer, name) for name in ("width", "num_heads", "head_width"))
        return mine or "the module has another width or other heads"

    def __call__(self, layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw a module for every draw of the inputs, (N, s, n), and run each on its own."""
        step = max(1, _STORED // _entries(self.view.instrument.parameters(self.state)))
        parts = []
        for start in range(0, len(inputs), step):
            some = inputs[start : start + step]
            parts.append(self.view.drawn(self.state, [self.arrays(rng) for _ in some], some))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def subject_of(
    view: AttentionView,
    layer: AttentionLayer,
    weights: str,
    laws: Mapping[str, Sequence[str]],
    stds: Mapping[str, float],
) -> ModuleSubject:
    """Return a module as a subject.

    Parameters
    ----------
    view : AttentionView
    layer : AttentionLayer
        What an inspection found.
    weights : {"gaussian", "own"}
        Gaussian matrices of the layer's scales in place of the module's, or what its initialiser draws.
    laws : mapping of str to tuple of str
        By role, the laws that are not refused.
    stds : mapping of str to float
        By role, the standard deviation times √fan-in of what is put in.

    Raises
    ------
    InputError
        If the binding cannot put arrays into a module, or if outputs are more than attention of the layer.
    """
    check_choice("weights", weights, (GAUSSIAN, OWN))
    instrument = view.instrument
    if not instrument.fills:
        refuse("weights", weights, "cannot be put into modules of this binding", "give it parameters and fill")
    state = instrument.init(0)
    if weights == OWN:
        # A scale of scores that a layer has no word for is one of its queries, and of their bias.
        declared = _laws(laws) | _biases(view, layer, {"query": layer.query_std / stds["query"]})
        return _checked(ModuleSubject(view, state, layer, declared, _initialised(instrument)))
    fans = _fans(layer)
    own = {role: std / fans[role] ** 0.5 for role, std in stds.items()}
    arrays = _gaussian(instrument, state, _by_array(view, state, own))
    return _checked(ModuleSubject(view, state, layer, GAUSSIAN, arrays))


def _laws(laws: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return a law of each matrix that is not refused, by role."""
    return {role: _law(SYMBOLS[role], left) for role, left in laws.items()}


def _law(what: str, left: Sequence[str]) -> str:
    known = [name for name in WEIGHT_LAWS if (_NORMAL if name == GAUSSIAN else name) in left]
    if not known:
        problem = f"has entries of a law that checks do not know ({' or '.join(left)})"
        refuse(what, OWN, problem, "pass weights='gaussian'")
    return known[0]


def _biases(view: AttentionView, layer: AttentionLayer, factors: Mapping[str, float]) -> dict[str, tuple[str, float]]:
    """Return the law of each bias that is drawn, and its standard deviation times √fan-in, as checks take them.

    A module has few entries of a bias, so that more modules are drawn than for its matrices.
    """
    drawn: dict[str, list[FloatArray]] = {}
    for seed in range(_MODULES):
        for role, bias in view.biases(view.instrument.init(seed)).items():
            drawn.setdefault(role, []).append(_different(bias))
        if all(np.abs(rows[0]).max() <= _SMALL or sum(map(np.size, rows)) >= _ENTRIES for rows in drawn.values()):
            break
    found, fans = {}, _fans(layer)
    for role, rows in drawn.items():
        entries = np.concatenate(rows, axis=None)
        if np.abs(entries).max() > _SMALL:
            scale = entry_laws.scale_of(entries)
            law = _law(f"bias of {SYMBOLS[role]}", entry_laws.laws_of(entries, scale, view.instrument.precision))
            found[f"{role}_bias"] = (law, scale.std * factors.get(role, 1.0) * fans[role] ** 0.5)
    return found


def _different(bias: FloatArray) -> FloatArray:
    """Return the rows of a bias, (heads, d), that differ by more than rounding: heads that share it have it once."""
    digits = np.round(bias / max(float(np.abs(bias).max()), _SMALL), _DIGITS)
    return bias[np.unique(digits, axis=0, return_index=True)[1]]


def _fans(layer: AttentionLayer) -> dict[str, int]:
    return dict.fromkeys(ROLES, layer.width) | {"output": layer.num_heads * layer.head_width}


def _initialised(instrument: Instrument) -> Draw:
    def arrays(rng: np.random.Generator) -> Arrays:
        return instrument.initialised(int(rng.integers(_SEEDS)))

    return arrays


def _gaussian(instrument: Instrument, state: Any, stds: Mapping[str, float]) -> Draw:
    kept = {name: array.copy() for name, array in instrument.parameters(state).items()}

    def arrays(rng: np.random.Generator) -> Arrays:
        return kept | {name: std * rng.standard_normal(kept[name].shape) for name, std in stds.items()}

    return arrays


def _by_array(view: AttentionView, state: Any, stds: Mapping[str, float]) -> dict[str, float]:
    """Return the standard deviations of what is drawn, by name; `stds` are by role.

    Arrays that are matrices of attention have those of their roles, biases have 0, and no others are drawn. What an
    array is shows where it is doubled.
    """
    instrument = view.instrument
    kept = {name: array.copy() for name, array in instrument.parameters(state).items()}
    matrices, biases = view.matrices(state), view.biases(state)
    found: dict[str, float] = {}
    for name, array in kept.items():
        if not array.any():
            continue
        doubled = instrument.fill(state, kept | {name: 2.0 * array})
        changed = _changed(matrices, view.matrices(doubled), instrument.precision)
        roles = [role for role in stds if role in changed and array.ndim > 1]
        told = {stds[role] for role in roles}
        if len(told) > 1:
            names = ", ".join(SYMBOLS[role] for role in roles)
            refuse(name, sorted(told), f"is one array with more than one scale for {names}", "pass weights='own'")
        if told:
            _refuse_gains(name, array, {role: matrices[role] for role in roles})
            found[name] = told.pop()
        elif _changed(biases, view.biases(doubled), instrument.precision):
            found[name] = 0.0
    instrument.fill(state, kept)
    return found


def _changed(before: Mapping[str, FloatArray], after: Mapping[str, FloatArray], precision: float) -> list[str]:
    """Return the roles of which there is another matrix or bias, rounding aside."""
    return [role for role, array in before.items() if not alike(array, after[role], precision)]


def _refuse_gains(name: str, array: FloatArray, effective: Mapping[str, FloatArray]) -> None:
    """Refuse an array that a module multiplies before attention, or after it: its scale is not that of the matrix."""
    for role, matrix in effective.items():
        gain = float(np.sqrt(np.mean(matrix**2) / np.mean(array**2)))
        if not 1 / _GAIN < gain < _GAIN:
            refuse(name, round(gain, 3), f"is what it is multiplied by to make {SYMBOLS[role]}", "pass weights='own'")


def _checked(subject: ModuleSubject) -> ModuleSubject:
    """Refuse a module whose outputs are more than attention of its layer, such as a residual path."""
    view, rng = subject.view, np.random.default_rng(0)
    state = view.instrument.fill(subject.state, subject.arrays(rng))
    if subject.weights == GAUSSIAN:
        for role, bias in view.biases(state).items():
            if np.abs(bias).max() > _SMALL:
                remedy = "make the module without, or pass weights='own'"
                refuse("bias", float(np.abs(bias).max()), f"comes with {SYMBOLS[role]}, and is not set to 0", remedy)
    y, made = view.outputs(state, subject.layer, rng.standard_normal((1, 4, view.width)))
    off = float(np.abs(y - made).max() / np.abs(y).max())
    if not off < _CLOSE:
        problem = f"returns {off:.2g} of its largest output beyond attention, such as a residual path or a norm"
        refuse("call", type(state).__name__, problem, "pass call=lambda module, x: ..., which returns attention's own")
    few = [subject.arrays(rng) for _ in range(_FEW)]
    if _entries(few[0]) > _LARGE:
        return subject
    return dataclasses.replace(subject, view=view.if_the_same(state, few, rng.standard_normal((_FEW, 3, view.width))))


def _entries(arrays: Arrays) -> int:
    return sum(map(np.size, arrays.values()))


def pooled(stds: Mapping[str, tuple[float, float, float]]) -> dict[str, float]:
    """Return one number for the standard deviations that are not told apart, by role.

    Parameters
    ----------
    stds : mapping of str to tuple of float
        Number, low and high end of its interval.

    Examples
    --------
    >>> pooled({"query": (0.7, 0.6, 0.8), "key": (0.8, 0.7, 0.9), "output": (2.0, 1.9, 2.1)})
    {'query': 0.75..., 'key': 0.75..., 'output': 2.0}
    """
    found = {}
    for role, (_, low, high) in stds.items():
        alike = [std for std, least, most in stds.values() if least <= high and low <= most]
        found[role] = float(np.mean(alike)) if len(alike) > 1 else stds[role][0]
    return found
