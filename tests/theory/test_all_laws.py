"""Every law: distribution function, density, quantiles, moments, atoms and draws agree within the stated errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.layers.expansion import expand
from attncheck.theory.limits.law import LimitLaw
from attncheck.theory.limits.symmetric import MixtureLaw
from attncheck.theory.rates.law import FiniteWidthLaw
from attncheck.theory.stacks.law import StackLaw

Law = LimitLaw | StackLaw | FiniteWidthLaw

# -log of the level of a comparison with draws, and array entries of the draws.
_LOG_CHANCE, _ENTRIES = 21.0, 4 * 10**6
# Points in standard deviations, and probabilities.
_SIZES = np.array([1e-3, 0.1, 0.5, 1.0, 2.0, 4.0])
_PROBABILITIES = np.array([0.3, 0.1, 0.01, 1e-3])


def jump(scores: FloatArray, visible: BoolArray) -> FloatArray:
    return np.where(visible, scores > 1.5, 0.0)


def square(scores: FloatArray, visible: BoolArray) -> FloatArray:
    return np.where(visible, np.tanh(scores) ** 2, 0.0)


def random_layer(rng: np.random.Generator) -> ac.AttentionLayer:
    """Return a random layer, with many heads, large scores, relu at small widths and parts among the choices."""
    maps: Sequence[Any] = ("softmax", "softmax", "linear", "relu", "sigmoid", jump, square)
    fields: dict[str, Any] = {
        "width": int(rng.choice([6, 12, 20, 64])),
        "seq_len": int(rng.choice([1, 1, 2, 3, 5])),
        "num_heads": int(rng.choice([1, 1, 2, 3, 12, 300])),
        "attention_map": maps[int(rng.integers(len(maps)))],
        "activation": str(rng.choice(["clip", "relu", "relu", "tanh", "identity"])),
        "query_std": float(rng.choice([0.3, 1.0, 1.0, 3.0, 10.0])),
        "input_correlation": float(rng.choice([0.0, 0.0, 0.5, 1.0])),
        "mask": str(rng.choice(["none", "causal"])),
    }
    parts: Sequence[dict[str, Any]] = (
        {},
        {},
        {"bias_std": 0.5},
        {"norm": "rms"},
        {"qk_norm": True},
        {"position_std": 0.7},
        {"score_scaling": "1/n"},
        {"score_scaling": "1/n", "tied_query_key": True, "bias_std": 0.5, "key_std": fields["query_std"]},
    )
    return ac.AttentionLayer(**(fields | parts[int(rng.integers(len(parts)))]))


def laws(number: int, seeds: Sequence[int]) -> tuple[list[Law], int]:
    """Return the law of a random description with several seeds, and a position."""
    rng = np.random.default_rng([number, 1])
    layer, kind = random_layer(rng), rng.integers(5)
    position = int(rng.integers(layer.seq_len))
    finite = not (layer.tied_query_key or layer.bias_std or layer.qk_norm)
    if kind == 0 and not (layer.bias_std or layer.qk_norm or layer.tied_query_key):
        heads = min(layer.num_heads, 12)
        stack = ac.AttentionStack(layer=layer.replace(num_heads=heads), depth=2, residual=bool(rng.integers(2)))
        return [StackLaw(stack, 2**10, seed) for seed in seeds], position
    if kind < 3 and finite:
        narrow = layer.replace(num_heads=min(layer.num_heads, 12))
        return [ac.finite_width_law(narrow, 512, seed) for seed in seeds], position
    return [LimitLaw(layer, seed) for seed in seeds], position


def atom_of(law: Law, position: int) -> float:
    return law.mixture(position).atom if isinstance(law, StackLaw) else law.atom(position)


def std_of(law: Law, position: int) -> float:
    return float(np.sqrt(law.variance(position))) or 1.0


def draws_of(law: Law, position: int) -> FloatArray:
    layer = law.stack.layer if isinstance(law, StackLaw) else law.layer
    size = min(20_000, _ENTRIES // (layer.num_heads * layer.seq_len**2 + layer.seq_len * layer.width))
    if isinstance(law, StackLaw):
        return ac.simulate(law.stack, size, 1, "limit").outputs[:, position, 0]
    return law.sample(size, 1)[:, position, 0]


def moments_of(law: Law, position: int) -> list[tuple[int, float, float]]:
    """Return powers, moments of y and their errors."""
    variance, error = law.variance(position), law.variance_error(position)
    ratio = 3.0 + law.excess_kurtosis(position)
    fourth = law.excess_kurtosis_error(position) * variance**2 + 2.0 * ratio * variance * error
    return [(2, variance, error), (4, ratio * variance**2, fourth)]


def integral(law: Law, position: int, power: int) -> float:
    """Return E |y|^power, integrated from the upper tail."""
    mixture = law.mixture(position) if isinstance(law, MixtureLaw) else law.gap(position).limit
    largest = 4.0 * float(np.sqrt(mixture.variances.max(initial=law.variance(position))))
    logs = np.linspace(np.log(largest) - 40.0, np.log(40.0 * largest), 1500)
    tails = law.sf(np.exp(logs), position)
    return float(2 * power * np.trapezoid(np.exp(power * logs) * tails, logs))


def check_agreement(law: Law, position: int) -> None:
    """Compare the methods of one law with each other, and with draws."""
    atom, draws = atom_of(law, position), draws_of(law, position)
    t = std_of(law, position) * _SIZES
    if atom == 1.0:
        assert law.cdf(0.0, position) == 1.0
        assert not draws.any()
        return
    tails, errors = law.sf(t, position), law.cdf_error(t, position)
    np.testing.assert_allclose(law.cdf(t, position), 1.0 - tails, atol=1e-15)
    np.testing.assert_allclose(law.cdf(-t, position), tails, atol=1e-15)
    assert law.cdf(0.0, position) - law.cdf(-1e-300, position) == pytest.approx(atom, abs=1e-9)
    slopes = (law.cdf(t * 1.0001, position) - law.cdf(t * 0.9999, position)) / (2e-4 * t)
    known = np.isfinite(errors)
    density = law.pdf(t, position)
    assert (np.abs(slopes - density)[known] <= (1e-5 * density + 1e-11 / t)[known]).all()
    beyond = 0.5 * (1.0 - atom) > _PROBABILITIES
    quantiles = law.ppf(_PROBABILITIES, position)
    np.testing.assert_allclose(law.cdf(quantiles, position)[beyond], _PROBABILITIES[beyond], rtol=1e-9)
    assert not quantiles[~beyond].any()
    for power, moment, error in moments_of(law, position):
        assert abs(integral(law, position, power) - moment) <= error + 1e-6 * moment
    if isinstance(law, LimitLaw):
        error = law.covariance_error()[position, position] + 1.5 * law.variance_error(position)
        assert abs(law.covariance()[position, position] - law.variance(position)) <= error
    # By Bernstein's inequality, also for few hits.
    noise = np.sqrt(2.0 * _LOG_CHANCE * tails / len(draws)) + _LOG_CHANCE / len(draws)
    hits = (draws[:, None] > t).mean(axis=0)
    assert (np.abs(hits - tails) <= noise + errors).all()


def values_of(law: Law, position: int) -> tuple[FloatArray, FloatArray]:
    """Return tail probabilities, moments and the atom of a law, with their stated errors."""
    t = std_of(law, position) * _SIZES
    values = [*law.sf(t, position), law.variance(position), law.excess_kurtosis(position)]
    errors = [*law.cdf_error(t, position), law.variance_error(position), law.excess_kurtosis_error(position)]
    if not isinstance(law, StackLaw):
        values, errors = [*values, law.atom(position)], [*errors, law.atom_error(position)]
    return np.array(values), np.array(errors)


def excesses(values: FloatArray, errors: FloatArray) -> FloatArray:
    """Return distances of each law's values, (laws, values), from the mean of the others, in errors of the distance."""
    others, squares = len(values) - 1, np.minimum(errors, 1e100) ** 2
    distances = np.abs(values - values.mean(axis=0)) * (1.0 + 1.0 / others)
    combined = np.sqrt(squares + (squares.sum(axis=0) - squares) / others**2)
    return np.asarray(distances / (combined + 1e-12 * (1.0 + np.abs(values))))


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(24))
def test_random_laws_agree_with_themselves_and_with_draws(number: int) -> None:
    (law,), position = laws(number, [0])
    check_agreement(law, position)


@pytest.mark.sampled
@pytest.mark.parametrize("number", range(100, 109))
def test_stated_errors_cover_other_seeds(number: int) -> None:
    same, position = laws(number, range(3))
    values, errors = map(np.stack, zip(*(values_of(law, position) for law in same), strict=True))
    found = excesses(values, errors)
    assert found.max() <= 2.5
    assert (found > 1.0).mean() <= 0.1


@pytest.mark.parametrize("scale", [0.97, 1.03])
def test_a_law_of_slightly_other_values_is_rejected(scale: float) -> None:
    layer = ac.AttentionLayer(width=64, seq_len=2, num_heads=10, attention_map="sigmoid")
    other = ac.limit(layer.replace(value_std=scale))

    class Wrong(LimitLaw):
        """Draws and moments of one layer, with tails of another."""

        def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
            return other.mixture(position).upper_tail(sizes)

    check_agreement(LimitLaw(layer), 0)
    with pytest.raises(AssertionError):
        check_agreement(Wrong(layer), 0)


def test_tied_scores_beside_a_random_table() -> None:
    fields = {"query_std": 1.5, "key_std": 1.5, "bias_std": 0.5, "seq_len": 2}
    layer = ac.AttentionLayer(width=64, score_scaling="1/n", tied_query_key=True, **fields)  # type: ignore[arg-type]  # fields of several types
    law = LimitLaw(layer)
    check_agreement(law, 0)
    scores = ac.simulate(layer, 2000, method="limit").scores
    assert abs(scores[:, :, 0, 0].mean() - 2.25) < 0.06


@pytest.mark.parametrize("heads", [2, 128, 1000, 10**5])
def test_linear_attention_of_many_heads_has_its_moments(heads: int) -> None:
    law = ac.limit(ac.AttentionLayer(width=8, seq_len=3, num_heads=heads, attention_map="linear", activation="erf"))
    scale = law.variance() / 3.0
    assert scale == pytest.approx(float(law.kernel.matrix[0, 0]) ** 3, rel=1e-12)
    assert law.excess_kurtosis() == pytest.approx(2.0 / heads, rel=1e-10)
    for power, moment, error in moments_of(law, 0):
        assert abs(integral(law, 0, power) - moment) <= error + 1e-9 * moment


@pytest.mark.parametrize("width", [8, 16])
def test_atoms_that_draws_may_miss(width: int) -> None:
    """All neurons of relu inputs are 0 with probability 2^-width."""
    layer, atom = ac.AttentionLayer(width=width, seq_len=1, num_heads=1, activation="relu"), 2.0**-width
    law = ac.finite_width_law(layer, 1024)
    assert abs(law.atom() - atom) <= law.atom_error() < 0.02
    assert abs(law.sf(1e-12) - 0.5 * (1.0 - atom)) <= law.cdf_error(1e-12)


@pytest.mark.parametrize("std", [0.3, 1.0, 10.0])
def test_maps_that_jump(std: float) -> None:
    fields: dict[str, Any] = {"attention_map": jump, "query_std": std, "activation": "identity"}
    law = ac.limit(ac.AttentionLayer(width=8, seq_len=1, num_heads=1, **fields))
    chance = float(special.ndtr(-1.5 / std))
    assert abs(law.covariance()[0, 0] - chance) <= law.covariance_error()[0, 0] < 1e-3
    assert abs(law.variance() - chance) <= law.variance_error()
    assert abs(law.atom() - (1.0 - chance)) <= law.atom_error()


@pytest.mark.parametrize("attention_map", ["softmax", "sigmoid"])
def test_programs_have_the_law_of_their_layer(attention_map: Any) -> None:
    layer = ac.AttentionLayer(width=8, seq_len=3, num_heads=2, attention_map=attention_map, input_correlation=0.5)
    law, program = ac.limit(layer), ac.limit(expand(layer).program)
    one_head = program.score_covariance[:9, :9]
    np.testing.assert_allclose(one_head, law.score_covariance(), atol=program.error + 1e-12)
    y = program.sample(20_000, 1).outputs[:, 1]
    t = std_of(law, 1) * _SIZES
    noise = np.sqrt(0.5 * _LOG_CHANCE / len(y))
    assert (np.abs((y > t).mean(axis=0) - law.sf(t, 1)) <= noise + law.cdf_error(t, 1)).all()
