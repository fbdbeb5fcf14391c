"""Arrays returned by a subject: names, validation, and substitutes for scores and key Gram matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Batch

#: Fields that a subject may return; outputs are required.
FIELDS = ("outputs", "scores", "inputs", "input_gram", "key_gram", "value_gram")
#: The same fields with "keys" and "attention", which can be returned in place of "key_gram" and "scores".
EVERY_FIELD = (*FIELDS, "keys", "attention")

# Names of the axes after the draws.
_AXES = {
    "outputs": "positions and neurons",
    "inputs": "positions and neurons, those of the outputs,",
    "scores": "heads and positions",
    "input_gram": "positions",
    "key_gram": "heads and positions",
    "value_gram": "heads and positions",
    "keys": "heads, positions and neurons of a head,",
    "attention": "heads and positions",
}
_GRAMS = ("input_gram", "key_gram", "value_gram")
#: Largest accepted magnitude; products of three such numbers do not overflow.
LARGEST = 1e100
# Tolerance for asymmetry and for negative diagonal entries of a Gram matrix, relative to its largest diagonal entry.
_ROUNDING = 1e-2
# Relative error of row sums and recomputed weights in half precision.
_HALF = 1e-2
# A masked score is a placeholder if it is below −_FILLED times a typical score, as after adding a mask of −1e4. Even at
# width 1, where a score is a product of six normals, fewer than one score in 1e8 is that low.
_FILLED = 1e3


def validated(layer: AttentionLayer, arrays: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the validated arrays of a subject, for `attncheck.checks.sample.Sample.from_mapping`."""
    if not isinstance(arrays, Mapping):
        remedy = "return its as_dict()" if isinstance(arrays, Batch) else "return {'outputs': ...}"
        refuse("subject", type(arrays).__name__, "must return a mapping of arrays", remedy)
    for name in arrays:
        if name not in EVERY_FIELD:
            refuse(f"subject[{name!r}]", "...", "is not a known field", "return some of " + ", ".join(EVERY_FIELD))
    entries = {name: value for name, value in arrays.items() if value is not None}
    if "outputs" not in entries:
        refuse("subject", sorted(entries), "returned no outputs", "return {'outputs': array of (N, s, k)}")
    raw = {name: _as_array(name, value) for name, value in entries.items()}
    coordinates = raw["outputs"].shape[-1] if raw["outputs"].ndim == 3 else 0
    if coordinates > layer.width:
        problem = f"has {coordinates} neurons, more than the width {layer.width}"
        refuse("subject['outputs'].shape", raw["outputs"].shape, problem, "return fewer neurons")
    s, heads = layer.seq_len, layer.num_heads
    shapes = {
        "outputs": (size, s, coordinates),
        "inputs": (size, s, coordinates),
        "scores": (size, heads, s, s),
        "input_gram": (size, s, s),
        "key_gram": (size, heads, s, s),
        "value_gram": (size, heads, s, s),
        "keys": (size, heads, s, layer.head_width),
        "attention": (size, heads, s, s),
    }
    result = {}
    for name, value in raw.items():
        if value.shape != shapes[name] or 0 in value.shape:
            requirement = f"must be {shapes[name]}" if coordinates else f"must be ({size}, {s}, k) with k >= 1"
            remedy = "one row per draw" if value.shape[:1] != (size,) else f"{_AXES[name]} as in the layer"
            refuse(f"subject[{name!r}].shape", value.shape, requirement, f"{remedy}, see attncheck.Draws")
        with np.errstate(over="ignore"):  # a long double beyond float64 is rejected as infinite
            result[name] = value.astype(np.float64)
        _check_values(layer, name, result[name])
    return with_scores(layer, with_keys(layer, result))


def with_scores(layer: AttentionLayer, arrays: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return arrays with scores in place of attention weights, for linear and sigmoid attention.

    Weights of softmax and relu stay: softmax determines scores only up to a constant per row, relu only positive ones.

    Raises
    ------
    InputError
        For weights that do not fit the layer: masked weights that are not 0, softmax rows that do not add up to 1, or
        weights that disagree with the returned scores.

    Examples
    --------
    >>> layer = AttentionLayer(width=4, seq_len=2, num_heads=1, attention_map="sigmoid", mask="causal")
    >>> with_scores(layer, {"attention": np.array([[[[0.5, 0.0], [0.2, 0.5]]]])})["scores"].round(3)
    array([[[[ 0.693,   -inf],
             [-0.693,  0.693]]]])
    """
    if "attention" not in arrays:
        return arrays
    weights, mask = arrays["attention"], layer.visible
    rest = {name: value for name, value in arrays.items() if name != "attention"}
    remedy = f"return the weights of {layer.describe()!r}, before any dropout"
    _refuse_unless(not (weights[..., ~mask] != 0.0).any(), weights, "is not 0 behind the mask", remedy)
    if "scores" in arrays:
        off = np.abs(layer.attention_weights(arrays["scores"]) - weights).max()
        close = off <= _HALF * max(1.0, float(np.abs(weights).max()))
        _refuse_unless(
            bool(close), off, "is the largest difference from the weights computed from the given scores", remedy
        )
        return rest
    scores = layer.map.scores_of(weights, mask)
    if scores is not None:
        return {**rest, "scores": np.where(mask, scores, -np.inf)}
    if layer.map.traits.positive:
        _refuse_unless(not (weights < 0.0).any(), float(weights.min()), "is below 0", remedy)
    if layer.map.traits.sums_to_one:
        off = np.abs(weights.sum(axis=-1) - 1.0).max()
        _refuse_unless(bool(off <= _HALF), off, "is the largest error of row sums, which must be 1", remedy)
    return arrays


def with_keys(layer: AttentionLayer, arrays: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Return arrays with the key Grams computed from keys, keeping keys only for rotary layers."""
    if "keys" not in arrays:
        return arrays
    keys = arrays["keys"]
    gram = keys @ keys.swapaxes(-1, -2) / layer.head_width
    key_gram = arrays.get("key_gram", gram)
    if np.abs(key_gram - gram).max() > _HALF * np.abs(gram).max():
        refuse("subject['key_gram']", "...", "differs from K Kᵀ/ν of the given keys", "return keys alone")
    retained = {name: value for name, value in arrays.items() if name != "keys" or layer.rotary_base is not None}
    return {**retained, "key_gram": key_gram}


def _refuse_unless(is_valid: bool, value: object, problem: str, remedy: str) -> None:
    if not is_valid:
        refuse("subject['attention']", value, problem, remedy)


def _as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value as a floating-point array.

    It is not copied, because it may be huge before its shape is checked.
    """
    if np.ma.is_masked(value):
        refuse(f"subject[{name!r}]", "...", "is an array with masked entries", "return a plain array of numbers")
    try:
        array = np.asarray(value)
    except Exception as error:  # other libraries' tensors may raise anything
        problem = " ".join(f"is not an array ({error})".split())
        raise InputError(f"subject[{name!r}]: {problem}; return a numeric array") from None
    if array.dtype.kind != "f":
        refuse(f"subject[{name!r}].dtype", str(array.dtype), "must be floating-point numbers", "return a float array")
    return array


def _check_values(layer: AttentionLayer, name: str, value: FloatArray) -> None:
    """Refuse invalid numbers, and replace the placeholders of masked scores by −inf, in place."""
    hidden = ~layer.visible if name == "scores" else np.zeros((), dtype=bool)
    if hidden.any() and _filled(layer, value, hidden):
        value[..., hidden] = -np.inf
    if not (np.abs(value) <= LARGEST).all():
        finite = np.isfinite(value)
        masks = name == "scores" and np.isneginf(value).any()
        remedy = "mend the simulator" + ", or declare the layer's mask, e.g. mask='causal'" * bool(masks)
        _refuse_where(~(finite | (np.isneginf(value) & hidden)), name, value, "is not finite", remedy)
        _refuse_where(finite & (np.abs(value) > LARGEST), name, value, f"is beyond {LARGEST:g}")
    if name in _GRAMS:
        _check_gram(name, value)


def _filled(layer: AttentionLayer, scores: FloatArray, hidden: BoolArray) -> bool:
    """Return whether masked scores hold placeholders: numbers far below any score, or one number throughout."""
    behind = scores[..., hidden]
    clipped = layer.activation == "clip" and not layer.norm
    input_scale = min(layer.hidden_std, layer.clip) if clipped else layer.input_scale
    typical = layer.query_std * layer.key_std * layer.score_factor * input_scale**2
    if (behind < -_FILLED * max(1.0, typical)).all():
        return True
    if len(scores) == 1 or np.isposinf(behind.flat[0]) or not (behind == behind.flat[0]).all():
        return False
    if behind.flat[0] != 0.0:
        return True
    # If an input is 0, all its scores are 0, including the score with itself, which no mask hides. A masked score of 0
    # is then no placeholder.
    nonzero = np.diagonal(scores, axis1=-2, axis2=-1) != 0.0
    return bool((nonzero[..., :, None] & nonzero[..., None, :] & hidden).any())


def _check_gram(name: str, grams: FloatArray) -> None:
    """Refuse matrices that are not Gram matrices up to rounding."""
    diagonal = np.diagonal(grams, axis1=-2, axis2=-1)
    rounding = _ROUNDING * np.abs(diagonal).max(axis=-1)[..., None, None]
    if (diagonal < 0.0).any():
        lower = np.eye(grams.shape[-1], dtype=bool) & (grams < -rounding)
        _refuse_where(lower, name, grams, "is a negative number on the diagonal of a Gram matrix")
    mirrored = grams.swapaxes(-1, -2)
    if not (grams == mirrored).all():
        _refuse_where(
            np.abs(grams - mirrored) > rounding, name, grams, "differs from its mirror image in the Gram matrix"
        )


def _refuse_where(
    bad: BoolArray, name: str, value: FloatArray, problem: str, remedy: str = "mend the simulator"
) -> None:
    if bad.any():
        where = tuple(int(k) for k in np.argwhere(bad)[0])
        refuse(f"subject[{name!r}]{list(where)}", float(value[where]), problem, remedy)
