"""Pictures: compact, of built-in types, true to the sample, and without a say in verdicts and digests."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from scipy import special

from attncheck.evidence.families import Scale, TwoSample, Uniform
from attncheck.evidence.family import Outcome
from attncheck.evidence.pictures import covariances, histogram_of_residuals
from attncheck.records import Result, run_digest

RNG = np.random.default_rng(20)


def test_uniform_draws_the_difference_of_distribution_functions() -> None:
    values = RNG.random(2000) ** 1.2
    picture = Uniform().test(values).picture
    assert picture is not None
    points = np.arange(1, 64) / 64
    expected = [(values <= point).mean() - point for point in points]
    np.testing.assert_allclose(picture["difference"], expected, atol=1e-5)
    assert picture["band"] == pytest.approx(np.sqrt(np.log(2 / 0.01) / 4000), abs=1e-5)
    assert picture["count"] == 2000


def test_band_holds_all_points_as_often_as_it_says() -> None:
    left = 0
    for _ in range(300):
        picture = Uniform().test(RNG.random(400)).picture
        assert picture is not None
        left += max(map(abs, picture["difference"])) > picture["band"]
    assert left <= 10  # 3 expected at most; P(> 10) is below 1e-3


def test_allowance_is_told_apart_from_the_band() -> None:
    picture = Uniform(allowance=0.03).test(RNG.random(400)).picture
    assert picture is not None
    assert picture["allowance"] == 0.03


def test_two_samples_are_compared_at_pooled_quantiles() -> None:
    ours, theirs = RNG.standard_normal(500) + 1.0, RNG.standard_normal(2000)
    outcome = TwoSample(ratio=4).test(ours, theirs)
    assert outcome.picture is not None
    difference = outcome.picture["difference"]
    assert len(difference) == 63
    # Observed values are larger, so that their distribution function lies below.
    assert min(difference) == pytest.approx(-outcome.effect, abs=0.03)
    assert max(difference) < 0.02


def test_histogram_adds_up_and_keeps_the_tails() -> None:
    residuals = np.concatenate([RNG.standard_normal(990), np.full(10, 30.0)])
    picture = histogram_of_residuals(residuals)
    assert sum(picture["shares"]) == pytest.approx(1.0, abs=1e-3)
    assert picture["shares"][-1] >= 0.01
    assert histogram_of_residuals(np.empty(0))["count"] == 0


def test_covariances_have_the_error_of_their_difference() -> None:
    draws = RNG.standard_normal((4000, 2))
    picture = covariances(np.full((4000, 1), 0.0), draws[:, :1] * draws[:, 1:])
    assert picture["error"][0] == pytest.approx(4000**-0.5, rel=0.1)
    assert abs(picture["observed"][0]) < 5 * picture["error"][0]


@pytest.mark.parametrize(
    "outcome", [Uniform().test(RNG.random(9999)), TwoSample().test(RNG.random(50), RNG.random(50))]
)
def test_pictures_are_small_and_plain(outcome: Outcome) -> None:
    picture = outcome.picture
    assert json.loads(json.dumps(picture)) == picture
    assert len(json.dumps(picture)) < 2000


def test_scale_has_none() -> None:
    assert Scale(4).test(special.chdtri(4, RNG.random(50))).picture is None


def test_picture_has_no_say_in_equality_and_digest() -> None:
    outcome = Uniform().test(RNG.random(100))
    assert hash(outcome) == hash(outcome)
    fields = {name: None for name in Result.__struct_fields__}
    # Only the id, the layer and the picture matter: the other fields are None, whatever their types.
    result = msgspec.structs.replace(Result(**fields), id="a", layer={})  # type: ignore[arg-type]
    assert run_digest([result]) == run_digest([msgspec.structs.replace(result, picture={"kind": "cdf"})])
