"""Every law: distribution function, density, quantiles, moments, atoms and draws agree within the stated errors."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import special

import attncheck as ac
from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.laws import conditional_covariance
from attncheck.layers.expansion import expand
from attncheck.theory.limits.symmetric import MixtureLaw
from tests.simulators.cases import PARTS, POST_BLOCK, ROTARY

Law = ac.LimitLaw | ac.StackLaw | ac.FiniteWidthLaw

# -log of the level of a comparison with draws, and array entries of the draws.
_LOG_CHANCE, _ENTRIES = 21.0, 4 * 10**6
# Points in standard deviations.
_SIZES = np.array([1e-3, 0.1, 0.5, 1.0, 2.0, 4.0])


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
        {"score_scaling": "n^-0.75"},
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
        return [ac.StackLaw(stack, 2**10, seed) for seed in seeds], position
    if kind < 3 and finite:
        narrow = layer.replace(num_heads=min(layer.num_heads, 12))
        return [ac.finite_width_law(narrow, 512, seed) for seed in seeds], position
    return [ac.LimitLaw(layer, seed) for seed in seeds], position


def atom_of(law: Law, position: int) -> float:
    return law.mixture(position).atom if isinstance(law, ac.StackLaw) else law.atom(position)


def std_of(law: Law, position: int) -> float:
    return float(np.sqrt(law.variance(position))) or 1.0


def draws_of(law: Law) -> Any:
    """Return draws by a method that does not use the law."""
    described = law.stack if isinstance(law, ac.StackLaw) else law.layer
    layer = described.layer if isinstance(described, ac.AttentionStack) else described
    most = 60_000 if isinstance(law, ac.FiniteWidthLaw) else 20_000
    size = min(most, _ENTRIES // (layer.num_heads * layer.seq_len**2 + layer.seq_len * layer.width))
    return ac.simulate(described, size, 1, "collapsed" if isinstance(law, ac.FiniteWidthLaw) else "limit")


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
    atom, draws = atom_of(law, position), draws_of(law)
    outputs = draws.outputs[:, position, 0]
    t = std_of(law, position) * _SIZES
    check_quantiles(law, position)
    if atom == 1.0:
        assert law.cdf(0.0, position) == 1.0
        assert law.excess_kurtosis(position) == 0.0
        assert (law.pdf(t, position) * t < 1e-15).all()
        assert not outputs.any()
        return
    tails, errors = law.sf(t, position), law.cdf_error(t, position)
    np.testing.assert_allclose(law.cdf(t, position), 1.0 - tails, atol=1e-15)
    np.testing.assert_allclose(law.cdf(-t, position), tails, atol=1e-15)
    assert law.cdf(0.0, position) - law.cdf(-1e-300, position) == pytest.approx(atom, abs=1e-9)
    slopes = (law.cdf(t * 1.0001, position) - law.cdf(t * 0.9999, position)) / (2e-4 * t)
    known = np.isfinite(errors)
    density = law.pdf(t, position)
    assert (np.abs(slopes - density)[known] <= (1e-5 * density + 1e-11 / t)[known]).all()
    for power, moment, error in moments_of(law, position):
        assert abs(integral(law, position, power) - moment) <= error + 1e-6 * moment
    if isinstance(law, ac.LimitLaw):
        check_covariances(law, position, draws)
    # By Bernstein's inequality, also for few hits.
    size = len(draws)
    noise = np.sqrt(2.0 * _LOG_CHANCE * tails / size) + _LOG_CHANCE / size
    assert (np.abs((outputs[:, None] > t).mean(axis=0) - tails) <= noise + errors).all()
    if not isinstance(law, ac.StackLaw):
        # Chances given all but the last matrices vary less than hits; two-sided 1e-6, and a term for rare draws.
        variances = np.maximum(conditional_covariance(law.layer, draws)[:, position, position], 1e-300)
        chances = special.ndtr(-t / np.sqrt(variances)[:, None])
        noise = 4.9 * np.hypot(chances.std(axis=0) / np.sqrt(size), errors / 4.0) + 0.5 * _LOG_CHANCE / size
        assert (np.abs(chances.mean(axis=0) - tails) <= noise).all()


def check_quantiles(law: Law, position: int) -> None:
    """Quantiles are where the law reaches them: in the far tails, at an atom, at the ends, in any shape."""
    of_draws = isinstance(law, ac.FiniteWidthLaw)
    powers = np.arange(5.0, 0.0, -0.5) if of_draws else np.arange(300.0, 0.0, -13.0)
    highest = 1 - 1e-3 if of_draws else 1 - 2**-53
    q = np.sort([*10.0**-powers, 0.25, 0.3, 0.49, 0.5 - 1e-9, 0.5, 0.51, 0.75, highest])
    t, rtol = law.ppf(q, position), 1e-9 if of_draws else 1e-11
    # At 0 the law jumps from one tail to the other; without an atom both are 1/2 but for rounding.
    over = np.minimum(q, 1 - q) >= law.sf(0.0, position) * (1.0 - 1e-14)
    assert over[q == 0.5].all()
    np.testing.assert_allclose(t[over], 0.0, atol=1e-14)
    below, above = ~over & (q < 0.5), ~over & (q > 0.5)
    np.testing.assert_allclose(law.cdf(t[below], position), q[below], rtol=rtol)
    np.testing.assert_allclose(law.sf(t[above], position), 1 - q[above], rtol=rtol)
    assert np.all(np.diff(t[np.isfinite(law.cdf_error(t, position))]) >= 0)
    np.testing.assert_array_equal(law.ppf([0.0, 1.0], position), [-np.inf, np.inf])


def check_covariances(law: ac.LimitLaw, position: int, draws: ac.Draws) -> None:
    """Outputs have the covariance of the law, also given the scores; scores have theirs."""
    layer, y, scores = law.layer, draws.outputs[..., 0], draws.scores
    error = law.covariance_error()[position, position] + 1.5 * law.variance_error(position)
    assert abs(law.covariance()[position, position] - law.variance(position)) <= error
    weights = layer.attention_weights(scores[:50])
    factor = (layer.value_std * layer.output_std * layer.head_factor) ** 2
    expected = factor * (weights @ law.kernel.matrix @ weights.swapaxes(-1, -2)).sum(axis=1)
    scale = np.abs(expected).max(initial=1e-300)
    np.testing.assert_allclose(law.conditional_covariance(scores[:50]) / scale, expected / scale, atol=1e-12)
    pairs: list[tuple[FloatArray, FloatArray, Any]] = [(y, law.covariance(), law.covariance_error())]
    if not (layer.bias_slopes or layer.tied_query_key or layer.seq_len > 4):
        pairs.append((scores[:, 0].reshape(len(y), -1), law.score_covariance(), 0.0))
    # Of heavy tails, means of products of this many draws are not normal.
    for values, covariance, error in pairs[law.excess_kurtosis(position) > 20.0 :]:
        products = values[:, :, None] * values[:, None, :]
        standard = products.std(axis=0) / np.sqrt(len(y))
        rounding = 1e-9 * np.abs(covariance).max(initial=1e-3)
        assert (np.abs(products.mean(axis=0) - covariance) <= 6.0 * standard + error + rounding).all()


def values_of(law: Law, position: int, std: float) -> tuple[FloatArray, FloatArray]:
    """Return tail probabilities in units of `std`, moments and the atom of a law, with their stated errors."""
    t = std * _SIZES
    values = [*law.sf(t, position), law.variance(position), law.excess_kurtosis(position)]
    errors = [*law.cdf_error(t, position), law.variance_error(position), law.excess_kurtosis_error(position)]
    if not isinstance(law, ac.StackLaw):
        values, errors = [*values, law.atom(position)], [*errors, law.atom_error(position)]
    return np.array(values), np.array(errors)


def excesses(values: FloatArray, errors: FloatArray) -> FloatArray:
    """Return distances of each law's values, (laws, values), from the mean of the others, in errors of the distance."""
    others, squares = len(values) - 1, np.minimum(errors, 1e100) ** 2
    distances = np.abs(values - values.mean(axis=0)) * (1.0 + 1.0 / others)
    combined = np.sqrt(squares + (squares.sum(axis=0) - squares) / others**2)
    return np.asarray(distances / (combined + 1e-12 * (1.0 + np.abs(values))))


LAYER = ac.AttentionLayer(width=16, seq_len=3, mask="causal")
STACK = ac.AttentionStack(layer=LAYER, depth=2)
#: Layers whose law at finite width is compared with that of draws.
FINITE = (
    ac.AttentionLayer(width=3),
    ac.AttentionLayer(
        width=16, head_dim=4, num_heads=4, num_kv_heads=2, mask="causal", seq_len=3, activation="identity"
    ),
    ac.AttentionLayer(width=16, attention_map="relu", activation="relu", input_correlation=0.5),
    ac.AttentionLayer(width=8, score_scaling="1/n", input_correlation=1.0, seq_len=2),
    ac.AttentionLayer(
        width=16, seq_len=2, attention_map="sigmoid", activation="tanh", query_std=2.0, head_scaling=False
    ),
    ac.AttentionLayer(width=16, seq_len=3, activation="relu", query_std=1.5, norm="rms"),
    ac.AttentionLayer(width=16, seq_len=3, activation="relu", query_std=1.5, norm="layer", num_kv_heads=1),
    LAYER.replace(attention_map="relu", num_heads=1),
    ac.AttentionLayer(width=16, seq_len=2, num_heads=1, attention_map="linear", score_scaling="1/n"),
    ac.AttentionLayer(width=16, seq_len=1, num_heads=1),
    *(PARTS[name] for name in ("causal window", "softcap", "sink, cap, window", "sink", "own mask", "own map")),
)
LIMITS: dict[str, ac.AttentionLayer] = PARTS | ROTARY
del LIMITS["own map"]  # laws of local maps are among the random ones
LIMITS |= {
    "limit, many heads": LAYER.replace(attention_map="sigmoid", num_heads=32, head_dim=4),
    "limit, one score": ac.AttentionLayer(width=16, seq_len=1, num_heads=1, attention_map="linear"),
    "limit 0": ac.AttentionLayer(width=16, attention_map="linear", score_scaling="1/n"),
    "limit 0 of relu": ac.AttentionLayer(width=16, attention_map="relu", score_scaling="1/n"),
}
LAWS: Mapping[str, Callable[[], Law]] = {
    **{name: functools.partial(ac.LimitLaw, layer) for name, layer in LIMITS.items()},
    **{f"width, {layer.describe()}": functools.partial(ac.finite_width_law, layer, 512) for layer in FINITE},
    "stack": lambda: ac.StackLaw(STACK, 2**12),
    "block": lambda: ac.StackLaw(POST_BLOCK, 2**12),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", LAWS)
def test_laws_agree_with_themselves_and_with_draws(name: str) -> None:
    law = LAWS[name]()
    layer = law.stack.layer if isinstance(law, ac.StackLaw) else law.layer
    check_agreement(law, layer.seq_len - 1)


@pytest.mark.parametrize(
    "law",
    [ac.LimitLaw(LAYER), ac.finite_width_law(LAYER, 128), ac.StackLaw(STACK, 2**10)],
    ids=lambda law: type(law).__name__,
)
def test_a_law_is_a_value_that_says_what_it_is_of(law: Law) -> None:
    std, of_stack = std_of(law, 0), isinstance(law, ac.StackLaw)
    far = float(2.0 * law.sf(3.0 * std))
    assert f" {std:.4g} ± {law.variance_error() / (2.0 * std):.1g}, " in str(law)
    assert f"excess kurtosis {law.excess_kurtosis():.3g} ± {law.excess_kurtosis_error():.1g}, " in str(law)
    assert f"{far:.2g} (normal: 0.0027)" in str(law)
    assert str(law).split()[0] == ("law" if isinstance(law, ac.FiniteWidthLaw) else "limit")
    assert ("(conjecture)" in str(law)) == of_stack
    for method in (law.cdf, law.sf, law.pdf, law.cdf_error, law.pdf_error, law.ppf):
        assert [np.shape(method(np.full(shape, 0.3))) for shape in ((), (0,), (2, 3, 4))] == [(), (0,), (2, 3, 4)]
        # Zero-dimensional integers pass `operator.index`, as in slices.
        assert method(0.4, np.array(1)) == method(0.4, np.int8(1)) == method(0.4, 1)  # type: ignore[arg-type]  # of NumPy
    ends = [-np.inf, np.inf]
    assert [law.cdf(ends).tolist(), law.sf(ends).tolist(), law.pdf(ends).tolist()] == [[0, 1], [1, 0], [0, 0]]
    again = pickle.loads(pickle.dumps(law))
    assert (again, hash(again), again.cdf(0.4)) == (law, hash(law), law.cdf(0.4))
    if not isinstance(law, ac.StackLaw):
        assert law.sample(2, coordinates=3).shape == (2, 3, 3)
        assert np.array_equal(law.sample(5, seed=4), law.sample(5, seed=4))
        assert not np.array_equal(law.sample(5, seed=4), law.sample(5, seed=5))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("number", range(18))
def test_random_laws_agree_with_themselves_and_with_draws(number: int) -> None:
    (law,), position = laws(number, [0])
    check_agreement(law, position)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("number", range(100, 106))
def test_stated_errors_cover_other_seeds(number: int) -> None:
    same, position = laws(number, range(3))
    std = std_of(same[0], position)  # a heavy tail has another estimate with each seed
    values, errors = map(np.stack, zip(*(values_of(law, position, std) for law in same), strict=True))
    found = excesses(values, errors)
    assert found.max() <= 2.5
    assert (found > 1.0).mean() <= 0.1


@pytest.mark.parametrize("scale", [0.97, 1.03])
def test_a_law_of_slightly_other_values_is_rejected(scale: float) -> None:
    layer = ac.AttentionLayer(width=64, seq_len=2, num_heads=10, attention_map="sigmoid")
    other = ac.limit(layer.replace(value_std=scale))

    class Wrong(ac.LimitLaw):
        """Draws and moments of one layer, with tails of another."""

        def _upper_tail(self, sizes: FloatArray, position: int) -> FloatArray:
            return other.mixture(position).upper_tail(sizes)

    with pytest.raises(AssertionError):
        check_agreement(Wrong(layer), 0)


@pytest.mark.parametrize("layer", [FINITE[1], FINITE[5]], ids=ac.AttentionLayer.describe)
def test_the_law_at_twice_the_width_is_rejected(layer: ac.AttentionLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = draws_of(ac.finite_width_law(layer))
    monkeypatch.setattr(f"{__name__}.draws_of", lambda law: draws)
    check_agreement(ac.finite_width_law(layer, 512), 2)
    with pytest.raises(AssertionError):
        check_agreement(ac.finite_width_law(layer.replace(width=2 * layer.width), 512), 2)


@pytest.mark.parametrize("width", [8, 16])
def test_atoms_that_draws_may_miss(width: int) -> None:
    """All neurons of relu inputs are 0 with probability 2^-width."""
    layer, atom = ac.AttentionLayer(width=width, seq_len=1, num_heads=1, activation="relu"), 2.0**-width
    law = ac.finite_width_law(layer, 1024)
    assert abs(law.atom() - atom) <= law.atom_error() < 0.02
    assert abs(law.sf(1e-12) - 0.5 * (1.0 - atom)) <= law.cdf_error(1e-12)


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
