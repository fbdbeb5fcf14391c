"""`attncheck inspect` on whole models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main

torch = pytest.importorskip("torch")


class TestCommand:
    FILE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.fc = torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.fc(self.attn(x, x, x)[0])

def inputs():
    return (torch.zeros(2, 5, 16),)
"""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "whole_model.py").write_text(self.FILE, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)

    def test_text_and_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["inspect", "whole_model:Model", "--inputs", "whole_model:inputs", "--draws", "2"]
        assert main(command) == ExitCode.CONSISTENT
        assert capsys.readouterr().out.startswith("Model: 1 attention module, 1,360 parameters; 2 draws: nothing wrong")
        assert main([*command, "--expect", "*.in_proj_bias=zeros"]) == ExitCode.CONSISTENT
        assert main([*command, "--expect", "fc.weight=normal(0.5)"]) == ExitCode.VIOLATED
        printed = capsys.readouterr().out
        assert "NOT AS EXPECTED: fc.weight: " in printed
        assert "nothing wrong was found" not in printed.partition("NOT AS EXPECTED")[2]
        assert main([*command, "--json", "--expect", "causal"]) == ExitCode.VIOLATED
        found = json.loads(capsys.readouterr().out)
        assert found["unexpected"] == ["attn: mask is 'none', not 'causal'"]
        assert [row["name"] for row in found["parameters"]][-2:] == ["fc.weight", "fc.bias"]
        assert found["attention"]["attn"]["num_heads"] == 2

    def test_declared_zeros_are_no_question(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        zero = "        torch.nn.init.zeros_(self.fc.weight)\n\n    def forward"
        text = self.FILE.replace("\n    def forward", zero).replace("return self.fc", "return x + self.fc")
        (tmp_path / "model_with_zeros.py").write_text(text, encoding="utf-8")
        command = ["inspect", "model_with_zeros:Model", "--inputs", "model_with_zeros:inputs", "--draws", "2"]
        asked = []
        for expected in ([], ["--expect", "fc.weight=zeros"]):
            assert main([*command, *expected]) == ExitCode.CONSISTENT
            asked.append("if this is meant: fc.weight: zeros" in capsys.readouterr().out)
        assert asked == [True, False]

    def test_a_model_without_attention_does_not_pass(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        text = self.FILE.replace("self.attn(x, x, x)[0]", "x")
        (tmp_path / "no_attention.py").write_text(text, encoding="utf-8")
        command = ["inspect", "no_attention:Model", "--inputs", "no_attention:inputs", "--draws", "2"]
        assert main(command) == ExitCode.INCONCLUSIVE
        assert capsys.readouterr().out.startswith("NOT EXAMINED: Model: 0 attention modules")

    def test_without_inputs(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", "whole_model:Model"]) == ExitCode.UNUSABLE
        assert "inputs=None: are unknown for a model of class Model" in capsys.readouterr().err
