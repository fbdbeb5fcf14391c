"""A PyTorch module of transformers as a subject, and calls from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attncheck as ac
from attncheck.commands.cli import main

pytest.importorskip("torch")

import torch
from torch import nn


@pytest.mark.usefixtures("verdicts_only")
def test_llama_is_examined_with_its_rotary_positions() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
    config = llama.LlamaConfig(
        **sizes,
        num_hidden_layers=1,
        vocab_size=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        attn_implementation="sdpa",
    )
    rotary = llama.LlamaRotaryEmbedding(config)

    def make() -> Any:
        layer = llama.LlamaAttention(config, 0)
        for weight in layer.parameters():
            nn.init.normal_(weight, std=32**-0.5)
        return layer

    def call(layer: Any, x: Any) -> Any:
        rotations = rotary(x, torch.arange(x.shape[1])[None])
        return layer(x, position_embeddings=rotations, attention_mask=None)[0]

    inspection = ac.inspect(make, width=32, call=call)
    assert (inspection.forward.positions, inspection.forward.rotary_base) == ("rotary", 1000.0)
    subject, layer = inspection.subject(), inspection.layer(seq_len=6, input_correlation=0.5)
    assert (layer.rotary_base, layer.num_kv_heads) == (1000.0, 2)
    report = ac.check(subject, layer, properties=["exactness"], profile="smoke")
    assert report.verdict == "consistent"
    assert sum(bool(result.p_values) for result in report.results) >= 24


# The shell ----------------------------------------------------------------------------------------

CALLED = """
import torch
def build():
    return torch.nn.MultiheadAttention(16, 2, batch_first=True)
def causal(layer, x):
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return layer(x, x, x, attn_mask=hidden, need_weights=False)[0]
"""


def test_the_shell_takes_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "called.py").write_text(CALLED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    inspect = ["inspect", "called:build", "--width", "16", "--call"]
    assert main([*inspect, "called:causal"]) == 0
    assert "softmax, causal mask" in capsys.readouterr().out
    assert main([*inspect, "causal"]) == 2
    assert "call='causal'" in capsys.readouterr().err
