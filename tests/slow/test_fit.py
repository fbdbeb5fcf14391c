"""The first named cause is right: simulated candidates are compared with a sample."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attncheck import AttentionLayer, check, simulate
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks.answers import drawn_on
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.diagnosis.candidates import candidates, correct_draw
from attncheck.diagnosis.differences import read_off
from attncheck.diagnosis.embedding import SampleEmbedding
from attncheck.diagnosis.fit import FittedCause, fitted
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.diagnosis.sources import Violations, explanations
from attncheck.faults import EXPOSURES, FAULTS
from attncheck.faults.fault import Fault
from attncheck.faults.pairs import fault_named
from attncheck.layers.inputs import Norm
from attncheck.layers.regimes import REGIMES
from attncheck.simulators.literal import LiteralSimulator, Projections, dot_products
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws, draw_with_weights
from attncheck.subject import Subject
from tests.regimes import FAULT_OF

LAYERS = (AttentionLayer(width=8), AttentionLayer(width=8, seq_len=3, num_heads=4, mask="causal"))
SIZE, FEW = 2_500, 1_000


def root() -> np.random.SeedSequence:
    """Return a fresh stream for a fit, as a sequence remembers its spawns."""
    return seed_sequence(1, "tests", role="fit")


def samples(
    subject: object, exposure: str, layers: Sequence[AttentionLayer] = LAYERS, size: int = SIZE, seed: int = 7
) -> list[Sample]:
    own = Subject.of(subject)
    drawn = [own.draw(layer, size, stream(seed, "tests", layer.key)) for layer in layers]
    wanted: list[str] = [name for name in FIELDS if name in EXPOSURES[exposure]]
    return [Sample.from_mapping(each.layer, {name: each.need(name) for name in wanted}, size) for each in drawn]


def causes_of(files: Sequence[Sample]) -> list[str]:
    return [*map(str, explanations(Violations((), 1, GAUSSIAN_LAWS, files=tuple(files))))]


def words(fits: Sequence[FittedCause]) -> list[str]:
    return [cause.candidate.words for cause in fits]


def mistake_named(name: str) -> Fault:
    (mistake,) = (mistake for mistake in MISTAKES if mistake.name == name)
    return mistake


def mistake(name: str, exposure: str) -> tuple[object, str, None, str]:
    known = mistake_named(name)
    return known.subject, exposure, None, re.escape(known.what)


def rotary(name: str) -> tuple[object, str, AttentionLayer, str]:
    """Return a row of a mistake with rotary positions, also if the layer declares none; one layer is enough."""
    known = mistake_named(name)
    declared = {} if name == "undeclared_rotary" else {"rotary_base": 10_000.0}
    layer = LAYERS[0].replace(input_correlation=0.5, head_dim=LAYERS[0].width, **declared)
    return known.subject, "scores", layer, re.escape(known.what)


def normed(declared: Norm | None, drawn: Norm | None, exposure: str) -> tuple[object, str, AttentionLayer, str]:
    layer = LAYERS[0].replace(activation="relu", norm=declared)
    return correct_draw(change=lambda _: {"norm": drawn}), exposure, layer, f"the draws fit a layer with norm={drawn!r}"


def read_as(regime: str, text: str) -> tuple[object, str, AttentionLayer, str]:
    fault = FAULTS[FAULT_OF[regime]]
    return fault.subject, "grams", REGIMES[regime], f".*{re.escape(text)}|{re.escape(fault.what)}"


def fault(name: str, exposure: str, text: str = "") -> tuple[object, str, None, str]:
    return FAULTS[name].subject, exposure, None, text or re.escape(FAULTS[name].what)


def unscaled(layer: AttentionLayer, size: int, rng: np.random.Generator) -> object:
    return correct_draw(change=lambda each: {"query_std": each.query_std * each.width**0.5})(layer, size, rng)


def score(layer: AttentionLayer, made: Projections, rng: np.random.Generator) -> FloatArray:
    """Divide by √n with W_Q = W_K: no layer declares that, as it has no limit."""
    return np.asarray(layer.width**0.5 * dot_products(layer, made, rng))


def doubled(layer: AttentionLayer, scores: FloatArray) -> FloatArray:
    return layer.attention_weights(2.0 * scores)


#: Subject, exposure, layer or `LAYERS`, and a pattern of the first cause.
FIRST = [
    *(rotary(known.name) for known in MISTAKES if "rotary" in known.name),
    *(normed(*row) for row in (("rms", None, "grams"), ("layer", None, "scores"), ("layer", "rms", "grams"))),
    normed(None, "rms", "scores"),
    mistake("inputs_of_constant_length", "scores"),
    mistake("inputs_of_constant_length", "outputs"),
    mistake("residual", "outputs"),
    mistake("one_score_matrix", "scores"),
    *(
        mistake(name, "scores")
        for name in ("first_weights", "outputs_1", "activated_values", "output_matrix_by_position")
    ),
    mistake("returned_transposed", "grams"),
    mistake("outputs_of_other_draws", "scores"),
    mistake("unnormalised_softmax", "scores"),
    mistake("one_after_maximum", "scores"),
    (LiteralSimulator(weigh=doubled), "scores", None, "the attention weights are those of 2 times the scores"),
    (correct_draw(change=lambda _: {"clip": 2.0}), "scores", None, "the draws fit a layer with clip=2.0"),
    fault("softmax_over_columns", "outputs"),
    fault("tied_query_key", "scores"),
    fault("shared_keys", "scores"),
    fault("tied_key_value", "grams"),
    fault("missing_head_scaling", "outputs", r".*is H\^\{-1/2\} missing\?"),
    # Over eight candidate streams the factor of W_O has standard deviation 0.009, that of W_K 0.001.
    fault("key_std_10", "grams", r"W_K: 1\.(0[789]\d*|1|1[012]\d*|130*) "),
    fault("output_std_10", "grams", r"W_O or the scaling of the heads: 1\.(0[789]\d*|1|1[012]\d*|130*) "),
    (unscaled, "scores", None, "W_Q, W_K or the scaling of the scores: √n.*is the division by √n missing\\?$"),
    (LiteralSimulator(score=score), "grams", REGIMES["tied queries and keys"], "W_Q or the scaling of the scores: √n"),
    read_as("causal", "the draws fit a layer with mask='none'"),
    read_as("1/n scaling", "the draws fit a layer with score_scaling='1/sqrt(n)'"),
    read_as("linear attention", "the draws fit a layer with attention_map='softmax'"),
    read_as("non-Gaussian weights", "nn.Linear's default, within ±1/√fan_in?"),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("subject", "exposure", "layer", "pattern"), FIRST)
def test_the_first_cause_is_right(subject: object, exposure: str, layer: AttentionLayer | None, pattern: str) -> None:
    first, *_ = words(fitted(samples(subject, exposure, LAYERS if layer is None else [layer]), root())[0])
    assert re.match(pattern, first)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
def test_another_norm_of_given_inputs_is_told(seed: int) -> None:
    def normalised_first(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Any:
        return drawn_on(layer.replace(norm="layer"), inputs, rng).arrays

    report = check(normalised_first, list(LAYERS), profile="smoke", seed=seed)
    # At width 8, few draws may not distinguish it from the other norm.
    assert report.causes[0].startswith("the draws fit a layer with norm='layer'")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda layer: {"output_std": 0.9}, "W_O or the scaling of the heads"),
        (lambda layer: {"value_std": layer.width**-0.5}, "W_V: 1/√n "),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_subject_that_returns_all_neurons_is_explained(change: Any, cause: str, seed: int) -> None:
    def scaled(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
        wrong, number = layer.replace(**change(layer)), int(rng.integers(2**31))
        return simulate(wrong, size, seed=number, method="direct", coordinates=layer.width).as_dict()

    assert check(scaled, list(LAYERS), profile="smoke", seed=seed).causes[0].startswith(cause)


@pytest.mark.parametrize("seed", range(3))
def test_rounded_numbers_of_a_file_are_told(seed: int) -> None:
    (sample,) = samples(correct_draw(), "scores", LAYERS[:1], FEW, seed)
    files = [dataclasses.replace(sample, outputs=sample.outputs.round(2))]
    assert causes_of(files)[0] == "all outputs are multiples of 0.01: are they rounded?"
    assert not any("multiples" in text for text in causes_of([sample]))


@pytest.mark.parametrize("exposure", ["scores", "outputs"])
def test_layer_norm_for_rms_norm_is_told_beside_odd_activations(exposure: str) -> None:
    """Both leave positions uncorrelated with equal lengths, up to order 1/n: few draws cannot distinguish them."""
    subject = correct_draw(change=lambda _: {"norm": "layer"})
    first_two = words(fitted(samples(subject, exposure, [REGIMES["normalised inputs"]]), root())[0])[:2]
    assert "the draws fit a layer with norm='layer'" in first_two
    assert sum("activation=" in text for text in first_two) <= 1


def test_what_does_not_show_has_no_cause() -> None:
    """Omitted rotary positions change no law of the scores: the violated checks describe the fault."""
    layer = AttentionLayer(width=16, head_dim=8, rotary_base=100.0)
    assert fitted(samples(correct_draw(change=lambda _: {"rotary_base": None}), "scores", [layer], FEW), root()) == (
        [],
        [],
    )


def test_what_no_candidate_does_is_none_that_is_known() -> None:
    def odd(layer: AttentionLayer, size: int, rng: np.random.Generator) -> object:
        drawn = dict(correct_draw()(layer, size, rng))
        return drawn | {
            "outputs": drawn["outputs"]
            * np.where(np.abs(drawn["scores"][:, :1, -1]) > 0.7, 1.5, 1.0).mean(axis=-1, keepdims=True)
        }

    fits, others = fitted(samples(odd, "scores"), root())
    assert not fits
    assert others
    report = check(odd, LAYERS[1], properties=["conditional", "exactness"], profile="smoke")
    first, *more = report.causes
    assert "the fault begins with outputs given scores" in first
    assert not any(cause.startswith("no known cause") for cause in report.causes)
    assert more


MATRICES = ("query", "key", "value", "output")
LARGE, USUAL = ({f"{name}_bias": ("uniform", std) for name in MATRICES} for std in (2.0, 3**-0.5))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("drawn", "declared", "said"),
    [
        ("uniform", "gaussian", "the draws fit weights='uniform'"),
        ("gaussian", "rademacher", "the draws fit weights='gaussian'"),
        (
            dict.fromkeys(MATRICES, "rademacher"),
            "gaussian",
            "the draws fit weights='rademacher', of the inputs 'gaussian'",
        ),
        *(
            ({each: law for each, law in LARGE.items() if each != f"{name}_bias"}, LARGE, f"a bias of 0 for {name}")
            for name in ("query", "output")
        ),
        (USUAL, "gaussian", "a bias for query, key, value and output that is not declared"),
    ],
    ids=str,
)
def test_another_law_than_the_declared_one_is_named(drawn: Any, declared: Any, said: str) -> None:
    told = words(fitted([of_law(drawn)], root(), WeightLaws.of(declared))[0])
    assert any(said in each for each in told)
    assert declared != "gaussian" or drawn == USUAL or told[0] == said


def test_inputs_that_are_handed_out_have_the_declared_law() -> None:
    drawn = of_law(dict.fromkeys(MATRICES, "rademacher"))
    assert words(fitted([drawn], root(), receives_inputs=True)[0])[0] == "the draws fit weights='rademacher'"


@pytest.mark.parametrize("biased", [(), MATRICES])
def test_weights_as_a_linear_layer_draws_them_are_named(biased: tuple[str, ...]) -> None:
    """Law, scale and biases differ from the declaration at once."""
    laws = dict.fromkeys(MATRICES, "uniform")
    stds = dict.fromkeys(("query_std", "key_std", "value_std", "output_std"), 3**-0.5)
    drawn = laws | {f"{name}_bias": USUAL[f"{name}_bias"] for name in biased}
    declared = AttentionLayer(width=4, seq_len=4, num_heads=2)
    sample = dataclasses.replace(of_law(drawn, declared.replace(**stds)), layer=declared)
    told = words(fitted([sample], root())[0])[0]
    said = "and a bias for query, key, value and output" if biased else "without biases"
    assert told == f"the draws fit nn.Linear's defaults: weights uniform within ±1/√fan_in, {said}"


def of_law(weights: str | Mapping[str, Any], layer: AttentionLayer | None = None) -> Sample:
    layer = layer or AttentionLayer(width=4, seq_len=4, num_heads=2)
    drawn = draw_with_weights(layer, SIZE, 2, stream(0, "tests", "laws", str(weights)), weights)
    return Sample.from_mapping(layer, drawn.as_dict(), SIZE)


def test_each_candidate_is_there_once_and_only_with_what_it_can_change() -> None:
    found = list(candidates(LAYERS, frozenset({"outputs"})))
    words = [candidate.words for candidate in found]
    # Without a mask, one law cannot tell whether the next or the previous position is meant.
    twice = {f"{what} of a neighbouring position are used, cyclically" for what in ("values", "outputs")}
    assert {text for text in words if words.count(text) > 1} == twice
    assert len({candidate.name for candidate in found}) == len(found)
    assert not any(each.startswith("W_K:") for each in words)
    assert "the mask is inverted: a position sees itself and the later ones" in words


def test_where_several_things_are_wrong_the_plainest_layer_tells_the_first() -> None:
    def deaf(layer: AttentionLayer, size: int, rng: np.random.Generator) -> object:
        ignored = {"mask": "none", "num_kv_heads": None, "value_std": 1.5 * layer.value_std}
        return correct_draw(change=lambda _: ignored)(layer, size, rng)

    layers = [AttentionLayer(width=16), AttentionLayer(width=16, num_heads=4, num_kv_heads=2, mask="causal")]
    found = causes_of(samples(deaf, "grams", layers, FEW))
    # Over 22 samples the estimate has mean 1.499 and standard deviation 0.0043: three and a half of them either way.
    assert re.match(r"W_V: 1\.(49|50|51) times", found[0])
    assert found[0].endswith(f"(fits on {layers[0].describe()} only)")


@pytest.mark.parametrize("fault", ["copied_draws", "repeated_stream"])
def test_draws_that_come_again_are_read_off(fault: str) -> None:
    found = causes_of(samples(FAULTS[fault].subject, "outputs"))
    assert len(found) == 1
    assert re.fullmatch(r"draws: only [\d,]+ of 2,500 draws in one call are distinct", found[0])


def test_inputs_that_come_again_are_read_off() -> None:
    found = causes_of(samples(fault_named("inputs_again").subject, "grams"))
    assert re.fullmatch(r"draws: only [\d,]+ of 2,500 inputs in one call are distinct", found[0])


def test_a_power_of_the_width_is_told_from_several_widths() -> None:
    layers = [AttentionLayer(width=width, seq_len=3, num_heads=2) for width in (8, 27)]
    drawn = samples(correct_draw(change=lambda _: {"score_scaling": "n^-0.75"}), "grams", layers)
    assert causes_of(drawn)[0] == (
        "W_Q or the scaling of the scores: 1/(n^(1/4)) or 1/(head_dim^(1/4)) times the declared standard deviation"
    )


@pytest.mark.parametrize("exposure", EXPOSURES)
def test_weights_that_all_draws_of_a_call_share_are_read_off(exposure: str) -> None:
    shared = FAULTS["weights_per_call"].subject
    one, other = (samples(shared, exposure, LAYERS[1:], seed=seed) for seed in (1, 2))
    found = list(read_off(one, other, GAUSSIAN_LAWS))
    assert found == ["two calls have different distributions; do all draws of one call share their weights or inputs?"]


def test_calls_of_a_right_simulator_do_not_differ() -> None:
    """In 20 pairs of calls p-values are uniform at 1e-4; none is near the threshold, even if many draws are zero."""
    own, p_values = correct_draw(), []
    third_zero = AttentionLayer(width=1, seq_len=5, num_heads=3, head_dim=3, activation="relu", input_correlation=0.9)
    for seed in range(5):
        first, second = (samples(own, "grams", [third_zero], 2_000, call) for call in (seed, 100 + seed))
        assert not list(read_off(first, second, GAUSSIAN_LAWS))
    for seed, layer in itertools.product(range(10), LAYERS):
        first, second = (samples(own, "grams", [layer], 2_000, call) for call in (seed, 100 + seed))
        assert not list(read_off(first, second, GAUSSIAN_LAWS))
        p_values.append(SampleEmbedding(first[0]).p_value(second[0]))
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4
