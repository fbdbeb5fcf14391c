"""Right attention modules of transformers, from small random configurations."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.wild_bugs.variants import Variant

Options = dict[str, Any]


def decoder(name: str, model: str, options: Options, implementation: str) -> Any:
    """Return the attention of the first layer of a decoder."""
    layer = made(name, model, options, implementation).layers[0]
    return layer.attention if hasattr(layer, "attention") else layer.self_attn


def made(name: str, model: str, options: Options, implementation: str = "eager") -> Any:
    """Return a model of random weights."""
    config = getattr(importlib.import_module("transformers"), f"{name}Config")(**options)
    config._attn_implementation = implementation
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    return getattr(module, f"{name}Model")(config)


def hiding(x: Any, span: int | None = None) -> Any:
    """Return an additive mask, causal, perhaps with a window."""
    i = torch.arange(x.shape[1])
    distance = i[:, None] - i
    shown = (distance >= 0) & (distance < (span or len(i)))
    return torch.zeros(1, 1, *shown.shape, dtype=x.dtype).masked_fill(~shown, torch.finfo(x.dtype).min)


def rotated(name: str, model: str, options: Options, span: int | None, layer: Any, x: Any) -> Any:
    """Call attention with its model's rotations and mask."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    config = getattr(importlib.import_module("transformers"), f"{name}Config")(**options)
    rotations = getattr(module, f"{name}RotaryEmbedding")(config)(x, torch.arange(x.shape[1])[None])
    return layer(x, position_embeddings=rotations, attention_mask=hiding(x, span))[0]


def sizes(rng: random.Random) -> Options:
    width, heads = rng.choice((32, 64, 96)), rng.choice((2, 4))
    return {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": 1,
        "intermediate_size": 2 * width,
        "vocab_size": 16,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


#: Decoders with rotary positions: their module, whether they group heads, and the span of a window.
ROTARY: dict[str, tuple[str, bool, int | None]] = {
    "GPTNeoX": ("gpt_neox", False, None),
    "Phi": ("phi", False, None),
    "Llama": ("llama", True, None),
    "Mistral": ("mistral", True, 4),
    "Qwen3": ("qwen3", True, None),
    "Olmo2": ("olmo2", True, None),
    "Gemma2": ("gemma2", True, None),
}


def decoders(rng: random.Random) -> list[Variant]:
    found = []
    for name, (model, groups, span) in ROTARY.items():
        options = sizes(rng)
        width, heads = options["hidden_size"], options["num_attention_heads"]
        if groups:
            options["num_key_value_heads"] = rng.choice((heads, heads // 2))
        if name in ("Qwen3", "Gemma2"):
            options["head_dim"] = width // heads
        if name == "Gemma2":
            options["query_pre_attn_scalar"] = width // heads
        if span is not None:
            options["sliding_window"] = span
        implementation = "eager" if name == "Gemma2" else rng.choice(("eager", "sdpa"))
        make = partial(decoder, name, model, options, implementation)
        call = partial(rotated, name, model, options, span)
        found.append(Variant(name=f"transformers {name}, {implementation}", make=make, width=width, call=call))
    return found


def attended(layer: Any, x: Any) -> Any:
    return layer(x)[0]


def masked(layer: Any, x: Any) -> Any:
    return layer(x, attention_mask=hiding(x))[0]


def bloom(layer: Any, x: Any) -> Any:
    """Call Bloom's attention with its bias by distance, and no residual."""
    build = importlib.import_module("transformers.models.bloom.modeling_bloom").build_alibi_tensor
    alibi = build(torch.ones(x.shape[:2]), layer.num_heads, x.dtype)
    return layer(x, residual=torch.zeros_like(x), alibi=alibi, attention_mask=hiding(x))[0]


def t5(layer: Any, x: Any) -> Any:
    return layer(x, mask=None)[0]


def of_t5(options: Options, table: bool) -> Any:
    module = importlib.import_module("transformers.models.t5.modeling_t5")
    model = module.T5EncoderModel(importlib.import_module("transformers").T5Config(**options))
    return model.encoder.block[0 if table else 1].layer[0].SelfAttention


def with_call(name: str, model: str, options: Options, path: str, call: Callable[..., Any]) -> Variant:
    """Return the part of a model at a path."""

    def make() -> Any:
        return made(name, model, options).get_submodule(path)

    return Variant(name=f"transformers {name}", make=make, width=options["hidden_size"], call=call)


def variants(seed: int) -> tuple[Variant, ...]:
    """Return thirteen modules; T5's with and without its table of distances."""
    rng = random.Random(f"transformers, {seed}")
    vit = {**sizes(rng), "image_size": 8, "patch_size": 4}
    gpt2 = {**sizes(rng), "n_positions": 64}
    others = [
        with_call("Bert", "bert", sizes(rng), "encoder.layer.0.attention", attended),
        with_call("GPT2", "gpt2", gpt2, "h.0.attn", masked),
        with_call("Bloom", "bloom", sizes(rng), "h.0.self_attention", bloom),
        with_call("ViT", "vit", vit, "layers.0.attention", attended),
    ]
    for table in (True, False):
        size = sizes(rng)
        width, heads = size["hidden_size"], size["num_attention_heads"]
        inner = {"d_model": width, "num_heads": heads, "d_kv": width // heads, "d_ff": width, "num_layers": 2}
        options = {**inner, "vocab_size": 16, "dropout_rate": 0.0}
        name = f"transformers T5, {'with' if table else 'without'} its table"
        others.append(Variant(name=name, make=partial(of_t5, options, table), width=width, call=t5))
    return (*decoders(rng), *others)
