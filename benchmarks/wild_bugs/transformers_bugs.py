"""Transformers attention, from small random configurations: nothing is downloaded."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from benchmarks.wild_bugs.bug import OUTPUT, QUERY, bug, right
from benchmarks.wild_bugs.variants_transformers import decoder, rotated

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


#: Grouped rotary attention: four heads of queries, two of keys and values.
LLAMA = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 128,
    "vocab_size": 16,
}


BUGS = (
    bug(
        "depth scaling of c_proj",
        "transformers#47458",
        "in 5.14.1 the outputs of GPT-2 are not scaled by 1/√(2L), against the paper and the documentation",
        gpt2_flat,
        OUTPUT,
        r"\b4\.[89]\d*|\b0\.1[56]\d*|\b0\.02\b",
        declared={"output_std": SIZE / math.sqrt(2 * LAYERS)},
    ),
    bug(
        "0.02 whatever the width",
        "transformers, initializer_range",
        "the standard deviation does not depend on the width",
        lambda: bert(128),
        QUERY,
        r"\b0\.02(0+)?\b|\b0\.22[5-7]?\d*",
        width=128,
        declared={"query_std": 1.0, "key_std": 1.0},
    ),
    bug(
        "eager without a mask",
        "transformers, GPT2Attention",
        "called on its own, the eager implementation does not mask; sdpa does",
        lambda: gpt2("eager"),
        r"no mask|mask\W+(is )?(none|full|no\b)|not causal|not masked|without a mask|none.*causal",
        other=gpt2,
        declared={"mask": "causal"},
    ),
)

RIGHT = (
    right(
        "transformers Bert, with its output layer",
        bert,
        declared={"query_std": SIZE, "key_std": SIZE, "value_std": SIZE, "mask": "none"},
    ),
    right(
        "transformers GPT-2",
        gpt2,
        declared={"query_std": SIZE, "output_std": SIZE / math.sqrt(2 * LAYERS), "mask": "causal"},
    ),
    right(
        "transformers Llama",
        partial(decoder, "Llama", "llama", LLAMA, "sdpa"),
        call=partial(rotated, "Llama", "llama", LLAMA, None),
        declared={"query_std": SIZE, "key_std": SIZE, "output_std": SIZE, "mask": "causal"},
    ),
)
