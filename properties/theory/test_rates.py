"""Rates: output laws approach the limit as 1/n (Corollary 2), computed from exact conditional moments."""

from __future__ import annotations

import math

import numpy as np

from attncheck._lib.streams import stream
from attncheck.layers.attention import AttentionLayer
from attncheck.strategies import layers
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.distance import distance
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.law import Distance

from .statement import Look, statement

# Bound on the effect of terms of order 1/n² on an order.
_CURVATURE = 0.05
# Widths and draws for the comparison of laws, with errors from few repetitions.
_LAW_WIDTHS, _LAW_DRAWS, _DF = (512, 8192), 128, REPLICATES - 1


def _told(look: Look, name: str, narrow: Distance, wide: Distance, order: float = -1.0) -> None:
    """State a distance's order; half an order more or less is rejected."""
    values, errors = (narrow.value, wide.value), (narrow.error / ERRORS, wide.error / ERRORS)
    neighbours = order - 0.5, order + 0.5
    widths = narrow.width, wide.width
    look.order(name, values, errors, widths, order, neighbours=neighbours, allowance=_CURVATURE, df=_DF)


def _with_a_limit(layer: AttentionLayer) -> AttentionLayer:
    """Return a similar layer whose outputs reach a limit, without kinks.

    Heads of fixed size leave a constant distance; "1/n" makes outputs vanish for maps that vanish at 0. The kink of
    relu leaves too much noise.
    """
    softmax = "softmax" if layer.attention_map == "relu" else layer.attention_map
    scaling = "1/sqrt(n)" if softmax == "linear" else layer.score_scaling
    return layer.replace(head_dim=None, attention_map=softmax, tied_query_key=False, score_scaling=scaling)


@statement(layers(max_entries=800).map(_with_a_limit))
def test_outputs_approach_the_limit_as_one_over_n(layer: AttentionLayer, run_seed: int, look: Look) -> None:
    seed = int(stream(run_seed, "rates", "laws", layer.key).integers(2**32))
    narrow, wide = (
        distance(layer, position=layer.seq_len - 1, size=_LAW_DRAWS, seed=seed + step, width=width)
        for step, width in enumerate(_LAW_WIDTHS)
    )
    _told(look, "order", narrow, wide)


def _with_fixed_heads(layer: AttentionLayer) -> AttentionLayer:
    """Return a similar layer of at most two heads of fixed size, whose law at infinite width is known.

    More than four positions have too many score normals for low noise.
    """
    bounded = "sigmoid" if layer.attention_map == "sigmoid" else "softmax"
    heads = {"head_dim": layer.head_dim or 2, "num_heads": min(2, layer.num_heads), "num_kv_heads": None}
    return layer.replace(attention_map=bounded, tied_query_key=False, seq_len=min(4, layer.seq_len), **heads)


@statement(layers(max_entries=200).map(_with_fixed_heads))
def test_heads_of_fixed_size_keep_a_gap_and_the_rest_falls_as_one_over_n(
    layer: AttentionLayer, run_seed: int, look: Look
) -> None:
    seed, position = int(stream(run_seed, "rates", "heads", layer.key).integers(2**32)), layer.seq_len - 1
    narrow, wide = (
        distance(layer, position=position, size=_LAW_DRAWS, seed=seed + n, width=n, reference="infinite width")
        for n in (256, 8192)
    )
    gap = distance(layer, position=position, size=512, seed=seed, width=math.inf)
    _told(look, "order", narrow, wide)
    # No limit, or an ignored head_dim: nearly all of the distance stays.
    error = math.hypot(gap.error, 4.0 * wide.error) / ERRORS
    look.exceeds("gap beyond four times what falls", gap.value - 4.0 * wide.value, error, 0.0, df=_DF)


@statement(heads=(1, 3), of=("outputs", "scores"))
def test_one_position_has_the_gap_of_its_values_alone(heads: int, of: str, run_seed: int, look: Look) -> None:
    """Softmax of one score is 1: outputs have the conditional variance ‖h‖²/n χ²_n/n times the heads' mean χ²_n/n.

    The relative variance of this number is (4 + 2/H)/n. Neighbours: heads that do not average, constant values, and
    scores without the keys' lengths.
    """
    layer = AttentionLayer(width=4096, seq_len=1, num_heads=heads)
    found, other = (
        distance(each, of=of, size=_LAW_DRAWS, seed=run_seed) for each in (layer, layer.replace(query_std=2.0))
    )
    mean, spread, neighbours = (0.0, 4.0 + 2.0 / heads, (4.0, 4.0 + 4.0 / heads))
    if of == "scores":
        mean, spread, neighbours = 4.0, 18.0, (16.0, 20.0)
    expected, n = _constant(mean, spread), layer.width
    told = [_constant(mean, each) for each in neighbours]
    # By draws, and by the expansion, which draws score normals only.
    for name, value, error in (
        ("constant", found.value, found.error),
        ("constant of the expansion", found.leading, found.leading_error),
    ):
        allowance = 0.01 * expected
        look.equals(name, n * value, n * error / ERRORS, expected, neighbours=told, allowance=allowance, df=_DF)
    # Outputs do not depend on the scores, to the last digit; with another map than softmax they would.
    assert abs(found.value - other.value) < 1e-9 * found.value
    if of == "outputs":
        sigmoid = layer.replace(attention_map="sigmoid")
        flat, steep = (
            distance(each, size=_LAW_DRAWS, seed=run_seed) for each in (sigmoid, sigmoid.replace(query_std=4.0))
        )
        error = math.hypot(flat.error, steep.error) / ERRORS
        look.exceeds("a map that is not softmax", abs(steep.value - flat.value), error, 0.0, df=_DF)


def _constant(mean: float, spread: float) -> float:
    """Return the maximum over t of the leading term (3t - t³) spread/8 - t mean/2, times the density."""
    t = 0.005 * np.arange(1, 1000)
    change = np.exp(-0.5 * t * t) / math.sqrt(2 * math.pi) * (-0.5 * t * mean + (3 * t - t**3) * spread / 8)
    return float(np.abs(change).max())


@statement(attention_map=("linear", "softmax"))
def test_what_vanishes_falls_as_a_root_and_is_the_theorems_on_its_own_scale(
    attention_map: str, run_seed: int, look: Look
) -> None:
    """With scores divided by n, the mean size of scores, and of outputs of the linear map, falls as n^{-1/2}."""
    of = "outputs" if attention_map == "linear" else "scores"
    layer = AttentionLayer(width=64, seq_len=2, num_heads=1, attention_map=attention_map, score_scaling="1/n")
    narrow, wide = (distance(layer, "w1", of=of, size=_LAW_DRAWS, seed=run_seed + n, width=n) for n in (64, 1024))
    # Neither 0, as scores with 1/√n, nor -1, as a distance from a non-zero limit.
    _told(look, "order", narrow, wide, -0.5)
    expected, root = wide.width**0.5 * wide.leading, wide.width**0.5
    allowance = 10.0 / wide.width * expected
    look.equals("constant", root * wide.value, root * wide.error / ERRORS, expected, allowance=allowance, df=_DF)
    # On its own scale its distance to the limit falls as 1/n, like the theorem's.
    near, far = (
        distance(layer.replace(score_scaling="1/sqrt(n)"), "w1", of=of, size=_LAW_DRAWS, seed=run_seed + n, width=n)
        for n in _LAW_WIDTHS
    )
    _told(look, "order on its scale", near, far)
