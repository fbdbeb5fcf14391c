"""Hand-made records for the gate, with every kind of trouble."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attncheck.commands.cli import main
from attncheck.layers.attention import AttentionLayer
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.schema import PlannedResult, Result
from tests.recorded import make_result, write_record

CHECKS = ("scores.scale", "scores.law", "outputs.energy", "draws.signs")
ANCHORS = [AttentionLayer(width=width) for width in (8, 16, 32)]
NOT_EXAMINED: dict[str, Any] = {
    **{"verdict": "not examined", "p_values": [], "effects": [], "size": 0},
    **dict.fromkeys(("effect", "low", "high", "null_effect", "mde")),
}
BASELINE_SEED, RUN_SEED = 0, 7
Gated = Callable[..., tuple[int, str]]


@dataclasses.dataclass
class Sheet:
    """The lines of a record, to be changed and written."""

    results: list[Result]
    planned: list[PlannedResult]
    head: dict[str, Any]
    close: bool = True
    causes: Sequence[str] = ()
    failed: list[str] = dataclasses.field(default_factory=list)

    def change(self, check: str = "", **fields: Any) -> None:
        """Change the results of a check, or all of them."""
        self.results = [
            msgspec.structs.replace(result, **fields) if check in ("", result.check) else result
            for result in self.results
        ]

    def violate(self, check: str, **fields: Any) -> None:
        self.change(check, **{"verdict": "violated", "p_values": [1e-5, 1e-6, 1e-7], "combined": 1e-15} | fields)

    def describe(self, **fields: Any) -> None:
        """Change fields of the first line."""
        self.head |= fields

    def rename(self, old: str, new: str) -> None:
        text = msgspec.json.encode([self.results, self.planned]).decode()
        for before, after in ((f'"{old}@', f'"{new}@'), (f'"{old}.', f'"{new}.'), (f'"{old}"', f'"{new}"')):
            text = text.replace(before, after)
        self.results, self.planned = msgspec.json.decode(text, type=tuple[list[Result], list[PlannedResult]])

    def drop(self, text: str, *, plan: bool = False) -> None:
        """Drop the results whose id has a text, and their plan too."""
        self.results = [result for result in self.results if text not in result.id]
        if plan:
            self.planned = [planned for planned in self.planned if text not in planned.id]

    def write(self, path: Path) -> Path:
        explanations = [Explanation(text, Certainty.FITTED) for text in self.causes]
        closing = {"explanations": explanations, "failed": self.failed}
        return write_record(path, self.results, close=self.close, closing=closing, planned=self.planned, **self.head)


#: A run and a baseline.
Sheets = tuple[Sheet, Sheet]


def layers_of(seed: int) -> list[AttentionLayer]:
    """Return layers, the first three the same for all seeds."""
    return [*ANCHORS, *(AttentionLayer(width=9, seq_len=2 + number + 10 * seed) for number in range(5))]


def make_sheet(seed: int, layers: Sequence[AttentionLayer] = ()) -> Sheet:
    """Return a clean run, consistent with any other at any seed."""
    results = [
        a_result(check, layer, (0.137 * seed + 0.618034 * number) % 1.0)
        for number, layer in enumerate(layers or layers_of(seed))
        for check in CHECKS
    ]
    planned = [PlannedResult(result.id, result.item, result.check) for result in results]
    head = {"versions": {"attncheck": "0.1.0"}, "seed": seed, "subject": "my:simulator", "level": 1e-3, "machine": {}}
    return Sheet(results, planned, head)


def a_result(check: str, layer: AttentionLayer, uniform: float) -> Result:
    effect, key = 1.0 + 0.02 * (uniform - 0.5), layer.key
    fields: dict[str, Any] = {"id": f"{check}@{key}", "item": f"{check.partition('.')[0]}@{key}"}
    fields |= {"size": 4000, "affordable": 6000, "level": 1e-3, "power": 0.9, "mde": 1.05, "alternative": 1.1}
    fields |= {"p_values": [uniform], "effect": effect, "low": effect - 0.026, "high": effect + 0.026, "hint": ""}
    return make_result(check, layer, **fields, text=f"ratio {effect:.4g}")


@pytest.fixture
def sheets() -> Sheets:
    """Return a run and a baseline of another seed."""
    return make_sheet(RUN_SEED), make_sheet(BASELINE_SEED)


@pytest.fixture
def gated(capsys: pytest.CaptureFixture[str]) -> Gated:
    """Return the gate as a command: exit code and output, with one-line errors on standard error only."""

    def call(run: Path, base: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["gate", str(run), "--baseline", str(base), *options])
        output = capsys.readouterr()
        assert bool(output.err) == (code == 2)
        assert output.err.count("\n") == (code == 2)
        return code, output.out + output.err

    return call
