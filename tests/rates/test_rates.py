"""Laws, distances and rates at finite width: closed forms, tails, atoms, limits that are 0, and heads of fixed size."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.theory.rates.deviation import REPLICATES
from attncheck.theory.rates.gap import ERRORS
from attncheck.theory.rates.rate import fit
from tests.memory import with_peak
from tests.refusals import refused


def _one_position(width: int, attention_map: str) -> tuple[float, float]:
    """Return the variance and excess kurtosis with one position and head: v multiplies means of squared normals."""

    def moment(power: int) -> float:
        return math.prod(1.0 + 2.0 * k / width for k in range(power))

    if attention_map == "linear":
        # ‖h‖²/n and ‖Wh‖²/‖h‖² to the third power, a key, a value, and a squared normal.
        first, second = moment(3) ** 2, 3.0 * moment(6) ** 2 * moment(2) ** 2
    else:
        first, second = 1.0, moment(2) ** 3
    return first, 3.0 * (second / first**2 - 1.0)


@pytest.mark.parametrize(("attention_map", "widest"), [("softmax", 8), ("linear", 16)])
def test_errors_of_moments_cover_or_are_infinite(attention_map: Any, widest: int) -> None:
    fields: dict[str, Any] = {"attention_map": attention_map, "activation": "identity"}
    layer = ac.AttentionLayer(width=widest, seq_len=1, num_heads=1, **fields)
    variance, kurtosis = _one_position(widest, attention_map)
    for seed in range(2):
        law = ac.finite_width_law(layer, size=1024, seed=seed)
        # Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
        assert abs(law.variance() - variance) < 1.75 * law.variance_error() < math.inf
        assert abs(law.excess_kurtosis() - kurtosis) < 1.75 * law.excess_kurtosis_error() < math.inf
    for narrow in (layer.replace(width=1), layer.replace(width=widest - 1), layer.replace(width=64, head_dim=4)):
        law = ac.finite_width_law(narrow, size=256)
        assert law.variance_error() == law.excess_kurtosis_error() == math.inf
        assert np.isfinite(law.cdf_error(1.0))


def test_a_hundred_thousand_neurons_are_no_harder_than_a_thousand() -> None:
    # Errors of plain draws do not fall with the width: they would be thousands of times the bound.
    found = ac.distance(ac.AttentionLayer(width=10**5, activation="identity"), size=16)
    assert found.error < 0.15 * found.value
    assert found.value == pytest.approx(found.leading, abs=found.error + found.leading_error)


# Tails -------------------------------------------------------------------------------------------

SINGLE = ac.AttentionLayer(width=16, seq_len=1, num_heads=1, activation="identity")
# Spacing of the logarithm.
_SPACING = 1 / 200


def _tail(width: int, t: FloatArray) -> FloatArray:
    """Return P(y > t) with one position and head: v is a product of three χ²_n/n, ‖h‖², ‖Wh‖²/‖h‖² and the value's."""
    half = width / 2
    logs = _SPACING * np.arange(-30 / _SPACING, 6 / _SPACING)
    density = np.exp(half * (math.log(half) + logs - np.exp(logs)) - special.gammaln(half))
    product = np.convolve(np.convolve(density, density), density) * _SPACING**3
    roots = np.exp(0.5 * (3 * logs[0] + _SPACING * np.arange(len(product))))
    assert product.sum() == pytest.approx(1.0, abs=1e-9)
    return np.asarray(special.ndtr(-t[:, None] / roots) @ product)


def test_errors_of_tails_hold_or_are_infinite() -> None:
    t, far = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0]), 0
    for width, size, seeds in ((16, 256, 7), (16, 2048, 1), (64, 256, 7)):
        exact = _tail(width, t)
        for seed in range(seeds):
            law = ac.finite_width_law(SINGLE.replace(width=width), size=size, seed=seed)
            error = np.asarray(law.cdf_error(t))
            # Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
            assert np.all(np.abs(law.sf(t) - exact) < 1.75 * error)
            assert np.all(error[:2] < 0.05 * exact[:2])
            np.testing.assert_array_equal(law.cdf_error(-t), error)
            far += int(np.abs(law.sf(t) - exact)[1] > 1.9 / 4 * error[1])
    # Beyond 1.9 standard errors with a chance of 0.1: more than 6 of 15 with 4e-4. With half the errors, this or a
    # bound above would fail half the time.
    assert far <= 6


def test_errors_are_infinite_where_too_few_draws_reach() -> None:
    few, many = (ac.finite_width_law(SINGLE, size=size) for size in (64, 1024))
    assert few.cdf_error(8.0) == few.pdf_error(8.0) == many.cdf_error(8.0) == math.inf
    assert few.cdf_error(3.0) == math.inf > many.cdf_error(3.0)
    assert few.cdf_error([1.0, 8.0]).tolist() == [pytest.approx(few.cdf_error(1.0)), math.inf]
    # Beyond everything both laws are 1: nothing to estimate.
    assert few.cdf_error(math.inf) == few.pdf_error(-math.inf) == 0.0
    # With one neuron the density is infinite at 0.
    narrow = ac.finite_width_law(SINGLE.replace(width=1), size=1024)
    assert narrow.pdf_error(0.0) == math.inf > narrow.pdf_error(1.0)
    singular = ac.finite_width_law(ac.AttentionLayer(width=64, seq_len=1, num_heads=1, attention_map="linear"), size=16)
    assert singular.pdf(0.0) == singular.pdf_error(0.0) == math.inf


@pytest.mark.parametrize("law", [ac.finite_width_law(SINGLE, size=16), ac.limit(SINGLE)], ids=["width", "limit"])
def test_memory_does_not_grow_with_t(law: Any) -> None:
    law.cdf(0.0)
    t = np.linspace(-2, 2, 10_000)
    assert with_peak(lambda: (law.cdf(t), law.pdf_error(t)))[1] < 2**26


# Atoms and kinks ---------------------------------------------------------------------------------

RELU = ac.AttentionLayer(width=64, attention_map="relu")
LONG = ac.AttentionLayer(width=8, seq_len=28)
# Four standard errors of eight repetitions: beyond 1.75 times as much with a chance of 2e-4.
_LONGER = 1.75


def test_an_atom_is_what_symmetry_makes_it() -> None:
    # At every width: each of the two scores is negative with chance 1/2, independently given all but the signs.
    law = ac.finite_width_law(RELU.replace(width=3, seq_len=2, num_heads=1), size=2048)
    assert abs(law.atom() - 0.25) < _LONGER * law.atom_error() < 0.02
    wide = ac.finite_width_law(RELU, size=64)
    assert abs(wide.atom() - wide.limit.atom()) < 0.005
    for each in (law, wide):
        assert each.sf(0.0) == pytest.approx((1 - each.atom()) / 2, abs=1e-12) == each.cdf(0.0) - each.atom()


@pytest.mark.parametrize(
    ("layer", "known"), [(RELU, False), (RELU.replace(seq_len=1), True), (LONG, False)], ids=["relu", "one", "long"]
)
def test_the_first_term_is_told_where_it_is_known(layer: ac.AttentionLayer, known: bool) -> None:
    for metric in ("ks", "kl"):
        distance = ac.distance(layer, metric, size=16)
        assert 0.0 <= distance.value < math.inf
        assert math.isfinite(distance.error)
        assert math.isfinite(distance.leading) == math.isfinite(distance.leading_error) == known
        assert not known or distance.leading > 1e-4


# Rates ------------------------------------------------------------------------------------------


def _made(metric: str, exponent: float, curvature: float, noise: float, seed: int) -> list[ac.Distance]:
    rng = np.random.default_rng(seed)
    made = []
    for width in (64, 128, 256, 512, 1024, 2048):
        true = 0.35 * width**exponent * math.exp(curvature / width)
        replicates = true * (1.0 + noise * math.sqrt(REPLICATES) * rng.standard_normal(REPLICATES))
        value, error = float(replicates.mean()), float(replicates.std(ddof=1)) / math.sqrt(REPLICATES)
        made.append(ac.Distance(metric, value, ERRORS * error, value, ERRORS * error, float(width), 100))
    return made


def test_intervals_hold_the_order_as_often_as_they_say() -> None:
    held = sum(
        fitted.order.low <= -1.0 <= fitted.order.high
        for fitted in (fit("ks", _made("ks", -1.0, -2.0, 0.01, seed)) for seed in range(400))
    )
    # 99% of 400, or more if a misfit widens them: fewer than 386 has a chance of 2e-5.
    assert held >= 386


def test_narrow_widths_that_bend_too_much_do_not_move_the_order() -> None:
    """The bend of a divergence of scores, with a next term that no fit has: (1 + 20/n)^{-1} instead of exp(-20/n)."""
    rng = np.random.default_rng(0)
    orders = []
    for _ in range(50):
        made = []
        for each in _made("kl", -2.0, 0.0, 0.003, int(rng.integers(2**32))):
            bend = 1.0 / (1.0 + 20.0 / each.width)
            made.append(dataclasses.replace(each, value=each.value * bend, error=each.error * bend))
        orders.append(fit("kl", made).order)
    assert abs(np.mean([order.value for order in orders]) + 2.0) < 0.01
    assert sum(order.low <= -2.0 <= order.high for order in orders) >= 45


def test_distances_that_are_noise_have_no_order() -> None:
    refused(lambda: fit("ks", _made("ks", -1.0, 0.0, 10.0, 0)), "not significantly above 0")


@pytest.mark.parametrize(
    ("metric", "order", "constant"), [("ks", -1.0, 0.346), ("w1", -1.0, 0.743), ("tv", -1.0, 1.10), ("kl", -2.0, 11.0)]
)
def test_outputs_fall_as_predicted(metric: str, order: float, constant: float) -> None:
    # The paper's clip at 100 is the identity, except with chance 1e-300.
    layer = ac.AttentionLayer(width=64, activation="identity")
    rate = ac.rate(layer, (64, 128, 256, 512), metric, size=None if metric == "ks" else 256)
    assert (rate.predicted, rate.widths) == (order, (64, 128, 256, 512))
    assert rate.order.low <= order <= rate.order.high
    assert abs(rate.order.value - order) < 0.1
    assert rate.constant.value == pytest.approx(constant, rel=0.05)
    assert rate.leading == pytest.approx(constant, rel=0.05)
    if metric == "ks":
        # Half-widths vary with the seed: five times those of the docstring still separate -1 from -1/2.
        assert {distance.draws for distance in rate.distances} == {512}
        assert rate.order.high - rate.order.low < 0.2
        assert rate.constant.high - rate.constant.low < 0.12 * rate.constant.value


# Limits that are 0 -------------------------------------------------------------------------------

LINEAR = ac.AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear", score_scaling="1/n")


def test_one_position_has_closed_forms() -> None:
    """By moments of χ: the lengths of h and Wh to the third power, a key and a value, two normals."""
    n = 8

    def chi(power: float) -> float:
        gammas = math.lgamma((n + power) / 2) - math.lgamma(n / 2)
        return math.exp(gammas + 0.5 * power * math.log(2 / n))

    layer = LINEAR.replace(width=n, seq_len=1, activation="identity")
    distance = ac.distance(layer, "w1", size=2048)
    expected = n**-0.5 * (2 / math.pi) * chi(3) ** 2 * chi(1) ** 2
    assert distance.value == pytest.approx(expected, abs=1.75 * distance.error)
    assert distance.error < 0.05 * expected
    assert distance.leading == pytest.approx(n**-0.5 * 2 / math.pi, rel=1e-6)
    # A score of two positions: the inputs' lengths once for both, a key and a normal.
    layer = ac.AttentionLayer(width=n, seq_len=2, score_scaling="1/n", activation="identity")
    score = ac.distance(layer, "w1", of="scores", size=2048)
    expected = n**-0.5 * (2 / math.pi) ** 0.5 * chi(1) ** 3 * chi(2)
    assert score.value == pytest.approx(expected, abs=1.75 * score.error)


def test_other_powers_have_distances_but_no_rate_in_the_inverse_width() -> None:
    layer = ac.AttentionLayer(width=64, score_scaling="n^-0.75")
    assert math.isnan(ac.distance(layer, size=16).leading)
    refused(lambda: ac.rate(layer), r"score_scaling='n\^-0.75': makes distances decrease as a power other than 1/n")
    scores = ac.rate(layer, (64, 128, 256, 512), "w1", of="scores", size=64)
    assert scores.predicted == -0.25
    assert scores.order.value == pytest.approx(-0.25, abs=0.01)
    assert not math.isnan(ac.distance(layer.replace(score_scaling="n^-2"), size=64).leading)


# Heads of fixed size -----------------------------------------------------------------------------

LAYER = ac.AttentionLayer(width=64, head_dim=8, num_heads=1, activation="identity")


def test_what_falls_falls_as_one_over_n_and_the_gap_is_stated() -> None:
    rate = ac.rate(LAYER, (64, 128, 256, 512), size=256)
    assert rate.gap is not None
    assert rate.gap == ac.distance(LAYER, size=256, width=math.inf)
    assert rate.gap.value == pytest.approx(0.0195, abs=0.002)
    assert rate.leading == pytest.approx(0.266, rel=0.02)
    assert "plus a remaining distance" in str(rate)
    # The distance from the limit of large heads does not fall.
    wide = ac.distance(LAYER, width=10**4, size=256)
    assert wide.value == pytest.approx(rate.gap.value, abs=wide.error + rate.gap.error)
    # It is small where heads are large, and nothing without a head_dim.
    large = ac.distance(LAYER.replace(head_dim=64), "kl", width=math.inf, size=1024)
    assert large.value == pytest.approx(1.3e-4, rel=0.05)
    full = LAYER.replace(head_dim=None)
    assert ac.distance(full, size=64) == ac.distance(full, size=64, reference="infinite width")


# Progress is shown on terminals only --------------------------------------------------------------


PROGRESS_WIDTHS = (64, 96, 128, 192)


@contextlib.contextmanager
def standard_error(number: int | None) -> Iterator[None]:
    """Let a file be standard error, or none."""
    before = os.dup(2)
    try:
        os.close(2) if number is None else os.dup2(number, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def rate() -> tuple[int, ...]:
    return ac.rate(ac.AttentionLayer(width=64), PROGRESS_WIDTHS, of="scores", size=32).widths


def test_rates_count_their_widths_on_a_terminal_alone_and_need_no_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert rate() == PROGRESS_WIDTHS
    assert capfdbinary.readouterr() == (b"", b"")
    with standard_error(None):
        assert rate() == PROGRESS_WIDTHS
    ours, theirs = pytest.importorskip("pty").openpty()
    monkeypatch.setenv("TERM", "xterm")
    with standard_error(theirs):
        assert rate() == PROGRESS_WIDTHS
    os.close(theirs)
    shown = os.read(ours, 2**20)
    os.close(ours)
    assert b"widths" in shown
    assert b"0/4" in shown
