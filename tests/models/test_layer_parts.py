"""Optional parts of attention in public models are found, and their layers are examined."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import attncheck as ac
from tests.refusals import refused

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("verdicts_only")

SIZES: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
SIZES |= {"vocab_size": 100, "initializer_range": 0.125}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
BLOOM = {"hidden_size": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100, "initializer_range": 0.125}
GEMMA = GROUPED | {"sliding_window": 4, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}
OSS = GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 32, "vocab_size": 100}
ROTARY = {"mask": "causal", "rotary_base": 10_000.0}
PARTS = ("mask", "window", "softcap", "sink", "bias_slopes", "bias_std", "qk_norm", "rotary_base")


def made(name: str, **fields: Any) -> Any:
    """Return a small model of transformers."""
    model = getattr(transformers, f"{name}Model" if name != "T5" else "T5EncoderModel")
    return model(getattr(transformers, f"{name}Config")(**fields))


def oss(std: float) -> Any:
    """Return GPT-OSS with plain rotary positions, and sinks of this standard deviation."""
    model = made("GptOss", **OSS, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})
    torch.nn.init.normal_(model.layers[0].self_attn.sinks, std=std)
    return model


def mixed() -> Any:
    """Return Qwen3 with one layer that does not normalise queries and keys."""
    model = made("Qwen3", **(GROUPED | {"num_hidden_layers": 2}))
    model.layers[1].self_attn.q_norm = model.layers[1].self_attn.k_norm = torch.nn.Identity()
    return model


def inspected(make: Callable[[], Any]) -> ac.ModelInspection:
    return ac.inspect(make, draws=2)


def first(inspection: ac.ModelInspection) -> ac.Inspection:
    return next(iter(inspection.modules.values()))


class Public(NamedTuple):
    """A model: the optional parts of its first layer, and what its table shows of them."""

    make: Callable[[], Any]
    parts: dict[str, Any]
    text: str
    properties: str = ""  # checks that the module passes
    without: str = ""  # a part without which the same checks fail


PUBLIC = {
    "Gemma 2": Public(
        lambda: made("Gemma2", attn_implementation="eager", **GEMMA),
        ROTARY | {"window": 4, "softcap": 5.0},
        "scores times 1/sqrt(head_dim), softcap 5; equal to the formula",
        "conditional",
        "window",
    ),
    "Qwen 3": Public(lambda: made("Qwen3", **GROUPED), ROTARY | {"qk_norm": True}, ", QK norm", "exactness"),
    "Bloom": Public(
        lambda: made("Bloom", **BLOOM), {"mask": "causal", "bias_slopes": "alibi"}, ", ALiBi", "scores", "bias_slopes"
    ),
    "GPT-OSS": Public(lambda: oss(0.0), ROTARY | {"window": 4, "sink": 0.0}, ""),
    "GPT-OSS, sinks": Public(lambda: oss(1.0), ROTARY | {"window": 4, "sink": ...}, "", "conditional"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", PUBLIC)
def test_optional_parts_are_those_of_the_layer(name: str) -> None:
    model = PUBLIC[name]
    inspection = first(inspected(model.make))
    assert model.text in str(inspection)
    layer, plain = inspection.layer(), ac.AttentionLayer(width=8)
    parts = {part: getattr(layer, part) for part in PARTS if getattr(layer, part) != getattr(plain, part)}
    assert parts == model.parts | ({"sink": parts["sink"]} if model.parts.get("sink") is ... else {})
    # The residual stream that a module adds is set to 0: it is neither a bias nor attention.
    assert not any("outputs have a bias" in str(note) for note in inspection.notes)
    if model.properties:
        subject = inspection.subject()
        (layer,) = subject.layers
        report = ac.check(subject, layer, properties=model.properties, profile="smoke", seed=0)
        assert not report.violated
        assert sum(bool(result.size) for result in report.results) > 3
        if model.without:
            wrong = layer.replace(**{model.without: None})
            assert ac.check(subject, wrong, properties=model.properties, profile="smoke", seed=0).violated


def test_t5_has_a_random_table_of_biases() -> None:
    # Its entries are normal with standard deviation 1/8 by T5's own initialisation.
    inspection = inspected(lambda: made("T5", **T5))
    owner, user = inspection.modules.values()
    assert ", random bias by distance" in inspection.tables["Attention"][1][-1]
    # Some 32 · 12 entries: the estimate is off by a fifth once in 10⁷ runs.
    assert owner.layer().bias_std == pytest.approx(0.125, rel=0.2)
    refused(user.subject, "needs the biases of the scores")
    subject = owner.subject()
    layer = subject.layers[0]
    drawn = subject(layer, np.zeros((100, layer.seq_len, layer.width)), np.random.default_rng(0))
    assert drawn.keys() == {"outputs", "attention", "key_gram", "value_gram"}
    # Each draw has another table: at inputs of 0, logarithms of two weights of a row differ by that of two biases.
    gaps = np.diff(np.log(drawn["attention"][:, :, 0, :2]), axis=-1)
    assert np.std(gaps) == pytest.approx(2**0.5 * owner.layer().bias_std, rel=0.1)  # eight standard errors


def test_sinks_of_gpt_oss_are_drawn_for_each_head() -> None:
    # Four normal sinks of standard deviation 1/8 agree to 10⁻³ once in 10⁷ runs.
    inspection = first(inspected(lambda: made("GptOss", **OSS)))
    refused(inspection.layer, "pass rotary_base=None")  # YaRN
    layer = inspection.layer(rotary_base=None)
    assert isinstance(layer.sink, tuple)
    assert (len(layer.sink), layer.window, layer.mask) == (layer.num_heads, 4, "causal")
    assert inspection.layer(rotary_base=None, sink=0.0).sink == 0.0


def test_what_has_no_description_is_refused() -> None:
    olmo = first(inspected(lambda: made("Olmo2", **SIZES)))
    refused(olmo.layer, "query_std=None: is unknown")
    # A model is initialised a few times only.
    mistral = first(inspected(lambda: made("Mistral", **GROUPED)))
    refused(lambda: mistral.subject(weights="own"), "needs a new module in every draw")
    qwen = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    attention = functools.partial(qwen.Qwen3Attention, transformers.Qwen3Config(**GROUPED), 0)
    refused(lambda: ac.inspect(attention, width=64), "needs other inputs than hidden states, pass the model and no wid")


def test_layers_with_and_without_a_part_are_listed_separately() -> None:
    inspection = inspected(mixed)
    assert [group.names for group in inspection.attention] == [("layers.0.self_attn",), ("layers.1.self_attn",)]
    assert "layers.0.self_attn: optional parts QK norm" in str(inspection)
