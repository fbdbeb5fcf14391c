"""Candidate causes of a wrong simulator, each with a simulator and a message."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck._lib.text import listed
from attncheck.checks.answers import projected
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.faults import FAULTS
from attncheck.faults.fault import MisreadLayer
from attncheck.layers.attention import SCORE_SCALINGS, AttentionLayer
from attncheck.layers.inputs import ACTIVATIONS, DEFAULT_CLIP, NORMS
from attncheck.layers.norm import normalised
from attncheck.layers.parts import PARTS
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from attncheck.layers.requirements import SOFTMAX
from attncheck.simulators.collapsed import draw_images
from attncheck.simulators.linalg import gram_of
from attncheck.simulators.literal import LiteralSimulator, Projections, dot_products
from attncheck.simulators.weights import GAUSSIAN_LAWS, WEIGHT_LAWS, Bias, WeightLaws, draw_with_weights

Draw = Callable[[AttentionLayer, int, np.random.Generator], Mapping[str, FloatArray]]
Change = Callable[[AttentionLayer], Mapping[str, Any]]

# Candidate factors of a standard deviation: name in the message, and the factor as a function of the layer.
_FACTORS: dict[str, Callable[[AttentionLayer], float]] = {
    "√n": lambda layer: layer.width**0.5,
    "n": lambda layer: float(layer.width),
    "√head_dim": lambda layer: layer.head_width**0.5,
    "head_dim": lambda layer: float(layer.head_width),
    "√(n/head_dim)": lambda layer: (layer.width / layer.head_width) ** 0.5,
    "√H": lambda layer: layer.num_heads**0.5,
    "H": lambda layer: float(layer.num_heads),
    "√(H·head_dim)": lambda layer: (layer.num_heads * layer.head_width) ** 0.5,
    "√(H·head_dim/n)": lambda layer: (layer.num_heads * layer.head_width / layer.width) ** 0.5,
    "√(n + H·head_dim)/√(2n)": lambda layer: (0.5 + 0.5 * layer.num_heads * layer.head_width / layer.width) ** 0.5,
    "√s": lambda layer: layer.seq_len**0.5,
    "√(n/s)": lambda layer: (layer.width / layer.seq_len) ** 0.5,
    "√(n/(n-1))": lambda layer: (layer.width / max(layer.width - 1, 1)) ** 0.5,
    "√2": lambda layer: 2.0**0.5,
    "2": lambda layer: 2.0,
    "√3": lambda layer: 3.0**0.5,
    "√(4/3)": lambda layer: (4 / 3) ** 0.5,
    "0.02·√n": lambda layer: 0.02 * layer.width**0.5,
}
# Further factors, which are tried only if layers differ in width: at a single width, they are numbers like any others.
_POWERS: dict[str, Callable[[AttentionLayer], float]] = {
    "n^(1/4)": lambda layer: layer.width**0.25,
    "head_dim^(1/4)": lambda layer: layer.head_width**0.25,
}
#: Maximum number of output neurons of a candidate's draws.
NEURONS = 2
# Fields with the standard deviations of W_Q, W_K, W_V and W_O, and the sets of them that may be wrong together.
_SCORES, _KEYS, _VALUES, _OUTPUTS = "query_std", "key_std", "value_std", "output_std"
_SETS: tuple[tuple[str, ...], ...] = (
    (_SCORES,),
    (_KEYS,),
    (_VALUES,),
    (_OUTPUTS,),
    (_SCORES, _KEYS),
    (_SCORES, _KEYS, _VALUES),
    (_VALUES, _OUTPUTS),
    (_SCORES, _KEYS, _VALUES, _OUTPUTS),
)
_MATRIX = {_SCORES: "W_Q", _KEYS: "W_K", _VALUES: "W_V", _OUTPUTS: "W_O"}
_MATRIX_OF = ("query", "key", "value", "output")
# _UNDECLARED lists sets of nn.Linear modules that may have undeclared biases. _LINEAR is the standard deviation of
# nn.Linear's default weights, times √fan-in.
_UNDECLARED = (_MATRIX_OF, _MATRIX_OF[:3], _MATRIX_OF[3:])
_LINEAR = 3.0**-0.5
_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "score_scaling": SCORE_SCALINGS,
    "attention_map": ATTENTION_MAPS,
    "mask": MASKS,
    "head_scaling": (True, False),
    "head_dim": (None,),
    "num_kv_heads": (None,),
    "norm": (None, *NORMS),
    "activation": ACTIVATIONS,
    "clip": (1.0, 2.0, 3.0),
    "position_std": (0.0,),
    "position_reach": (1.0,),
    "tied_query_key": (True, False),
}
# Fields of the law of the inputs, which a subject that is given its inputs cannot misread.
_OF_INPUTS = ("activation", "clip", "position_std", "position_reach")
# Further fields that must be set when a field is changed.
_WITH: Mapping[str, Mapping[str, Any]] = {
    "activation": {"clip": DEFAULT_CLIP},
    "position_std": {"position_reach": 1.0},
}
# Faults with the same effect as a candidate that changes a scale or a field, whose message is preferred.
_COVERED = ("missing_head_scaling", "forgotten_norm", "other_norm")
# Score factors to try if a subject returns outputs only: sizes of outputs do not determine the scale of the scores.
_GRID = (0.7, 0.8, 0.9, 1.1, 1.2, 1.3)
# Factors between the scores that a subject returns and those from which it computes the attention weights. Their
# inverses are tried too.
_TEMPERATURES = ("√head_dim", "2")
# Questions to ask in the message, by the matrix of wrong scale and by its factor.
_QUESTIONS: Mapping[tuple[str, ...], Mapping[str, str]] = {
    (_SCORES,): {"√n": "is the division by √n missing?", "1/√n": "are they divided by √n twice?"},
    (_OUTPUTS,): {"√H": "is H^{-1/2} missing?", "1/√H": "is H^{-1/2} applied twice?"},
}
# Questions to ask about initialisers, by the factor by which they change the scale of a matrix. W_O is never packed
# with other matrices.
_INITIALISERS = {"1/√3": "nn.Linear's default, within ±1/√fan_in?", "√2": "He's?"}
_PACKED = {"1/√2": "Xavier's for matrices packed in one, as in nn.MultiheadAttention?"}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A candidate cause.

    Attributes
    ----------
    words : str
        Message for the user.
    draw : callable (layer, size, rng) -> mapping
        Simulator with this fault only.
    free : int
        Number of fitted parameters.
    rank : int
        Among candidates with the same law, the lowest rank supplies the message.
    scales : mapping of str to sequence of float
        Factors of standard deviations, one per layer, if nothing else changes.
    field, value : str
        Changed field and its value, if only one changes.
    choices : int
        Number of values tried for the field.
    of_weights : bool
        Whether only the law of the weights is wrong, so that scores and outputs are the declared functions of them.
    """

    name: str
    words: str
    draw: Draw
    free: int = 0
    rank: int = 1
    scales: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    field: str = ""
    value: str = ""
    choices: int = 1
    of_weights: bool = False


def candidates(
    layers: Sequence[AttentionLayer],
    exposed: frozenset[str],
    laws: WeightLaws = GAUSSIAN_LAWS,
    receives_inputs: bool = False,
) -> Iterator[Candidate]:
    """Yield candidate causes for layers; factors that are equal on all layers share one candidate.

    `exposed` names the arrays that the subject returns; matrices that these cannot distinguish are named together.
    `receives_inputs` means that attncheck provides the inputs.
    """
    yield from _scaled(layers, exposed, laws)
    if "scores" not in exposed:
        for factor in _GRID:
            text = f"{named((_SCORES,), exposed)}: about {factor} times the declared standard deviation"
            draw = correct_draw(laws, scaled_by({_SCORES: factor}))
            yield Candidate(f"scores {factor}", text, draw, free=1, of_weights=True)
    elif laws == GAUSSIAN_LAWS and not all(SOFTMAX.reason(layer) for layer in layers):
        yield from itertools.starmap(_at_other_temperature, itertools.product(_TEMPERATURES, (1.0, -1.0)))
    yield from _with_changed_field(layers, laws, receives_inputs)
    yield from _with_parts(layers, laws)
    if laws == GAUSSIAN_LAWS:
        yield from (
            Candidate(fault.name, fault.what, fault.subject, rank=4 if fault.name in _COVERED else 0)
            for fault in (*FAULTS.values(), *MISTAKES)
            # Faults of a standard deviation are left out, because candidates of `_scaled` cover them.
            if "_std_" not in fault.name and any(not fault.reason_hidden(layer) for layer in layers)
        )
    yield from _drawn_otherwise(laws, receives_inputs, exposed)
    yield from _biased_otherwise(laws)
    yield from _of_linear(laws)


def _at_other_temperature(text: str, power: float) -> Candidate:
    """Return a candidate that computes attention weights from a multiple of the scores that it returns.

    The multiple is the factor named `text` in `_FACTORS`, raised to `power`.
    """

    def weigh(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
        return layer.attention_weights(_FACTORS[text](layer) ** power * scores)

    factor = text if power > 0.0 else _inverse(text)
    words = f"the attention weights are those of {factor} times the scores"
    return Candidate(f"weights of {factor} scores", words, LiteralSimulator(weigh=weigh))


def _with_parts(layers: Sequence[AttentionLayer], laws: WeightLaws) -> Iterator[Candidate]:
    """Yield candidates with an optional part, such as a window, that none of the layers declares."""
    for part in PARTS:
        if not any(part.present(layer) for layer in layers):
            for text, fields in part.undeclared.items():
                yield Candidate(text, text, correct_draw(laws, _changing(fields)))


def _changing(fields: Mapping[str, Any]) -> Change:
    return lambda layer: fields


def _fitting(description: str, draw: Draw, name: str = "", **fields: Any) -> Candidate:
    return Candidate(name or description, f"the draws fit {description}", draw, **fields)


def correct_draw(laws: WeightLaws = GAUSSIAN_LAWS, change: Change = lambda layer: {}) -> Draw:
    """Return a simulator that is correct for a changed layer.

    `change` maps a layer to its changed fields, and `laws` are the laws of the weights.
    """
    if laws == GAUSSIAN_LAWS:
        return MisreadLayer(change)

    def draw(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, FloatArray]:
        read = layer.replace(**change(layer))
        return draw_with_weights(read, size, min(2, read.width), rng, laws).as_dict()

    return draw


def scaled_by(factors: Mapping[str, float]) -> Change:
    """Return a function that maps a layer to its standard deviations, multiplied by `factors`."""
    return lambda layer: _times(layer, factors)


def _times(layer: AttentionLayer, factors: Mapping[str, float]) -> dict[str, float]:
    """Return the layer's standard deviations, multiplied by `factors`.

    If W_Q is W_K, both factors are replaced by their geometric mean, which gives the scores the same scale.
    """
    if layer.tied_query_key:
        both = (factors.get(_SCORES, 1.0) * factors.get(_KEYS, 1.0)) ** 0.5
        factors = {**factors, _SCORES: both, _KEYS: both}
    return {field: getattr(layer, field) * factor for field, factor in factors.items()}


def named(matrices: Sequence[str], exposed: frozenset[str]) -> str:
    """Return a name for matrices of wrong scale.

    It includes other matrices whose scale would have the same effect on the `exposed` arrays.
    """
    if tuple(matrices) == (_SCORES,):
        return f"{'W_Q' if 'key_gram' in exposed else 'W_Q, W_K'} or the scaling of the scores"
    if tuple(matrices) == (_OUTPUTS,):
        return f"{'W_O' if 'value_gram' in exposed else 'W_V, W_O'} or the scaling of the heads"
    return listed(_MATRIX[field] for field in matrices)


def _scaled(layers: Sequence[AttentionLayer], exposed: frozenset[str], laws: WeightLaws) -> Iterator[Candidate]:
    hidden = {field for field, gram in ((_KEYS, "key_gram"), (_VALUES, "value_gram")) if gram not in exposed}
    for matrices in _SETS:
        if len(matrices) == 1 and matrices[0] in hidden:
            continue  # the message of the candidate for W_Q or W_O names this matrix too
        by_value: dict[tuple[float, ...], list[str]] = {}
        several = len({layer.head_width for layer in layers}) > 1
        for text, factor in (_FACTORS | _POWERS if several else _FACTORS).items():
            powers = [factor(layer) for layer in layers]
            by_value.setdefault(tuple(round(power, 9) for power in powers), []).append(text)
            by_value.setdefault(tuple(round(1.0 / power, 9) for power in powers), []).append(_inverse(text))
        for values, texts in by_value.items():
            if all(value == 1.0 for value in values):
                continue
            questions = _QUESTIONS.get(matrices, _INITIALISERS if _OUTPUTS in matrices else _INITIALISERS | _PACKED)
            texts.sort(key=lambda text: text not in questions)
            ask = next((f": {questions[text]}" for text in texts if text in questions), "")
            message = f"{named(matrices, exposed)}: {' or '.join(texts[:3])} times the declared standard deviation{ask}"
            draw = correct_draw(laws, _by_layer(matrices, layers, values))
            if matrices == (_SCORES,) and laws == GAUSSIAN_LAWS:
                draw = _rescored(dict(zip(layers, values, strict=True)), draw)
            scales = dict.fromkeys(matrices, values)
            yield Candidate(f"{'+'.join(matrices)} {texts[0]}", message, draw, scales=scales, of_weights=True)


def _by_layer(matrices: Sequence[str], layers: Sequence[AttentionLayer], values: Sequence[float]) -> Change:
    factors = dict(zip(layers, values, strict=True))
    return lambda layer: _times(layer, dict.fromkeys(matrices, factors[layer]))


def _rescored(factors: Mapping[AttentionLayer, float], untied: Draw) -> Draw:
    """Return a simulator that multiplies scores by the layer's factor if queries and keys are tied.

    For layers without tied queries and keys, it calls the simulator `untied`.
    """

    def score(layer: AttentionLayer, projections: Projections, rng: np.random.Generator) -> FloatArray:
        return factors[layer] * dot_products(layer, projections, rng)

    def draw(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, FloatArray]:
        return (LiteralSimulator(score=score) if layer.tied_query_key else untied)(layer, size, rng)

    return draw


def _inverse(text: str) -> str:
    return f"1/({text})" if any(sign in text for sign in "·/") and not text.startswith("√(") else f"1/{text}"


def _drawn_otherwise(laws: WeightLaws, receives_inputs: bool, exposed: frozenset[str]) -> Iterator[Candidate]:
    """Yield candidates with other laws of the weights.

    The law of the inputs may stay the declared one if the subject returns inputs or receives them from attncheck.
    """
    for name in WEIGHT_LAWS:
        by_matrix = {matrix: name for matrix in laws.by_matrix if matrix != "inputs"}
        input_laws = [laws.inputs] * (receives_inputs or bool({"inputs", "input_gram"} & exposed))
        for of_inputs in [*input_laws, *[name] * (not receives_inputs)]:
            read = WeightLaws(**by_matrix, inputs=of_inputs, biases=laws.biases)
            text = repr(name) if receives_inputs or of_inputs == name else f"{name!r}, of the inputs {laws.inputs!r}"
            if read != laws:
                yield _fitting(f"weights={text}", correct_draw(read), f"weights {text}", of_weights=True)


def _biased_otherwise(laws: WeightLaws) -> Iterator[Candidate]:
    """Yield candidates that lack declared biases, or have undeclared ones."""
    declared = [bias.matrix for bias in laws.biases]
    for names in [*([name] for name in declared), *[declared] * (len(declared) > 1)]:
        biases = tuple(bias for bias in laws.biases if bias.matrix not in names)
        yield _fitting(f"a bias of 0 for {listed(names)}", correct_draw(dataclasses.replace(laws, biases=biases)))
    for group in _UNDECLARED if not declared else ():
        added = tuple(Bias(name, "uniform", _LINEAR) for name in group)
        text = f"a bias for {listed(group)} that is not declared: nn.Linear's default, within ±1/√fan_in?"
        yield _fitting(text, correct_draw(dataclasses.replace(laws, biases=added)))


def _of_linear(laws: WeightLaws) -> Iterator[Candidate]:
    """Yield candidates with nn.Linear's default weights, with and without biases."""
    uniform = dict.fromkeys(_MATRIX_OF, "uniform")
    scale = scaled_by(dict.fromkeys(_MATRIX, _LINEAR))
    for names in ((), *_UNDECLARED):
        biases = tuple(Bias(name, "uniform", _LINEAR) for name in names)
        text = f"and a bias for {listed(names)}" if names else "without biases"
        draw = correct_draw(dataclasses.replace(laws, **uniform, biases=biases), scale)
        defaults = f"nn.Linear's defaults: weights uniform within ±1/√fan_in, {text}"
        yield _fitting(defaults, draw, f"nn.Linear {text}")


class _MisreadNorm(MisreadLayer):
    """A simulator that is given inputs, and applies another norm to them than the declared one."""

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Draw a sample with the declared inputs, and everything else of the changed layer."""
        inputs, read = draw_images(layer, size, rng), layer.replace(**self.changes(layer))
        drawn = LiteralSimulator().after(read, projected(read, inputs, rng), rng)
        declared = normalised(layer.norm, inputs)
        return {**drawn, "inputs": declared[:, :, : drawn["inputs"].shape[2]], "input_gram": gram_of(declared)}


def _with_changed_field(
    layers: Sequence[AttentionLayer], laws: WeightLaws, receives_inputs: bool
) -> Iterator[Candidate]:
    """Yield candidates that use another value of one field of the layers."""

    def matters(change: Change) -> bool:
        return any(_changed(layer, change) for layer in layers)

    def candidate(text: str, change: Change, name: str, **fields: Any) -> Candidate:
        change = functools.partial(_changed, change=change)
        is_norm = receives_inputs and fields["field"] == "norm" and laws == GAUSSIAN_LAWS
        draw = _MisreadNorm(change) if is_norm else correct_draw(laws, change)
        return _fitting(f"a layer with {text}", draw, name, **fields)

    for field, values in _FIELDS.items():
        if receives_inputs and field in _OF_INPUTS:
            continue
        changes = {repr(value): _changing({field: value, **_WITH.get(field, {})}) for value in values}
        known = {value: change for value, change in changes.items() if matters(change)}
        for value, change in known.items():
            text = f"{field}={value}"
            yield candidate(text, change, text, rank=3, field=field, value=value, choices=len(known))


def _changed(layer: AttentionLayer, change: Change) -> Mapping[str, Any]:
    """Return the changed fields of a layer, or no fields if the change makes the layer invalid or does not alter it."""
    changes = change(layer)
    try:
        return changes if layer.replace(**changes) != layer else {}
    except InputError:
        return {}
