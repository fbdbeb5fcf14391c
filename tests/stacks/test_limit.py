"""The conjectured limit: kernels, the law, and the distance at finite width."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck import AttentionLayer, AttentionStack, InputError, StackLaw
from attncheck._lib.arrays import FloatArray
from attncheck.layers.nonlinearity import Nonlinearity, clip, erf, identity, relu, tanh
from attncheck.paper.stacks.distance import (
    PARTS,
    POINTS,
    StackDistance,
    averaged_parts,
    check_drawn,
    controlled,
    difference_parts,
    distances,
    limit_scales,
    measured,
)
from attncheck.paper.stacks.rate import fit, rates
from attncheck.simulators.linalg import lower_root
from attncheck.theory.stacks.kernels import image_kernels
from attncheck.theory.stacks.recursion import draw_normals, recur

from .laws import PLAIN_BLOCK, PRE_BLOCK, PRE_LAYER

# Two-sided level 1e-9 per comparison.
QUANTILE = 6.1


def covariances(count: int, size: int, scale: float) -> FloatArray:
    root = np.random.default_rng(0).standard_normal((count, size, size + 1)) * scale
    return root @ root.swapaxes(-1, -2)


@pytest.mark.parametrize("phi", [tanh(), clip(100.0), clip(1.0), relu(), erf(), identity()], ids=lambda phi: phi.name)
@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])
def test_kernels_are_the_duals(phi: Nonlinearity, scale: float) -> None:
    given = covariances(3, 3, scale)
    kernels, error = image_kernels(phi, given)
    for gram, kernel in zip(given, kernels, strict=True):
        own = np.diagonal(gram)
        value, _ = phi.dual(own[:, None], own[None], gram)
        size = np.sqrt(np.outer(np.diagonal(value), np.diagonal(value)))
        assert np.max(np.abs(kernel - value) / size) <= error + 1e-12
    assert error < 1e-3


def test_error_of_kernels_is_no_more_than_it_must_be() -> None:
    """For tanh it grows with the variance, as the expansion predicts; an always large bound would be useless."""
    _, small = image_kernels(tanh(), covariances(50, 3, 0.3))
    _, large = image_kernels(tanh(), covariances(50, 3, 5.0))
    assert small < 1e-4 < large < 0.05


def test_kernels_of_singular_covariances() -> None:
    ones = np.ones((1, 2, 2))
    for phi in (tanh(), relu(), clip(1.0)):
        kernels, _ = image_kernels(phi, np.concatenate([ones, 0.0 * ones]))
        value, _ = phi.dual(1.0, 1.0, 1.0)
        np.testing.assert_allclose(kernels[0].diagonal(), float(value), rtol=1e-12)
        assert not kernels[1].any()


def test_lower_root_is_a_root_whatever_the_rank() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 5, 3))
    x[:10, 2] = 0.0
    gram = x @ x.swapaxes(-1, -2)
    root = lower_root(gram)
    np.testing.assert_allclose(root @ root.swapaxes(-1, -2), gram, atol=1e-7)
    assert not np.triu(root, 1).any()
    full = gram[:, :3, :3] + np.eye(3)
    np.testing.assert_allclose(lower_root(full), np.linalg.cholesky(full), rtol=1e-10)


def test_one_layer_has_the_theorems_limit() -> None:
    for fields in ({"mask": "causal"}, {"attention_map": "sigmoid"}, {"norm": "layer", "query_std": 1.5}):
        layer = AttentionLayer(width=8, **fields)
        law, exact = StackLaw(AttentionStack(layer=layer, depth=1), draws=2**14), ac.limit(layer)
        t = np.array([-2.0, -0.5, 0.3, 1.0])
        # Twice four standard errors of eight parts: a level below 1e-4 each.
        assert (np.abs(law.cdf(t, 2) - exact.cdf(t, 2)) < 2 * law.cdf_error(t, 2) + 1e-5).all()
        assert (np.abs(law.pdf(t, 2) - exact.pdf(t, 2)) < 2 * law.pdf_error(t, 2) + 1e-5).all()
        assert abs(law.variance(2) - exact.variance(2)) < 1.5 * law.variance_error(2) + 1e-9
        assert abs(law.excess_kurtosis(2) - exact.excess_kurtosis(2)) < 1.5 * law.excess_kurtosis_error(2) + 1e-9
        assert law.kernel_error < 1e-12
    post = StackLaw(AttentionStack(layer=AttentionLayer(width=8), depth=2, post_norm="rms"), draws=2**10)
    assert post.variance() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(post.cdf(t), stats.norm.cdf(t), atol=1e-9)


def test_linear_attention_of_one_position_is_a_product() -> None:
    """With s = 1, H = 1 and unit variances v_{l+1} = p² v_l, p = v_l N: v_2 = N², v_3 = (N² N')² N²."""
    layer = AttentionLayer(width=8, seq_len=1, num_heads=1, attention_map="linear", activation="identity")
    stack = AttentionStack(layer=layer, depth=2)
    normals = draw_normals(stack, 1000, np.random.default_rng(0))
    made = recur(stack, normals)
    first, second = normals[:, 0, 0, 0, 0], normals[:, 1, 0, 0, 0]
    np.testing.assert_allclose(made.streams[:, 1, 0, 0], first**2, rtol=1e-12)
    np.testing.assert_allclose(made.streams[:, 2, 0, 0], (first**2 * second) ** 2 * first**2, rtol=1e-12)
    residual = recur(stack.replace(residual=True), normals)
    once = 1.0 + first**2
    np.testing.assert_allclose(residual.streams[:, 2, 0, 0], once + (once * second) ** 2 * once, rtol=1e-12)
    averaged = recur(stack, normals, averaged=True)
    np.testing.assert_allclose(averaged.streams[:, 2, 0, 0], second**2 * np.mean(first**2) ** 3, rtol=1e-12)


def test_scores_have_the_covariance_of_their_random_kernel() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=8, seq_len=2, num_heads=1, query_std=1.5), depth=2)
    draws = ac.simulate(stack, 40_000, 0, "limit")
    kernel, scores = draws.grams[:, 1], draws.scores[:, 1, 0]
    for i, j, k, m in ((0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 1, 0)):
        excess = scores[:, i, j] * scores[:, k, m] - 1.5**2 * kernel[:, i, k] * kernel[:, j, m]
        assert abs(excess.mean()) < QUANTILE * excess.std() / 200
    # The kernel depends on the first scores, which averaging forgets.
    entropy = np.abs(draws.scores[:, 0, 0, 0, 0] - draws.scores[:, 0, 0, 0, 1])
    assert stats.spearmanr(entropy, kernel[:, 0, 0]).pvalue < 1e-9


@pytest.mark.parametrize("residual", [False, True])
def test_the_law_is_that_of_its_draws(residual: bool) -> None:
    stack = AttentionStack(layer=AttentionLayer(width=8, seq_len=3, num_heads=1), depth=3, residual=residual)
    law = ac.limit(stack)
    outputs = ac.simulate(stack, 50_000, 9, "limit").outputs[:, 1, 0]
    assert stats.kstest(law.cdf(outputs, 1), "uniform", method="asymp").pvalue > 1e-9
    t = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(law.cdf(t) + law.sf(t), 1.0, rtol=1e-12)
    np.testing.assert_allclose(law.ppf(law.cdf(t[t != 0])), t[t != 0], rtol=1e-10)
    np.testing.assert_allclose((law.cdf(t + 1e-4) - law.cdf(t - 1e-4)) / 2e-4, law.pdf(t), rtol=1e-5)
    assert law.excess_kurtosis() > law.excess_kurtosis_error() > 0.0


def test_what_the_law_cannot_say_is_refused() -> None:
    law = StackLaw(AttentionStack(layer=AttentionLayer(width=8, seq_len=2), depth=2), draws=16)
    with pytest.raises(InputError, match=r"^position=2: exceeds the last position 1"):
        law.cdf(0.0, 2)
    with pytest.raises(InputError, match=r"^t=nan: holds NaN"):
        law.cdf(np.nan)
    with pytest.raises(InputError, match=r"^q=2: must be from 0 to 1"):
        law.ppf(2)
    with pytest.raises(InputError, match=r"^draws=3: must be at least 16"):
        StackLaw(law.stack, draws=3)
    with pytest.raises(InputError, match=r"is not an AttentionStack"):
        # Wrong type on purpose.
        StackLaw(AttentionLayer(width=8))  # type: ignore[arg-type]


# The distance of finite width


SMALL = (
    AttentionStack(
        layer=AttentionLayer(width=8, seq_len=3, num_heads=1), depth=2, activations=("relu", "tanh"), residual=True
    ),
    AttentionStack(layer=AttentionLayer(width=6, seq_len=2, num_heads=2, query_std=1.5), depth=3),
    AttentionStack(
        layer=AttentionLayer(width=4, seq_len=3, num_heads=2, head_dim=2, score_scaling="1/n", input_correlation=0.5),
        depth=2,
        activations="relu",
    ),
)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "stack",
    [*SMALL, *(each.at_width(2) for each in (PRE_LAYER, PRE_BLOCK.replace(residual=False), PLAIN_BLOCK))],
    ids=AttentionStack.describe,
)
def test_differences_are_those_of_counted_draws(stack: AttentionStack) -> None:
    """Without control variates or common random numbers, from outputs alone.

    All coordinates and, without a mask, all positions have one law: each draw contributes the share of its outputs.
    """
    size, last, alike = 30_000, stack.depth - 1, 1 if stack.layer.mask == "causal" else stack.layer.seq_len
    parts = difference_parts(stack, 6_000, 1)[:, last]
    law = StackLaw(stack, seed=5)
    outputs = ac.simulate(stack, size, 7, coordinates=stack.width).outputs[:, :alike].reshape(size, -1, 1)
    chosen = [30, 40, 50, 55, 60, 70]
    t = limit_scales(stack, 1, 0)[last] * POINTS[chosen]
    # Few ReLU neurons make some outputs exactly 0: these count half at 0.
    shares = 0.5 * ((outputs <= t).mean(axis=1) + (outputs < t).mean(axis=1))
    counted = shares.mean(axis=0)
    error = np.hypot(shares.std(axis=0) / size**0.5, law.cdf_error(t) / 4)
    error = np.hypot(error, parts[:, chosen].std(axis=0, ddof=1) / PARTS**0.5)
    difference = parts.mean(axis=0)[chosen]
    assert (np.abs(counted - law.cdf(t) - difference) < QUANTILE * error).all()
    assert np.abs(difference).max() > 3 * QUANTILE * error.max(), "there is something to see"


@pytest.mark.parametrize(
    ("stack", "gain"),
    [(AttentionStack(layer=AttentionLayer(width=256), depth=3), 3.0), (PRE_LAYER.at_width(64), 2.0)],
    ids=["plain", "layer norm"],
)
def test_control_variates_have_mean_zero_and_help(
    stack: AttentionStack, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[FloatArray, FloatArray]] = []

    def kept(f: FloatArray, c: FloatArray, fc: FloatArray, cc: FloatArray) -> FloatArray:
        taken.append((f, c))
        return controlled(f, c, fc, cc)

    monkeypatch.setattr("attncheck.paper.stacks.distance.controlled", kept)
    with_them = difference_parts(stack, 1_200, 1)
    ((plain, control),) = taken
    at = slice(52, 90, 6)
    errors = control[..., at].std(axis=0, ddof=1) / PARTS**0.5
    assert (np.abs(control[..., at].mean(axis=0)) < QUANTILE * 1.4 * errors).all()
    bulk = slice(52, 66, 6)
    assert plain[..., bulk].std(axis=0).mean() > gain * with_them[..., bulk].std(axis=0).mean()


def test_one_layer_has_the_published_constants() -> None:
    """n·KS = 0.35 and n·W1 = 0.74 for s = 4, H = 2, the latter over the limit's standard deviation 0.626."""
    (found,) = distances(AttentionStack(layer=AttentionLayer(width=512), depth=1), 8_000)
    assert abs(512 * found.ks - 0.35) < 0.02 + 4 * 512 * found.ks_error
    assert abs(512 * found.w1 - 0.74 / 0.626) < 0.06 + 4 * 512 * found.w1_error


def test_same_seed_gives_same_digits() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=16), depth=2, residual=True)
    assert distances(stack, 128, 3) == distances(stack, 128, 3)
    assert distances(stack, 128, 3) != distances(stack, 128, 4)


def test_the_last_layer_alone_has_the_digits_that_it_has_among_all() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=16), depth=3, activations=("relu", "tanh", "erf"), residual=True)
    every, last = (difference_parts(stack, 128, 3, 1, last=last) for last in (False, True))
    np.testing.assert_array_equal(last, every[:, -1:])


def test_rates_of_a_stack() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=16, seq_len=2, num_heads=1), depth=3)
    found = rates(stack, (32, 64, 128, 256), 3_000)
    for rate in found:
        assert abs(rate.order + 1.0) < QUANTILE * rate.order_error < 0.5
        assert rate.p_value > 1e-6
        assert len(rate.distances) == 4
    assert found[2].constant - found[0].constant > QUANTILE * np.hypot(found[2].constant_error, found[0].constant_error)


@pytest.mark.parametrize(("order", "fits"), [(-1.0, True), (-0.5, False)])
def test_fits_find_the_order(order: float, fits: bool) -> None:
    rng = np.random.default_rng(0)
    n = np.array([16, 32, 64, 128, 256, 512, 1024])
    values = 0.7 * n**order * (1.0 + 2.0 / n)
    noisy = values * (1.0 + 0.02 * rng.standard_normal(len(n)))
    rate = fit(1, n.tolist(), noisy, 0.02 * values)
    assert abs(rate.order - order) < QUANTILE * rate.order_error < 0.3
    assert (rate.p_value > 1e-6) == fits
    if fits:
        assert abs(rate.constant - 0.7) < QUANTILE * rate.constant_error


def test_fits_refuse_what_has_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = AttentionStack(layer=AttentionLayer(width=16), depth=1)
    with pytest.raises(InputError, match=r"are fewer than four different widths"):
        rates(stack, (16, 32, 32, 64), 100)
    for widths in (5, "64", None):
        with pytest.raises(InputError, match=rf"^widths={widths!r}: is not a list of whole numbers; pass"):
            # Wrong type on purpose.
            rates(stack, widths, 64)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^stack=AttentionLayer.*: is not an AttentionStack; pass"):
        # Wrong type on purpose.
        rates(stack.layer, (8, 16, 32, 64), 64)  # type: ignore[arg-type]
    none = (StackDistance(1, 8, 0.0, 0.1, 0.0, 0.1),)
    monkeypatch.setattr("attncheck.paper.stacks.rate.distances", lambda *_: none)
    with pytest.raises(InputError, match=r"^ks=.*must be positive to have an order"):
        rates(stack, (8, 16, 32, 64), 64)


def test_what_cannot_be_compared_is_refused() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=16, seq_len=2), depth=1)
    with pytest.raises(InputError, match=r"^size=63: must be at least 64"):
        distances(stack, 63)
    with pytest.raises(InputError, match=r"^position=2: exceeds the last position 1"):
        distances(stack, 64, position=2)
    with pytest.raises(InputError, match=r"is not an AttentionStack"):
        # Wrong type on purpose.
        distances(AttentionLayer(width=8), 64)  # type: ignore[arg-type]
    for seed in (-1, 0.5):
        with pytest.raises(InputError, match=rf"^seed={seed}: "):
            # Wrong type on purpose.
            distances(stack, 64, seed=seed)  # type: ignore[arg-type]


def test_what_takes_too_much_is_refused_before_anything_is_drawn() -> None:
    stack = AttentionStack(layer=AttentionLayer(width=16, seq_len=2), depth=2)
    for width in (10**9, 10**12):
        with pytest.raises(InputError, match=rf"^width={width}: makes a draw of the stack take \d+ bytes, .*; pass a"):
            distances(stack.at_width(width), 64)
        with pytest.raises(InputError, match=rf"^widths={width}: makes a draw of the stack take \d+ bytes, .*; pass a"):
            rates(stack, (16, 32, 64, width), 64)
    long = stack.replace(layer=stack.layer.replace(seq_len=10_000))
    with pytest.raises(InputError, match=r"^seq_len=10000: makes a draw of the recursion take"):
        distances(long, 64)
    with pytest.raises(InputError, match=r"^size=1000000000: makes the draws, all at once, take"):
        averaged_parts(stack, 10**9)
    calls: tuple[Callable[[int], object], ...] = (
        lambda size: distances(stack, size),
        lambda size: rates(stack, (16, 32, 64, 128), size),
        lambda size: averaged_parts(stack, size),
    )
    for call in calls:
        for size in (10**13, 10**400):
            with pytest.raises(InputError, match=r"^size=1000.*: must be at most 1000000000000; pass"):
                call(size)
    with pytest.raises(InputError, match=r"^draws=10+: must be at most"):
        StackLaw(stack, draws=10**13)
    for widths in (range(1, 10**12), itertools.count(1)):
        with pytest.raises(InputError, match=r"^widths=(range|count)\(.*\): has more than 10000 numbers; pass"):
            # Wrong type on purpose.
            rates(stack, widths, 64)  # type: ignore[arg-type]
    # Widths of a million are allowed.
    check_drawn("width", stack.at_width(10**6))


def test_scales_drawn_in_parts_are_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = limit_scales(SMALL[0], 0, 1)
    monkeypatch.setattr("attncheck.paper.stacks.distance.DEFAULT_MEMORY", 2**20)
    np.testing.assert_allclose(limit_scales(SMALL[0], 0, 1), whole, rtol=1e-12)


def test_averaged_kernels_are_another_law_from_the_second_layer_on() -> None:
    layer = AttentionLayer(width=8, seq_len=2, num_heads=1, attention_map="linear", query_std=2.0)
    parts = averaged_parts(AttentionStack(layer=layer, depth=2), 8_000)
    assert not parts[:, 0].any()
    gap = measured(parts[:, 1], 2, 8)
    assert gap.ks > 0.05 > QUANTILE * gap.ks_error
