"""Fourth moments of a layer of one position for any laws of weights: exact at every width.

Such an output is W^O W^V W^1 h. For a vector u of length m let S = E(‖u‖²/m)², and let T be E u⁴ averaged over entries.
Then z = M u/√m, of length m', has these moments if entries of M have fourth cumulant κ:

    T' = 3 S + κ T/m,    S' = S + (T' - S)/m'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attncheck._lib.errors import check_choice, check_number, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import GAUSSIAN, WeightLaws
from attncheck.theory.rates.entries import FOURTH_CUMULANTS


def output_kurtosis(
    layer: AttentionLayer,
    weights: str | Mapping[str, str] | WeightLaws = GAUSSIAN,
    *,
    initial: str = GAUSSIAN,
    infinite: bool = False,
) -> float:
    """Return the exact excess kurtosis of an output.

    The layer has one position and softmax, without a nonlinearity, positions or groups; `initial` is the law of the
    initial vector. At `infinite` width the `head_dim` stays fixed.

    Examples
    --------
    At infinite width heads of two neurons make Laplace's law with Gaussian weights, and a normal law with signs in
    W^O:

    >>> layer = AttentionLayer(width=8, seq_len=1, num_heads=1, head_dim=2, activation="identity")
    >>> output_kurtosis(layer, infinite=True), output_kurtosis(layer, {"output": "rademacher"}, infinite=True)
    (3.0, 0.0)
    """
    layer, fourth = _check(layer), _fourth(weights)
    start = FOURTH_CUMULANTS[check_choice("initial", initial, tuple(FOURTH_CUMULANTS))]
    share = 0.0 if infinite else 1.0 / layer.width
    neurons = layer.num_heads * layer.head_width
    inner = 0.0 if infinite and layer.head_dim is None else 1.0 / neurons
    moments = 1.0 + (2.0 + start) * share, 3.0 + start
    for name, columns, rows in (("inputs", share, share), ("value", share, inner), ("output", inner, share)):
        moments = _image(*moments, fourth[name], columns, rows)
    return moments[1] - 3.0


def score_kurtosis(layer: AttentionLayer, weights: str | Mapping[str, str] | WeightLaws, ratio: float) -> float:
    """Return the exact excess kurtosis of the score of a position with itself, given its input x.

    Here `ratio` is Σ x⁴/(Σ x²)², from 1/n to 1; its mean is 3/(n + 2) for normal inputs.

    Examples
    --------
    >>> layer = AttentionLayer(width=2, seq_len=1, num_heads=1, activation="identity")
    >>> score_kurtosis(layer, "gaussian", 0.75), score_kurtosis(layer, {"query": "rademacher"}, 0.75)
    (3.0, 0.75)
    """
    layer, fourth = _check(layer), _fourth(weights)
    remedy = "pass a number from 1/n to 1"
    ratio = check_number("ratio", ratio, remedy, minimum=(1.0 - 1e-9) / layer.width, maximum=1.0 + 1e-9)
    query, key = (3.0 + fourth[name] * ratio for name in ("query", "key"))
    return (query * key - 3.0) / layer.head_width


def _fourth(weights: str | Mapping[str, str] | WeightLaws) -> dict[str, float]:
    """Return fourth cumulants by matrix."""
    laws = WeightLaws.of(weights)
    if laws.biases:
        refuse("weights", str(laws), "has biases", "leave them out")
    return {name: FOURTH_CUMULANTS[law] for name, law in laws.by_matrix.items()}


def _image(second: float, fourth: float, cumulant: float, columns: float, rows: float) -> tuple[float, float]:
    """Return the moments S' and T' of z = M u/√m from S and T of u; `columns` and `rows` are 1/m and 1/m'."""
    moment = 3.0 * second + cumulant * fourth * columns
    return second + (moment - second) * rows, moment


def _check(layer: AttentionLayer) -> AttentionLayer:
    wanted: dict[str, Any] = {"seq_len": 1, "attention_map": "softmax", "activation": "identity", "position_std": 0.0}
    wanted |= {"tied_query_key": False, "rotary_base": None, "norm": None, "sink": None}
    for field, value in wanted.items():
        if getattr(layer, field) != value:
            refuse(
                field,
                getattr(layer, field),
                "is a layer without exact formulas of the moments",
                f"pass {field}={value!r}",
            )
    if layer.group_size > 1:
        refuse("num_kv_heads", layer.num_kv_heads, "makes heads that share values", "leave it out")
    return layer
