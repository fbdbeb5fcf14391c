"""The level for comparing laws, and attention by definition, draw by draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from attncheck import AttentionLayer
from attncheck._lib.arrays import FloatArray

# Chance that noise fails any comparison of laws in `test_methods` and `test_interpret`, for any seeds, split over
# at most 2,000 tests, mostly Kolmogorov–Smirnov. Atoms make them conservative.
LEVEL = 1e-6
COMPARISONS = 2_000


def assert_same_law(ours: FloatArray, theirs: FloatArray, what: str) -> None:
    """Compare two samples by a Kolmogorov–Smirnov test, at the level above."""
    test = stats.ks_2samp(ours, theirs, method="asymp")
    assert test.pvalue > LEVEL / COMPARISONS, f"{what}: p = {test.pvalue:.1e}, distance {test.statistic:.4f}"


# The definition, written out


def phi(layer: AttentionLayer, value: float) -> float:
    functions: dict[str, Callable[[float], float]] = {
        "clip": lambda x: min(max(x, -layer.clip), layer.clip),
        "relu": lambda x: max(x, 0.0),
        "tanh": math.tanh,
        "erf": math.erf,
        "identity": lambda x: x,
    }
    return functions[layer.activation](value)


def weights_of_row(layer: AttentionLayer, row: Sequence[float], position: int) -> list[float]:
    s = len(row)
    seen = [j <= position or layer.mask == "none" for j in range(s)]
    if layer.attention_map == "softmax":
        total = sum(math.exp(row[j]) for j in range(s) if seen[j])
        return [math.exp(row[j]) / total if seen[j] else 0.0 for j in range(s)]
    maps: dict[str, Callable[[float], float]] = {
        "linear": lambda p: p,
        "relu": lambda p: max(p, 0.0) / s,
        "sigmoid": lambda p: 1.0 / (1.0 + math.exp(-p + math.log(s))),
    }
    return [maps[str(layer.attention_map)](row[j]) if seen[j] else 0.0 for j in range(s)]


def attend_by_definition(
    layer: AttentionLayer, hidden: FloatArray, positions: FloatArray, matrices: dict[str, FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x, P and y of one draw from h, the e^i and the matrices W0, W1…, Q1…, K1…, V1…, O1…, in plain loops."""
    s, heads = layer.seq_len, layer.num_heads
    nu = layer.width if layer.head_dim is None else layer.head_dim
    x = []
    for i in range(s):
        h = positions[i].copy()
        for name in ("W0", f"W{i + 1}"):
            if name in matrices:
                h += matrices[name] @ hidden
        x.append(np.array([phi(layer, value) for value in h.tolist()]))
    scores = np.zeros((heads, s, s))
    y = np.zeros((s, layer.width))
    for a in range(heads):
        group = a if layer.num_kv_heads is None else a * layer.num_kv_heads // heads
        W_Q, W_K, W_V, W_O = (
            matrices[f"{letter}{k + 1}"]
            for letter, k in (("K" if layer.tied_query_key else "Q", a), ("K", group), ("V", group), ("O", a))
        )
        for i in range(s):
            for j in range(s):
                product = float(np.dot(W_Q @ x[i], W_K @ x[j]))
                scores[a, i, j] = product / (nu if layer.score_scaling == "1/n" else math.sqrt(nu))
            for j, weight in enumerate(weights_of_row(layer, scores[a, i].tolist(), i)):
                y[i] += weight * (W_O @ (W_V @ x[j]))
    return np.array(x), scores, y / math.sqrt(heads) if layer.head_scaling else y
