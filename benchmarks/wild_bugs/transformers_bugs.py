"""Transformers attention, from small random configurations: nothing is downloaded."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from benchmarks.wild_bugs.bug import OUTPUT, QUERY, Bug, Right

WIDTH, HEADS, LAYERS = 64, 4, 12
#: The configured standard deviation of all three, times √fan-in.
SIZE = 0.02 * math.sqrt(WIDTH)


def gpt2(implementation: str = "sdpa") -> Any:
    """Return attention of the first of twelve GPT-2 blocks."""
    config = GPT2Config(
        n_embd=WIDTH,
        n_head=HEADS,
        n_layer=LAYERS,
        vocab_size=16,
        bos_token_id=0,
        eos_token_id=0,
        n_positions=64,
        attn_implementation=implementation,
    )
    return GPT2Model(config).h[0].attn


def gpt2_flat() -> Any:
    """Return it with outputs drawn as by version 5.14.1, unscaled by the depth."""
    layer = gpt2()
    torch.nn.init.normal_(layer.c_proj.weight, std=0.02)
    return layer


def bert(width: int = WIDTH) -> Any:
    config = BertConfig(
        hidden_size=width, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=2 * width, vocab_size=16
    )
    return BertModel(config).encoder.layer[0].attention


def llama() -> Any:
    """Return grouped rotary attention: four heads of queries, two of keys and values."""
    return LlamaModel(llama_config()).layers[0].self_attn


def llama_config() -> LlamaConfig:
    return LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=128,
        vocab_size=16,
    )


def with_positions(layer: Any, x: Any) -> Any:
    """Call Llama's attention as its model does, with the rotations of positions 0, 1, …"""
    rotations = LlamaRotaryEmbedding(llama_config())(x, torch.arange(x.shape[1])[None])
    return layer(x, position_embeddings=rotations, attention_mask=None)[0]


_FLAT = Bug(
    name="depth scaling of c_proj, 5.14.1",
    source="transformers#47458",
    what="the outputs of GPT-2 are not scaled by 1/√(2L), against the paper and the documentation",
    make=gpt2,
    width=WIDTH,
    declared={"output_std": SIZE / math.sqrt(2 * LAYERS)},
    sentence=(OUTPUT, r"\b4\.[89]\d*|\b0\.1[56]\d*|\b0\.02\b"),
    environment="old",
)

BUGS = (
    _FLAT,
    dataclasses.replace(_FLAT, name="depth scaling of c_proj, rebuilt", make=gpt2_flat, environment="new"),
    Bug(
        name="0.02 whatever the width",
        source="transformers, initializer_range",
        what="the standard deviation does not depend on the width",
        make=lambda: bert(128),
        width=128,
        declared={"query_std": 1.0, "key_std": 1.0},
        sentence=(QUERY, r"\b0\.02(0+)?\b|\b0\.22[5-7]?\d*"),
    ),
    Bug(
        name="eager without a mask",
        source="transformers, GPT2Attention",
        what="called on its own, the eager implementation does not mask; sdpa does",
        make=lambda: gpt2("eager"),
        other=gpt2,
        width=WIDTH,
        declared={"mask": "causal"},
        sentence=(r"no mask|mask\W+(is )?(none|full|no\b)|not causal|not masked|without a mask|none.*causal",),
    ),
)

RIGHT = (
    Right(
        name="transformers Bert, with its output layer",
        make=bert,
        width=WIDTH,
        declared={"query_std": SIZE, "key_std": SIZE, "value_std": SIZE, "mask": "none"},
    ),
    Right(
        name="transformers GPT-2",
        make=gpt2,
        width=WIDTH,
        declared={"query_std": SIZE, "output_std": SIZE / math.sqrt(2 * LAYERS), "mask": "causal"},
    ),
    Right(
        name="transformers Llama",
        make=llama,
        width=WIDTH,
        call=with_positions,
        declared={"query_std": SIZE, "key_std": SIZE, "output_std": SIZE, "mask": "causal"},
    ),
)
ZOO = RIGHT
