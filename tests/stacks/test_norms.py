"""Norms in stacks, before attention and after the sum: methods, limits, distances, and neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attncheck import AttentionLayer, AttentionStack, InputError, StackDraws, StackLaw, distance, limit, simulate
from attncheck.methods import Method
from attncheck.paper.stacks.distance import PARTS, POINTS, difference_parts, distances, limit_scales
from attncheck.paper.stacks.rate import rates
from attncheck.theory.stacks.recursion import draw_normals, recur

FloatArray = NDArray[np.float64]

_LAYER = AttentionLayer(width=5, seq_len=3, num_heads=2, query_std=1.5, activation="relu")
PRE = AttentionStack(layer=_LAYER.replace(norm="rms"), depth=2, residual=True)
PRE_LAYER = AttentionStack(layer=_LAYER.replace(norm="layer"), depth=2, residual=True)
POST = AttentionStack(layer=_LAYER, depth=2, residual=True, post_norm="rms")
BOTH = AttentionStack(
    layer=_LAYER.replace(norm="layer", num_kv_heads=1, head_dim=3, mask="causal"), depth=2, post_norm="layer"
)
STACKS = (PRE, PRE_LAYER, POST, BOTH)
# Samples of one law exceed this distance with a chance of 1e-9, over all functionals here.
SIZE = 20_000
MOST = float(np.sqrt(np.log(2.0 * 100 / 1e-9) / SIZE))


def numbers(draws: StackDraws) -> FloatArray:
    """Return functionals of outputs, scores and Gram matrices of both layers, (7, size)."""
    y, p, grams = draws.outputs, draws.scores, draws.grams
    return np.stack(
        [
            y[:, -1, 0],
            y[:, 0, 0] * y[:, -1, 0],
            (y**2).sum(axis=(1, 2)),
            p[:, 0, 0, -1, 0] ** 2 * p[:, -1, 0, -1, 0] ** 2,
            (p**2).sum(axis=(1, 2, 3, 4)),
            grams[:, -1, 0, -1],
            draws.streams[:, 0, 0, 0] * y[:, 0, 0],
        ]
    )


def apart(one: FloatArray, other: FloatArray) -> FloatArray:
    return np.array([stats.ks_2samp(a, b, method="asymp").statistic for a, b in zip(one, other, strict=True)])


def drawn(stack: AttentionStack, seed: int, method: Method = "collapsed") -> StackDraws:
    return simulate(stack, SIZE, seed, method, coordinates=2)


@pytest.mark.sampled
@pytest.mark.parametrize("stack", STACKS, ids=AttentionStack.describe)
def test_readings_are_of_one_law(stack: AttentionStack) -> None:
    ours = drawn(stack, 1)
    for seed, method in ((2, "direct"), (3, "matrix-free")):
        theirs: StackDraws = simulate(stack, SIZE, seed, method, coordinates=2)  # type: ignore[arg-type]  # method is a literal
        assert apart(numbers(ours), numbers(theirs)).max() < MOST
    if stack.layer.norm:
        diagonal = np.diagonal(ours.grams, axis1=2, axis2=3)
        assert np.isclose(diagonal, 1.0).mean() > 0.9  # five relu neurons are all 0 in one of 32 draws


def test_before_and_after_are_told_apart_and_so_is_a_forgotten_norm() -> None:
    plain = AttentionStack(layer=_LAYER, depth=2, residual=True)
    found = [numbers(drawn(stack, seed)) for seed, stack in enumerate((PRE, PRE_LAYER, POST, plain))]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert apart(one, other).max() > 2.0 * MOST


def test_after_the_sum_streams_have_length_one_and_no_mean_for_layer_norm() -> None:
    for norm in ("rms", "layer"):
        stack = AttentionStack(layer=_LAYER, depth=3, residual=True, post_norm=norm)
        draws = simulate(stack, 200, 0, "direct", coordinates=5)
        every = np.concatenate([draws.streams[:, 1:], draws.outputs[:, None]], axis=1)
        assert np.allclose((every**2).mean(axis=-1), 1.0)
        assert np.allclose(every.mean(axis=-1), 0.0) == (norm == "layer")


@pytest.mark.parametrize("stack", STACKS, ids=AttentionStack.describe)
def test_wide_stacks_are_near_the_limit(stack: AttentionStack) -> None:
    """Mean Gram matrices are off by order 1/n; another norm's by more."""
    stack = stack.replace(layer=stack.layer.replace(head_dim=None))
    limit = simulate(stack, SIZE, 1, "limit", coordinates=1)
    wide = simulate(stack.at_width(512), 2_000, 2, coordinates=8)
    for name in ("grams", "outputs"):
        one, other = (getattr(draws, name) for draws in (limit, wide))
        if name == "outputs":
            one, other = (each @ each.swapaxes(-1, -2) / each.shape[-1] for each in (one, other))
        error = np.sqrt(one.var(axis=0) / len(one) + other.var(axis=0) / len(other))
        assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) < 6.0 * error + 0.01).all()
    forgotten = stack.replace(layer=stack.layer.replace(norm=None), post_norm=None)
    without = simulate(forgotten, SIZE, 1, "limit", coordinates=1)
    assert abs(without.grams.mean(axis=0) - wide.grams.mean(axis=0)).max() > 0.1


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


def test_one_layer_has_the_limit_of_a_layer() -> None:
    layer = _LAYER.replace(norm="layer")
    law, exact = StackLaw(AttentionStack(layer=layer, depth=1), draws=2**14), limit(layer)
    t = np.array([-2.0, -0.5, 0.3, 1.0])
    assert (np.abs(law.cdf(t, 2) - exact.cdf(t, 2)) < 2 * law.cdf_error(t, 2) + 1e-5).all()
    post = StackLaw(AttentionStack(layer=_LAYER, depth=2, post_norm="rms"), draws=2**10)
    assert post.variance() == pytest.approx(1.0, abs=1e-12)
    assert np.allclose(post.cdf(t), stats.norm.cdf(t), atol=1e-9)


@pytest.mark.parametrize("stack", [PRE, PRE_LAYER], ids=AttentionStack.describe)
def test_differences_are_those_of_counted_draws(stack: AttentionStack) -> None:
    stack = stack.at_width(8)
    found = difference_parts(stack, 8_000)[:, -1]
    points = limit_scales(stack, 0, 0)[-1] * POINTS
    size = 100_000
    y = np.sort(simulate(stack, size, 11).outputs[:, 0, 0])
    counted = np.searchsorted(y, points, side="right") / size
    law = StackLaw(stack, draws=2**15)
    error = np.sqrt(
        found.var(axis=0, ddof=1) / PARTS + counted * (1 - counted) / size + (law.cdf_error(points) / 4) ** 2
    )
    off = np.abs(counted - law.cdf(points) - found.mean(axis=0))
    assert (off < 6.1 * error + 1e-5).all()


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_stacks_with_a_norm_before_attention_approach_their_limit_as_one_over_n(norm: Any) -> None:
    layer = AttentionLayer(width=16, seq_len=3, num_heads=2, query_std=1.5, norm=norm)
    stack = AttentionStack(layer=layer, depth=4)
    found = rates(stack, (16, 32, 64, 128), 8_000)
    for rate in found:
        assert abs(rate.order + 1.0) < 5.0 * rate.order_error
    assert found[-1].order_error < 0.07
    exact = distances(stack.replace(depth=1).at_width(64), 4_000)[0]
    # A layer that reads only the clipped h: the same number, computed differently.
    assert abs(exact.ks - distance(layer.replace(width=64)).value) < 5.0 * exact.ks_error + 2e-4


def test_control_variates_have_mean_zero_and_help(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = PRE_LAYER.at_width(64)
    with_controls = difference_parts(stack, 2_000, last=True)[:, 0]
    monkeypatch.setattr("attncheck.paper.stacks.distance.controlled", lambda f, c, fc, cc: f)
    without = difference_parts(stack, 2_000, last=True)[:, 0]
    assert with_controls.std(axis=0).mean() < 0.5 * without.std(axis=0).mean()
    error = np.sqrt((with_controls.var(axis=0) + without.var(axis=0)) / PARTS)
    assert (np.abs(with_controls.mean(axis=0) - without.mean(axis=0)) < 6.1 * error + 1e-12).all()


def test_descriptions_say_where_the_norm_is() -> None:
    for stack in STACKS:
        assert AttentionStack.from_dict(stack.to_dict()) == stack
        assert AttentionStack.from_toml(stack.to_toml()) == stack
    assert len({stack.key for stack in STACKS}) == len(STACKS)
    assert "norm=rms depth=2" in PRE.describe()
    assert "residual post_norm=rms" in POST.describe()
    assert "post_norm" not in PRE.to_dict()
    plain = AttentionStack(layer=_LAYER, depth=2)
    assert plain.replace(post_norm=None).key == plain.key


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InputError, match="post_norm='batch'"):
        AttentionStack(layer=_LAYER, depth=2, post_norm="batch")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="post_norm='layer': makes a single neuron 0"):
        AttentionStack(layer=_LAYER.replace(width=1), depth=2, post_norm="layer")
    for function in (distances, difference_parts):
        with pytest.raises(InputError, match="post_norm='rms': makes a single position standard normal"):
            function(POST, 1000)
    with pytest.raises(InputError, match="post_norm='rms'"):
        rates(POST, (8, 16, 32, 64), 1000)


def test_scores_of_normalised_streams_have_the_covariance_of_their_kernel() -> None:
    normals = draw_normals(POST, 4_000, np.random.default_rng(0))
    made = recur(POST, normals)
    kernels = made.roots[:, 1] @ made.roots[:, 1].swapaxes(-1, -2)
    assert np.allclose(np.diagonal(made.streams[:, 1:], axis1=-2, axis2=-1), 1.0)
    excess = made.scores[:, 1, :, 0, 1] ** 2 - (1.5**2 * kernels[:, 0, 0] * kernels[:, 1, 1])[:, None]
    assert abs(excess.mean()) < 6.1 * excess.std() / np.sqrt(excess.size)
