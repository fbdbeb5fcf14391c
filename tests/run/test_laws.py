"""A law of the weights that was not declared is named."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import attncheck as ac
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.sample import Sample
from attncheck.diagnosis.differences import differences
from attncheck.diagnosis.laws import fitting_laws
from attncheck.faults import FAULTS
from attncheck.simulators.weights import WeightLaws, draw_with_weights

NARROW = ac.AttentionLayer(width=4, seq_len=4, num_heads=2)
ROOT = seed_sequence(0, "tests", "laws")


def sample(weights: str | dict[str, str], layer: ac.AttentionLayer = NARROW, size: int = 4_000) -> Sample:
    drawn = draw_with_weights(layer, size, 2, stream(0, "tests", "laws", str(weights)), weights)
    return Sample.from_mapping(layer, drawn.as_dict(), size)


@pytest.mark.parametrize("law", ["uniform", "rademacher", "student5"])
def test_a_law_that_is_not_declared_is_named(law: str) -> None:
    assert differences(sample(law), ROOT) == [f"all of it fits weights={law!r}"]


def test_inputs_that_are_handed_out_are_gaussian() -> None:
    laws = {name: "uniform" for name in ("query", "key", "value", "output")}
    assert list(fitting_laws(sample(laws), ROOT, handed=True)) == ["all of it fits weights='uniform'"]
    assert f"all of it fits weights={laws!r}" in list(fitting_laws(sample(laws), ROOT))


def test_gaussian_weights_that_are_declared_uniform_are_named() -> None:
    told = list(fitting_laws(sample("gaussian"), ROOT, WeightLaws.of("uniform")))
    assert "all of it fits weights='gaussian'" in told  # and others that are as near at this width
    assert "all of it fits weights='rademacher'" not in told


def test_nothing_is_named_where_the_declared_law_fits() -> None:
    assert list(fitting_laws(sample("gaussian"), ROOT)) == []
    assert list(fitting_laws(sample("uniform"), ROOT, WeightLaws.of("uniform"))) == []


def test_other_faults_fit_no_law() -> None:
    drawn: dict[str, NDArray[np.float64]] = dict(FAULTS["tied_query_value"].subject(NARROW, 4_000, stream(0, "tests")))
    wrong = Sample.from_mapping(NARROW, drawn, 4_000)
    assert list(fitting_laws(wrong, ROOT)) == []
