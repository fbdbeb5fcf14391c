"""Every check rejects a wrong simulator, and accepts right ones.

Checks of structure compare calls exactly: right simulators never fail. Each test of the others is one look of a run, on
the same number of draws for wrong and right simulators; noise fails it with chance below 1e-6, split over all checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import seed_sequence, stream
from attncheck.checks import registry
from attncheck.checks.answers import projected
from attncheck.checks.claims import ONE_NEURON
from attncheck.checks.structure import CHECKS
from attncheck.diagnosis.mistakes import MISTAKES
from attncheck.faults.pairs import paired
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.examples import layers_with_parts, random_layers
from attncheck.looks.look import observe
from attncheck.looks.plan import Plan
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.looks.result import violated
from attncheck.simulators.literal import LiteralSimulator
from attncheck.subject import Subject, collapsed
from attncheck.subject.subject import CALL_DRAWS
from tests.results import results_of
from tests.simulators.answering import CENTRED_ON_BATCH, HALF, RIGHT, SINGLE, changed, few_weights, on_inputs

PAPER, _, ONE, CAUSAL = ANCHORS[:4]
CAPPED = PAPER.replace(mask="causal", softcap=5.0)


def dropping(layer: ac.AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    """Attention with dropout of half of its weights."""
    made = projected(layer, inputs, rng)
    dropout = LiteralSimulator(weigh=lambda layer, p: 2.0 * layer.attention_weights(p) * (rng.random(p.shape) > 0.5))
    return {"outputs": dropout.after(layer, made, rng)["outputs"]}


def brief(layer: ac.AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    """Attention in bfloat16, returned in single precision."""

    def rounded(values: FloatArray) -> FloatArray:
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return np.asarray(bits.view(np.float32), dtype=np.float64)

    made = projected(layer, rounded(inputs), rng)
    vectors = {name: rounded(getattr(made, name)) for name in ("queries", "keys", "values")}
    simulator = LiteralSimulator(weigh=lambda layer, scores: rounded(layer.attention_weights(rounded(scores))))
    drawn = simulator.after(layer, dataclasses.replace(made, **vectors), rng)
    return {name: drawn[name].astype(np.float32) for name in ("outputs", "scores")}


def given_inputs(layer: ac.AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    """Draw images of the inputs from their Gram matrix: right in law, with weights that depend on the inputs."""
    simulator = LiteralSimulator()
    return {"outputs": simulator.after(layer, simulator.project(layer, inputs, rng), rng)["outputs"]}


def triangular(layer: ac.AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    """Draw images of the inputs from a triangular factor, whose first entry is odd in the first input."""
    factor = np.asarray(np.linalg.qr(inputs.swapaxes(-1, -2), mode="r")).swapaxes(-1, -2) / layer.width**0.5
    return {"outputs": factor @ rng.standard_normal((len(inputs), layer.seq_len, 2))}


class Accumulating:
    """A right simulator that adds some of its last outputs."""

    last: FloatArray | None = None

    def __call__(self, layer: ac.AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        outputs, last = RIGHT(layer, inputs, rng)["outputs"], self.last
        self.last = outputs
        return {"outputs": outputs if last is None or last.shape != outputs.shape else outputs + 0.03 * last}


def verdicts(subject: Any, layer: ac.AttentionLayer, seed: int = 0) -> dict[str, str]:
    """Return the verdict of each check by its name in the property, or the reason why it was not examined."""
    results = results_of(subject, layer, "structure", seed=seed)
    return {each.check.partition(".")[2]: each.reason or each.verdict for each in results}


MISTAKEN = {fault.name: on_inputs(fault.subject) for fault in MISTAKES if isinstance(fault.subject, LiteralSimulator)}
VANISHING = changed(lambda drawn: {"outputs": np.where(np.abs(drawn["outputs"]) < 0.02, 0.0, drawn["outputs"])})
#: Checks, wrong simulators that they reject, and layers.
WRONG = [
    ("repeats", Accumulating(), PAPER),
    ("draws", CENTRED_ON_BATCH, PAPER),
    ("weights", few_weights, PAPER),
    ("hidden", MISTAKEN["masked_after_softmax"], CAUSAL),
    ("order", MISTAKEN["values_1"], PAPER),
    ("scaling", changed(lambda drawn: {}, before=lambda inputs: inputs + 1.0), PAPER),
    ("scaling", VANISHING, PAPER),  # not as rounded ones
]


@pytest.mark.parametrize(("name", "subject", "layer"), WRONG)
def test_each_check_rejects_a_wrong_simulator(name: str, subject: Any, layer: ac.AttentionLayer) -> None:
    assert {check.name.partition(".")[2] for check in CHECKS} == {row[0] for row in WRONG}
    assert verdicts(RIGHT, layer)[name] == "consistent"
    assert verdicts(subject, layer)[name] == "violated"


def visited(seed: int) -> Iterator[ac.AttentionLayer]:
    yield from (*PROFILES["default"].layers, *random_layers(PROFILES["default"].examples, seed))
    yield from (layer.replace(mask=mask) for layer in layers_with_parts(seed) for mask in (layer.mask, "causal"))


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(5))
def test_right_simulators_are_never_rejected(seed: int) -> None:
    for index, layer in enumerate(dict.fromkeys(visited(seed))):
        for subject in (RIGHT, brief, (SINGLE, on_inputs(LiteralSimulator(), shown=("outputs",)))[index % 2]):
            found = verdicts(subject, layer, seed)
            assert "violated" not in found.values(), (layer, found)
            assert found["draws"] == found["repeats"] == "consistent"


# Layers whose parts hardly matter, and narrow ones: scores have heavy tails, and all weights of a few draws may
# vanish under relu. No first look is suspicious.
@pytest.mark.sampled
@pytest.mark.parametrize(
    "layer",
    [
        PAPER.replace(seq_len=10, num_heads=1, bias_slopes="alibi"),
        PAPER.replace(num_heads=1, attention_map="linear", bias_slopes=(1e-3,)),
        PAPER.replace(attention_map="linear", softcap=1e-3),
        PAPER.replace(bias_std=0.01),
        *(
            ac.AttentionLayer(width=1, seq_len=seq_len, num_heads=1, attention_map=attention_map, mask=mask)
            for seq_len, mask in ((1, "none"), (2, "causal"))
            for attention_map in ("softmax", "relu", "sigmoid", "linear")
        ),
    ],
    ids=ac.AttentionLayer.describe,
)
def test_no_verdict_hangs_on_how_much_parts_matter_or_on_how_narrow_a_layer_is(layer: ac.AttentionLayer) -> None:
    for seed in range(30 if layer.width == 1 else 12):
        results = results_of(RIGHT, layer, "structure", seed=seed)
        assert [result.check for result in violated(results)] == []
        assert layer.width > 1 or [result.check for result in results if len(result.p_values) > 1] == []


@pytest.mark.parametrize(("attention_map", "decimals"), [("softmax", 4), ("linear", 6), ("relu", 7)])
def test_rounded_outputs_grow_as_declared(attention_map: str, decimals: int) -> None:
    subject = changed(lambda drawn: {"outputs": np.round(drawn["outputs"], decimals)})
    assert verdicts(subject, PAPER.replace(attention_map=attention_map, output_std=0.1))["scaling"] == "consistent"


def test_what_is_not_comparable_is_not_examined() -> None:
    assert set(verdicts(collapsed, PAPER).values()) == {"attncheck does not provide the inputs"}
    assert "dropout" in verdicts(dropping, PAPER)["order"]
    assert "half precision" in verdicts(HALF, PAPER)["draws"]
    assert "may depend on the inputs" in verdicts(given_inputs, PAPER)["order"]
    assert "may depend on the inputs" in verdicts(triangular, CAUSAL)["hidden"]
    sized = changed(lambda drawn: {"outputs": drawn["outputs"][..., : 1 + bool(drawn["outputs"].any())]})
    assert "was (16, 3, 2) for other inputs" in verdicts(sized, CAUSAL)["hidden"]
    assert "one position" in verdicts(RIGHT, ONE)["hidden"]
    assert verdicts(RIGHT, ONE)["weights"] == ONE_NEURON


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("subject", "layer", "text"),
    [
        (MISTAKEN["capped_after_mask"], CAPPED, "the soft cap is applied after the mask"),
        (MISTAKEN["masked_after_softmax"], CAUSAL, "the mask is applied after softmax"),
        (MISTAKEN["second_softmax"], PAPER, "softmax is applied twice"),
        (MISTAKEN["second_softmax_over_all"], CAUSAL, "softmax is applied twice, the second time to all positions"),
        (MISTAKEN["values_1"], CAUSAL, "values of a neighbouring position are used"),
    ],
)
def test_misreadings_are_named_first(subject: Any, layer: ac.AttentionLayer, text: str) -> None:
    """The other properties add violations, not causes."""
    report = ac.check(subject, layer, properties=["exactness", "structure"], profile="smoke")
    assert report.causes[0].startswith(text)


# Every other check rejects a wrong simulator and accepts right ones, on the same number of draws --


FALSE_ALARM = 1e-6
DRAWS = 2_000
# Checks of structure need a simulator that receives its inputs.
BY_NAME = {check.name: check for check in registry.CHECKS if check.property_name != "structure"}

# Draws that leave p-values below 1e-15 for all of 4 seeds, if `DRAWS` do not. Only one draw in 16,000 has an input
# beyond 4 standard deviations. With 16 heads and 12 positions each draw has 17,000 products of two heads.
OTHER_DRAWS = {
    "inputs.tail_4": 500_000,
    "outputs.projection": 20_000,
    "scores.head_pairs": 500,
    **dict.fromkeys(("scores.key_scale", "outputs.tail_4", "conditional.joint"), 8_000),
    **dict.fromkeys(("outputs.limit_projection", "conditional.head_shares", "exactness.output_neurons"), 6_000),
    "scores.size": 6_000,
}

#: Checks of whitened scores, which fall back on visible scores.
WHITENED = {name for name, check in BY_NAME.items() if check.needs >= {"scores", "key_gram"}}

Simulator = Callable[[AttentionLayer, int, np.random.Generator], Mapping[str, FloatArray]]


def hiding(simulator: Any) -> Simulator:
    """Return a simulator with scores of minus infinity behind the mask."""

    def hidden(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        drawn = dict(simulator(layer, size, rng))
        return {**drawn, "scores": np.where(layer.visible, drawn["scores"], -np.inf)}

    return hidden


def fault_of(name: str) -> Any:
    """Return the first simulator that a check must reject."""
    return paired(BY_NAME[name])[0].subject


def layer_of(name: str) -> AttentionLayer:
    layer = BY_NAME[name].rejects.layer
    assert layer is not None
    return layer


def masked(name: str) -> AttentionLayer:
    """Return a pair's layer with an effective mask."""
    layer = layer_of(name).replace(mask="causal")
    return layer if layer.seq_len > 1 else layer.replace(seq_len=4, width=max(4, layer.width))


def p_value(subject: object, name: str, layer: AttentionLayer) -> float:
    check, settled, key = BY_NAME[name], Subject.of(subject), ("tests", "pairs", name)
    setting = settled.probe(layer, stream(0, *key, role="probe"))
    assert check.reason_not_examined(setting) == ""
    size = OTHER_DRAWS.get(name, DRAWS)
    planned = Plan(setting, CALL_DRAWS, FALSE_ALARM, 0.99, {check: size}, {})
    outcome = observe(planned, [check], 1, settled, stream(0, *key), seed_sequence(0, *key, role="reference"))[name]
    assert outcome.count > 0
    return outcome.p_value


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BY_NAME)
def test_wrong_simulator_is_rejected(name: str) -> None:
    assert p_value(fault_of(name), name, layer_of(name)) < FALSE_ALARM


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", BY_NAME)
def test_right_simulator_is_not(name: str) -> None:
    right = RIGHT if name.startswith("draws.seeds") else collapsed
    assert p_value(right, name, layer_of(name)) > FALSE_ALARM / len(BY_NAME)


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(WHITENED))
def test_behind_a_mask_the_wrong_simulator_is_rejected_and_the_right_is_not(name: str) -> None:
    assert p_value(hiding(fault_of(name)), name, masked(name)) < FALSE_ALARM
    assert p_value(hiding(collapsed), name, masked(name)) > FALSE_ALARM / len(BY_NAME)
