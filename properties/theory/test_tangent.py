"""The tangent kernel approaches the one of infinitely many heads in the mean, and loses a part with scores over n."""

from __future__ import annotations

import math

import numpy as np

from attncheck._lib.streams import seed_sequence
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import tangent_kernel
from attncheck.theory.limits.tangent import infinite_heads_tangent

from .statement import Look, statement

_LAYER = AttentionLayer(width=16, seq_len=3, num_heads=2, query_std=1.5)
_FEW, _MANY = 4_000, 60_000
_WIDTHS, _DIVIDED_WIDTHS = (8, 32), (32, 128)
# Bound on the effect of terms of order 1/n² on an order between these widths.
_CURVATURE = 0.1


@statement()
def test_its_mean_approaches_that_of_infinitely_many_heads_as_one_over_n(run_seed: int, look: Look) -> None:
    """Measured by the mean of the kernel's diagonal, for two neurons."""
    law = infinite_heads_tangent(_LAYER)
    limit, of_limit = float(np.trace(law.matrix)), _LAYER.seq_len * law.error
    values, errors = [], []
    for n in _WIDTHS:
        seed = seed_sequence(run_seed, "tangent", "order", n)
        draws = tangent_kernel(_LAYER.replace(width=n), _MANY, seed, coordinates=2)
        traces = 0.5 * np.einsum("niirr->n", draws.kernel)
        values.append(traces.mean() - limit)
        errors.append(math.hypot(traces.std() / math.sqrt(_MANY), of_limit))
    look.order("order", values, errors, _WIDTHS, allowance=_CURVATURE)


@statement()
def test_with_scores_divided_by_n_it_is_constant_and_diagonal_in_the_limit(run_seed: int, look: Look) -> None:
    """The part of W^Q and W^K falls as 1/n; with 1/√n scores it does not."""
    values, errors = [], []
    for n in _DIVIDED_WIDTHS:
        layer, seed = _LAYER.replace(width=n, score_scaling="1/n"), seed_sequence(run_seed, "tangent", "divided", n)
        parts = tangent_kernel(layer, _FEW, seed).parts[:, :2, 0, 0, 0, 0].sum(axis=1)
        values.append(parts.mean())
        errors.append(parts.std() / math.sqrt(_FEW))
    look.order("order", values, errors, _DIVIDED_WIDTHS, neighbours=[-0.5, 0.0], allowance=_CURVATURE)
