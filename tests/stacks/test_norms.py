"""Norms in stacks, before attention and after the sum: limits and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from attncheck import AttentionLayer, AttentionStack, InputError, simulate
from attncheck.theory.stacks.recursion import draw_normals, recur

from .laws import POST_RMS, PRE_RMS, RELU


def test_after_the_sum_streams_have_length_one_and_no_mean_for_layer_norm() -> None:
    for norm in ("rms", "layer"):
        stack = AttentionStack(layer=RELU, depth=3, residual=True, post_norm=norm)
        draws = simulate(stack, 200, 0, "direct", coordinates=5)
        every = np.concatenate([draws.streams[:, 1:], draws.outputs[:, None]], axis=1)
        assert np.allclose((every**2).mean(axis=-1), 1.0)
        assert np.allclose(every.mean(axis=-1), 0.0) == (norm == "layer")


def test_the_recursion_with_norms() -> None:
    """With one position attention returns its value: C' = C + K̂ before the norm after the sum."""
    layer = AttentionLayer(width=8, seq_len=1, num_heads=1, activation="identity", input_std=2.0)
    normals = np.zeros((1, 3, 1, 1, 1))
    variances = {
        "pre": (AttentionStack(layer=layer.replace(norm="rms"), depth=3, residual=True), [4.0, 5.0, 6.0, 7.0]),
        "none": (AttentionStack(layer=layer, depth=3, residual=True), [4.0, 8.0, 16.0, 32.0]),
        "post": (AttentionStack(layer=layer, depth=3, residual=True, post_norm="layer"), [4.0, 1.0, 1.0, 1.0]),
    }
    for stack, expected in variances.values():
        assert recur(stack, normals).streams[0, :, 0, 0] == pytest.approx(expected)
    relu = AttentionStack(layer=layer.replace(norm="layer", activation="relu"), depth=1)
    made = recur(relu, normals[:, :1])
    assert made.kernels[0, 0, 0, 0] == pytest.approx(2.0)
    assert made.means[0, 0, 0] == pytest.approx(2.0 / np.sqrt(2.0 * np.pi))
    assert made.roots[0, 0, 0, 0] == 1.0


def test_descriptions_say_where_the_norm_is() -> None:
    assert "norm=rms depth=2" in PRE_RMS.describe()
    assert "residual post_norm=rms" in POST_RMS.describe()
    assert "post_norm" not in PRE_RMS.to_dict()
    plain = AttentionStack(layer=RELU, depth=2)
    assert plain.replace(post_norm=None).key == plain.key


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InputError, match="post_norm='batch'"):
        AttentionStack(layer=RELU, depth=2, post_norm="batch")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InputError, match="post_norm='layer': makes a single neuron 0"):
        AttentionStack(layer=RELU.replace(width=1), depth=2, post_norm="layer")


def test_scores_of_normalised_streams_have_the_covariance_of_their_kernel() -> None:
    normals = draw_normals(POST_RMS, 4_000, np.random.default_rng(0))
    made = recur(POST_RMS, normals)
    kernels = made.roots[:, 1] @ made.roots[:, 1].swapaxes(-1, -2)
    assert np.allclose(np.diagonal(made.streams[:, 1:], axis1=-2, axis2=-1), 1.0)
    excess = made.scores[:, 1, :, 0, 1] ** 2 - (1.5**2 * kernels[:, 0, 0] * kernels[:, 1, 1])[:, None]
    assert abs(excess.mean()) < 6.1 * excess.std() / np.sqrt(excess.size)
