"""`attncheck inspect` on layers and whole models, and what `attncheck init` writes for each framework."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main

MODULE = """
import torch
from tests.frameworks.numpy_layers import Plain

right, wrong, maximal_update = (Plain(32, 4, 4, 8, factor=factor) for factor in (8**-0.5, 1.0, 1 / 8))

def multi_head():
    return torch.nn.MultiheadAttention(16, 2, batch_first=True)

def causal(layer, x):
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return layer(x, x, x, attn_mask=hidden, need_weights=False)[0]

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.fc = multi_head(), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.fc(self.attn(x, x, x)[0])

class Without(Model):
    def forward(self, x):
        return self.fc(x)

def inputs():
    return (torch.zeros(2, 5, 16),)
"""
MODEL = ("--inputs", "modules:inputs", "--draws", "2")
LAYER, TORCH = ("--width", "32", "--draws", "2"), ("--width", "16", "--call")
MUP = "if this is meant: scores times 1/head_dim"


@pytest.fixture
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    (tmp_path / "modules.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "modules", raising=False)


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("name", "arguments", "code", "text"),
    [
        ("right", LAYER, ExitCode.CONSISTENT, "W_Q"),
        ("right", (*LAYER, "--expect", "unmasked", "--expect", "query_std=1.0"), ExitCode.CONSISTENT, "W_Q"),
        ("right", (*LAYER, "--expect", "causal"), ExitCode.VIOLATED, "NOT AS EXPECTED: mask is 'none', not 'causal'\n"),
        ("wrong", LAYER, ExitCode.VIOLATED, "WRONG: "),
        ("maximal_update", LAYER, ExitCode.CONSISTENT, MUP),
        ("maximal_update", (*LAYER, "--expect=mup"), ExitCode.CONSISTENT, f"not {MUP}"),
        ("maximal_update", (*LAYER, "--expect=scale=1/sqrt(width)"), ExitCode.VIOLATED, MUP),
        ("multi_head", (*TORCH, "modules:causal"), ExitCode.CONSISTENT, "softmax, causal mask"),
        ("multi_head", (*TORCH, "causal"), ExitCode.UNUSABLE, "call='causal'"),
        (
            "Model",
            MODEL,
            ExitCode.CONSISTENT,
            "Model: 1 attention module without a mask, 1,360 parameters; 2 draws: nothing wrong",
        ),
        ("Model", (*MODEL, "--expect", "*.in_proj_bias=zeros"), ExitCode.CONSISTENT, "nothing wrong"),
        ("Model", (*MODEL, "--expect", "fc.weight=normal(0.5)"), ExitCode.VIOLATED, "NOT AS EXPECTED: fc.weight: "),
        ("Model", (*MODEL, "--expect", "fc.weight=normal(0.5)"), ExitCode.VIOLATED, "not nothing wrong was found"),
        ("Model", (), ExitCode.UNUSABLE, "inputs=None: are unknown for a model of class Model"),
        ("Without", MODEL, ExitCode.INCONCLUSIVE, "NOT EXAMINED: Without: 0 attention modules"),
    ],
)
def test_exit_codes_and_texts(
    name: str, arguments: tuple[str, ...], code: ExitCode, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"modules:{name}", *arguments]) == code
    output = capsys.readouterr()
    absent = text.startswith("not ")
    assert (text.removeprefix("not ") in output.out + output.err) != absent
    if text.startswith(("NOT", "Model")):
        assert output.out.startswith(text)


@pytest.mark.usefixtures("_module")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "modules:wrong", *LAYER, "--json"]) == ExitCode.VIOLATED
    assert json.loads(capsys.readouterr().out)["forward"]["scale"] == "1"
    assert main(["inspect", "modules:Model", *MODEL, "--json", "--expect", "causal"]) == ExitCode.VIOLATED
    fields = json.loads(capsys.readouterr().out)
    assert fields["unexpected"] == ["attn: mask is 'none', not 'causal'"]
    assert [row["name"] for row in fields["parameters"]][-2:] == ["fc.weight", "fc.bias"]
    assert fields["attention"]["attn"]["num_heads"] == 2


# Starter files ------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("framework", ["torch", "flax", "keras"])
def test_lines_of_the_workflow_pass(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "layer", raising=False)  # of the framework before
    assert main(["init", "--framework", framework]) == ExitCode.CONSISTENT
    workflow = Path(".github/workflows/attncheck.yml").read_text(encoding="utf-8")
    install, test, inspect = (line.split() for line in re.findall(r"^ *- run: (.*)$", workflow, re.MULTILINE))
    assert install[:4] == ["python", "-m", "pip", "install"]
    assert (test[:3], inspect[0]) == (["python", "-m", "pytest"], "attncheck")
    sys.path.insert(0, "")  # as `python -m` does
    monkeypatch.delitem(sys.modules, "test_layer", raising=False)
    assert pytest.main(["-p", "no:cacheprovider", *test[3:]]) == pytest.ExitCode.OK
    assert main(inspect[1:]) == ExitCode.CONSISTENT
