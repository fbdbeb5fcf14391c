"""Optional parts of attention in public models are found, and their layers are examined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.errors import InputError
from attncheck.models.result import ModelInspection

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "initializer_range": 0.125,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2, "head_dim": 16}


def inspected(name: str, **fields: Any) -> ModelInspection:
    """Return an inspection of a small model of transformers."""
    config = getattr(transformers, f"{name}Config")(**fields)
    model = getattr(transformers, f"{name}Model" if name != "T5" else "T5EncoderModel")
    return ac.inspect(lambda: model(config), draws=2)


def shown(found: ModelInspection) -> str:
    """Return the row of the first attention modules in the model's table."""
    return found.tables["Attention"][1][-1]


def assert_examined(subject: Any, properties: str, **without: Any) -> None:
    """Assert that a module passes a group of checks, and fails as a layer without an optional part."""
    layer = subject.layers[0]
    right = ac.check(subject, layer, properties=properties, profile="smoke", seed=0)
    assert not right.violated
    assert sum(bool(result.size) for result in right.results) > 3
    assert ac.check(subject, layer.replace(**without), properties=properties, profile="smoke", seed=0).violated


def of_layer(found: ModelInspection) -> dict[str, Any]:
    """Return the optional parts of the first attention module's layer."""
    layer = next(iter(found.modules.values())).layer()
    names = ("mask", "window", "softcap", "sink", "bias_slopes", "bias_std", "qk_norm", "rotary_base")
    plain = ac.AttentionLayer(width=8)
    return {name: getattr(layer, name) for name in names if getattr(layer, name) != getattr(plain, name)}


def test_gemma_2_has_a_window_and_a_cap_and_its_module_is_examined() -> None:
    fields = {**_GROUPED, "sliding_window": 4, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}
    found = inspected("Gemma2", attn_implementation="eager", **fields)
    assert of_layer(found) == {"mask": "causal", "window": 4, "softcap": 5.0, "rotary_base": 10_000.0}
    assert shown(found).endswith("scores times 1/sqrt(head_dim), softcap 5")
    assert f"{shown(found)}; equal to the formula" in str(next(iter(found.modules.values())))
    # The same module is not a layer without its window.
    assert_examined(next(iter(found.modules.values())).subject(), "conditional", window=None)


def test_mistral_has_a_window() -> None:
    found = inspected("Mistral", **_GROUPED, sliding_window=3)
    assert of_layer(found) == {"mask": "causal", "window": 3, "rotary_base": 10_000.0}
    assert shown(found).startswith("softmax, mask: window of 3, rotary")
    # A model is initialised a few times only.
    with pytest.raises(InputError, match="needs a new module in every draw"):
        next(iter(found.modules.values())).subject(weights="own")


def test_qwen_3_normalises_queries_and_keys() -> None:
    found = inspected("Qwen3", **_GROUPED)
    assert of_layer(found) == {"mask": "causal", "qk_norm": True, "rotary_base": 10_000.0}
    assert shown(found).endswith(", QK norm")
    inspection = next(iter(found.modules.values()))
    layer = inspection.layer()
    assert (layer.query_std, layer.key_std) == pytest.approx((1.0, 1.0), rel=1e-4)
    subject = inspection.subject()
    (layer,) = subject.layers
    rng = np.random.default_rng(0)
    drawn = subject(layer, rng.standard_normal((2, layer.seq_len, layer.width)), rng)
    assert drawn.keys() == {"outputs", "scores", "value_gram"}
    # The same module is not a layer without these norms.
    assert_examined(subject, "exactness", qk_norm=False)


def test_bloom_has_the_slopes_of_alibi() -> None:
    found = inspected("Bloom", hidden_size=64, n_layer=1, n_head=4, vocab_size=100, initializer_range=0.125)
    assert of_layer(found) == {"mask": "causal", "bias_slopes": "alibi"}
    assert shown(found).endswith(", ALiBi")
    inspection = next(iter(found.modules.values()))
    # The residual stream that the module adds is set to 0: it is neither a bias nor attention.
    assert not any("outputs have a bias" in str(note) for note in inspection.notes)
    assert_examined(inspection.subject(), "scores", bias_slopes=None)


def test_t5_has_a_random_table_of_biases() -> None:
    # Its entries are normal with standard deviation 1/8 by T5's own initialisation.
    found = inspected("T5", d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=32, vocab_size=100)
    parts = of_layer(found)
    assert parts.keys() == {"bias_std"}
    assert shown(found).endswith(", random bias by distance")
    # Some 32 · 12 entries: the estimate is off by a fifth once in 10⁷ runs.
    assert parts["bias_std"] == pytest.approx(0.125, rel=0.2)
    first, second = found.modules.values()
    with pytest.raises(InputError, match="needs the biases of the scores"):
        second.subject()  # which has the table of the first
    subject = first.subject()
    layer = subject.layers[0]
    x = np.zeros((100, layer.seq_len, layer.width))
    drawn = subject(layer, x, np.random.default_rng(0))
    assert drawn.keys() == {"outputs", "attention", "key_gram", "value_gram"}
    # Each draw has another table: at inputs of 0, logarithms of two weights of a row differ by that of two biases.
    gaps = np.diff(np.log(drawn["attention"][:, :, 0, :2]), axis=-1)
    assert np.std(gaps) == pytest.approx(2**0.5 * parts["bias_std"], rel=0.1)  # eight standard errors


_OSS = {**_GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}


def test_sinks_of_gpt_oss_are_drawn_for_each_head() -> None:
    # Four normal sinks of standard deviation 1/8 agree to 10⁻³ once in 10⁷ runs.
    inspection = next(iter(inspected("GptOss", **_OSS).modules.values()))
    with pytest.raises(InputError, match="pass rotary_base=None"):  # YaRN
        inspection.layer()
    layer = inspection.layer(rotary_base=None)
    assert isinstance(layer.sink, tuple)
    assert (len(layer.sink), layer.window, layer.mask) == (layer.num_heads, 4, "causal")
    assert inspection.layer(rotary_base=None, sink=0.0).sink == 0.0


@pytest.mark.parametrize("std", [0.0, 1.0])
def test_gpt_oss_with_plain_rotary_positions_is_examined(std: float) -> None:
    def made() -> Any:
        """Return GPT-OSS with sinks of this standard deviation."""
        rotary = {"rope_type": "default", "rope_theta": 10_000.0}
        model = transformers.GptOssModel(transformers.GptOssConfig(**_OSS, rope_parameters=rotary))
        torch.nn.init.normal_(model.layers[0].self_attn.sinks, std=std)
        return model

    found = ac.inspect(made, draws=2)
    fields = of_layer(found)
    assert (fields.pop("sink") == 0.0) is (std == 0.0)
    assert fields == {"mask": "causal", "window": 4, "rotary_base": 10_000.0}
    assert_examined(next(iter(found.modules.values())).subject(), "conditional", sink=None)


def test_what_no_field_describes_is_refused_by_name() -> None:
    found = inspected("Olmo2", **_SIZES)
    with pytest.raises(InputError, match="query_std=None: is unknown"):
        next(iter(found.modules.values())).layer()


def test_layers_with_and_without_a_part_are_listed_apart() -> None:
    def mixed() -> Any:
        """Return Qwen3 with one layer that does not normalise queries and keys."""
        model = transformers.Qwen3Model(transformers.Qwen3Config(**{**_GROUPED, "num_hidden_layers": 2}))
        model.layers[1].self_attn.q_norm = model.layers[1].self_attn.k_norm = torch.nn.Identity()
        return model

    found = ac.inspect(mixed, draws=2)
    assert [group.names for group in found.attention] == [("layers.0.self_attn",), ("layers.1.self_attn",)]
    assert "layers.0.self_attn: optional parts QK norm" in str(found)


def test_a_module_that_needs_its_model_is_referred_to_the_model() -> None:
    qwen = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    with pytest.raises(InputError, match="needs more of it than hidden states, pass the model and no width"):
        ac.inspect(lambda: qwen.Qwen3Attention(transformers.Qwen3Config(**_GROUPED), 0), width=64)
