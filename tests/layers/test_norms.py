"""Normalised inputs: description, methods of one law, computed values, and wrong simulators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.calibration.power.rows import cost_of
from attncheck.checks.check import Setting
from attncheck.layers.kernel import image_mean, input_kernel, input_moments
from attncheck.layers.nonlinearity import clip, erf, relu, sigmoid, tanh
from attncheck.layers.norm import normalised, normalised_gram, normalised_with_ones, with_ones
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.profiles import PROFILES
from attncheck.looks.result import violated
from attncheck.methods import Method
from attncheck.paper.exact import score_mixture
from attncheck.simulators.collapsed import draw_inputs
from attncheck.subject import Subject

RMS = ac.AttentionLayer(width=16, seq_len=3, num_heads=2, activation="relu", query_std=1.5, norm="rms")
LAYER = RMS.replace(norm="layer")
NARROW = ac.AttentionLayer(
    width=4, seq_len=4, num_heads=2, head_dim=3, num_kv_heads=1, clip=1.0, position_std=0.5, mask="causal", norm="layer"
)


def test_the_description_comes_back_and_old_keys_stay() -> None:
    for layer in (RMS, LAYER, NARROW):
        assert ac.AttentionLayer.from_dict(layer.to_dict()) == layer
        assert ac.AttentionLayer.from_toml(layer.to_toml()) == layer
        assert f"norm={layer.norm}" in layer.describe()
    assert len({RMS.key, LAYER.key, RMS.replace(norm=None).key}) == 3


@pytest.mark.parametrize("fields", [{"norm": "batch"}, {"norm": True}, {"norm": "layer", "width": 1}])
def test_what_is_no_norm_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="norm="):
        ac.AttentionLayer(**{"width": 8, **fields})
    assert ac.AttentionLayer(width=1, norm="rms").norm == "rms"


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="norm='layer'"):
        score_mixture(LAYER.replace(activation="identity"), 8)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_normalised_vectors_have_the_gram_matrix_that_theirs_says(norm: Any) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 7)) + 0.5
    x[0, 0] = 0.0
    x[1, 1] = 0.1
    made = normalised(norm, x)
    ones = with_ones(norm, x)
    by_formula = normalised_with_ones(norm, ones @ ones.swapaxes(-1, -2) / 7)
    assert np.allclose(made @ made.swapaxes(-1, -2) / 7, by_formula, atol=1e-13)
    assert np.array_equal(made[0, 0], np.zeros(7))
    assert np.array_equal(made[1, 1], np.full(7, 0.0 if norm == "layer" else 1.0))
    assert normalised(None, x) is x


def test_means_of_nonlinearities() -> None:
    z = np.linspace(-10.0, 10.0, 20_001)
    bell = np.exp(-0.5 * z**2)
    for phi in (relu(), tanh(), erf(), clip(1.0)):
        mean = bell @ phi(1.3 * z) / bell.sum()
        assert image_mean(phi, np.array([1.69]))[0] == pytest.approx(mean, abs=1e-6)
    with pytest.raises(InputError, match="sigmoid"):
        image_mean(sigmoid(), np.ones(1))


@pytest.mark.parametrize("method", ["direct", "matrix-free", "collapsed"])
@pytest.mark.parametrize("layer", [RMS.replace(width=12), LAYER], ids=["rms", "layer"])
def test_the_diagonal_is_one_at_every_width(layer: ac.AttentionLayer, method: Any) -> None:
    draws = ac.simulate(layer, 500, seed=0, method=method, coordinates=layer.width)
    assert draws.input_gram is not None
    assert draws.inputs is not None
    # Twelve relu neurons are all 0 in one draw of 4,000.
    diagonal = np.diagonal(draws.input_gram, axis1=1, axis2=2)
    assert (np.abs(diagonal - 1.0) < 1e-12).sum() >= diagonal.size - 10
    if layer.norm == "layer":
        assert np.abs(draws.inputs.mean(axis=2)).max() < 1e-14


def _numbers(draws: ac.Draws) -> FloatArray:
    """Return functionals of inputs, scores, keys, values, outputs and their dependence, (9, size)."""
    assert draws.inputs is not None
    assert draws.input_gram is not None
    assert draws.key_gram is not None
    assert draws.value_gram is not None
    y, p, x = draws.outputs, draws.scores, draws.inputs
    return np.stack(
        [
            y[:, -1, 0],
            (y**2).sum(axis=(1, 2)),
            p[:, 0, -1, 0],
            (p**2).sum(axis=(1, 2, 3)),
            x[:, 0, 0],
            draws.input_gram[:, 0, -1],
            draws.key_gram[:, -1, 0, -1] + draws.value_gram[:, 0, -1, -1],
            (x[:, -1, 0] * p[:, 0, -1, -1]) ** 2,
            y[:, 0, 0] * y[:, -1, 0] * p[:, -1, -1, -1],
        ]
    )


@pytest.mark.parametrize("layer", [RMS.replace(width=5), NARROW], ids=["rms", "mixed"])
def test_readings_are_of_one_law(layer: ac.AttentionLayer) -> None:
    size = 20_000
    methods: tuple[Method, ...] = ("direct", "matrix-free", "collapsed")
    literal, free, ours = (
        _numbers(ac.simulate(layer, size, seed=seed, method=method)) for seed, method in enumerate(methods)
    )
    forgotten = _numbers(ac.simulate(layer.replace(norm=None), size, seed=3))
    most = np.sqrt(np.log(2.0 * 27 / 1e-9) / size)

    def apart(one: FloatArray, other: FloatArray) -> FloatArray:
        return np.array([stats.ks_2samp(a, b, method="asymp").statistic for a, b in zip(one, other, strict=True)])

    assert apart(literal, ours).max() < most
    assert apart(literal, free).max() < most
    assert apart(literal, forgotten).max() > 2.0 * most


@pytest.mark.sampled
@pytest.mark.parametrize("layer", [RMS, LAYER, LAYER.replace(num_kv_heads=1)], ids=["rms", "layer", "grouped"])
def test_the_law_at_a_width_is_that_of_draws(layer: ac.AttentionLayer) -> None:
    size = 400_000
    law = ac.finite_width_law(layer, 1024)
    t = np.array([0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0])
    y = np.abs(ac.simulate(layer, size, seed=5, coordinates=1).outputs[:, 0, 0])
    seen = (y[:, None] > t).mean(axis=0)
    error = np.sqrt(seen * (1 - seen) / size)
    assert (np.abs(seen - 2 * law.sf(t)) < 5 * error + 2 * law.cdf_error(t)).all()
    assert (np.abs(seen - 2 * ac.limit(layer).sf(t)) > 5 * error + 2 * law.cdf_error(t)).any()


def test_distances_fall_as_one_over_n_for_outputs_and_scores() -> None:
    for layer in (RMS, LAYER):
        for of in ("outputs", "scores"):
            found = [ac.distance(layer.replace(width=n), of=of, size=256) for n in (128, 1024)]
            assert found[1].value * 1024 == pytest.approx(found[0].value * 128, rel=0.1)
            assert abs(found[1].value - found[1].leading) < 0.05 * found[1].value
    # Scores of normalised inputs are σ_Qσ_K √(χ²_n/n) N, whatever the inputs.
    one, other = (ac.distance(layer, of="scores").value for layer in (RMS, LAYER.replace(activation="tanh")))
    assert one == pytest.approx(other, rel=0.02)


def test_layer_norm_and_rms_norm_have_other_limits_under_relu_and_one_for_odd_phi() -> None:
    """Under relu the mean over neurons is of order 1; under odd φ its square is of order 1/n."""
    assert np.allclose(input_kernel(LAYER.inputs).matrix, np.eye(3), atol=1e-12)
    assert np.allclose(input_kernel(RMS.inputs).matrix, np.eye(3) + (1 - np.eye(3)) / np.pi, atol=1e-12)
    assert abs(ac.limit(RMS).variance() / ac.limit(LAYER).variance() - 1) > 0.1
    odd = RMS.replace(activation="tanh", num_heads=1)
    assert np.array_equal(input_kernel(odd.inputs).matrix, input_kernel(odd.replace(norm="layer").inputs).matrix)
    gaps = []
    for n in (4, 8, 16):
        grams = (ac.simulate(odd.replace(width=n, norm=norm), 100_000, seed=1).input_gram for norm in ("rms", "layer"))
        one, other = ((gram[:, 0, 1] ** 2).mean() for gram in grams if gram is not None)
        gaps.append(n * (other - one))
    # E Ĝ² of two independent directions of n or n - 1 neurons.
    assert np.allclose(gaps, [n * (1 / (n - 1) - 1 / n) for n in (4, 8, 16)], atol=0.03)


@pytest.mark.parametrize("layer", [RMS, LAYER], ids=["rms", "layer"])
def test_the_limit_is_that_of_wide_layers(layer: ac.AttentionLayer) -> None:
    law = ac.limit(layer)
    drawn = ac.simulate(layer, 40_000, seed=0, method="limit")
    wide = ac.simulate(layer.replace(width=800), 4_000, seed=0, coordinates=16)
    for draws, slack in ((drawn, 0.0), (wide, 0.02)):
        products = np.einsum("dic,djc->dij", draws.outputs, draws.outputs) / draws.outputs.shape[2]
        off = np.abs(products.mean(axis=0) - law.covariance())
        bound = 6.0 * products.std(axis=0) / len(draws) ** 0.5 + law.covariance_error() + slack * law.variance()
        assert (off < bound).all()
        assert draws.inputs is not None
        products = np.einsum("dic,djc->dij", draws.inputs, draws.inputs) / draws.inputs.shape[2]
        off = np.abs(products.mean(axis=0) - input_kernel(layer.inputs).matrix)
        assert (off < 6.0 * products.std(axis=0) / len(draws) ** 0.5 + slack).all()


def test_the_error_of_the_kernel_bounds_what_an_error_of_the_moments_makes() -> None:
    layer = LAYER.replace(activation="tanh", input_correlation=0.5)
    kernel, means = input_moments(layer.inputs)
    off = normalised_gram("layer", kernel.matrix + kernel.error * np.array([[1, -1, 1], [-1, 1, 1], [1, 1, -1]]), means)
    assert np.abs(off - input_kernel(layer.inputs).matrix).max() <= input_kernel(layer.inputs).error


def test_the_tangent_kernel_reads_normalised_inputs() -> None:
    layer = LAYER.replace(width=6, activation="relu")
    one, longer = (ac.tangent_kernel(each, 50, seed=0).parts for each in (layer, layer.replace(input_std=3.0)))
    np.testing.assert_allclose(one, longer, rtol=1e-9, atol=1e-12)


def _rejected(wrong: Any, layer: ac.AttentionLayer, name: str = "exactness") -> bool:
    return bool(violated(run_item(Item(name, layer), Subject.of(wrong), 0, cost_of(PROFILES["smoke"], layer))))


def _misread(fields: tuple[str, ...] = (), **changes: Any) -> Any:
    def subject(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        drawn = ac.simulate(layer.replace(**changes), size, int(rng.integers(2**31)), coordinates=2).as_dict()
        return {name: drawn[name] for name in fields or drawn}

    return subject


def _handed(norm: Any, axis: int = -1) -> Any:
    """Return a simulator that normalises given inputs itself, along an axis."""

    def subject(layer: ac.AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
        x = np.moveaxis(normalised(norm, np.moveaxis(inputs, axis, -1)), -1, axis)
        draw = rng.standard_normal
        n, heads = layer.width, layer.num_heads
        q, k, v = (draw((len(x), heads, n, n)) * n**-0.5 for _ in range(3))
        queries, keys, values = layer.query_std * x[:, None] @ q, x[:, None] @ k, x[:, None] @ v
        scores = queries @ keys.swapaxes(-1, -2) * n**-0.5
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = weights @ values @ (draw((len(x), heads, n, 2)) * n**-0.5)
        return {"outputs": mixed.sum(axis=1) * heads**-0.5, "scores": scores}

    return subject


OUTSIDE = ("outputs", "scores")
WRONG = {
    "norm forgotten": (_misread(OUTSIDE, norm=None), RMS),
    "rms where layer is declared": (_misread(OUTSIDE, norm="rms"), LAYER),
    "layer where rms is declared": (_misread(OUTSIDE, norm="layer"), RMS),
    "handed, norm forgotten": (_handed(None), LAYER),
    "handed, rms where layer is declared": (_handed("rms"), LAYER),
    "handed, over positions": (_handed("rms", axis=1), RMS),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_wrong_norms_are_violated_by_outputs_and_scores_alone(name: str) -> None:
    subject, layer = WRONG[name]
    assert _rejected(subject, layer)


def test_at_one_limit_layer_norm_shows_by_order_one_over_n_alone() -> None:
    odd = RMS.replace(width=4, activation="tanh")
    assert _rejected(_misread(norm="layer"), odd)
    assert not _rejected(_misread(), odd)


def test_right_ones_are_consistent() -> None:
    layers = [RMS, NARROW]
    report = ac.check("attncheck.subject:direct", layers, profile="smoke", seed=0)
    assert report.verdict == "consistent"
    examined = [result.item.partition("@")[2] for result in report.results if result.p_values]
    for layer in layers:
        assert examined.count(layer.key) > 80


@pytest.mark.parametrize("layer", [RMS, LAYER], ids=["rms", "layer"])
def test_right_ones_that_are_handed_inputs_are_consistent(layer: ac.AttentionLayer) -> None:
    assert ac.check(_handed(layer.norm), layer, profile="smoke", seed=0).verdict == "consistent"


def test_what_is_of_inputs_that_are_not_normalised_says_so() -> None:
    assert Setting(NARROW, frozenset()).input_rank == 3
    assert Setting(RMS.replace(width=2), frozenset()).input_rank == 2
    report = ac.check(_misread(), RMS, profile="smoke", seed=0)
    reasons = {result.check: result.reason for result in report.results if not result.p_values}
    assert reasons["inputs.tail_4"] == "the inputs are normalised"


def test_inputs_of_faults_and_subjects_are_those_of_the_layer() -> None:
    inputs = draw_inputs(LAYER, 100, np.random.default_rng(0))
    assert np.allclose(normalised("layer", inputs), inputs)
