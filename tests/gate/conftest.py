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
from attncheck.records.schema import SCHEMA, Closing, Manifest, PlannedResult, Result, run_digest
from attncheck.records.writer import Writer

CHECKS = ("scores.scale", "scores.law", "outputs.energy", "draws.signs")
ANCHORS = [AttentionLayer(width=width) for width in (8, 16, 32)]
VIOLATED = {"verdict": "violated", "p_values": [1e-5, 1e-6, 1e-7], "combined": 1e-15}
NOT_EXAMINED: dict[str, Any] = {
    "verdict": "not examined",
    "p_values": [],
    "effects": [],
    **dict.fromkeys(("effect", "low", "high", "null_effect", "mde")),
    "size": 0,
}


@dataclasses.dataclass
class Sheet:
    results: list[Result]
    planned: list[PlannedResult]
    head: dict[str, Any]
    closing: bool = True
    causes: list[str] = dataclasses.field(default_factory=list)

    def change(self, check: str, **fields: Any) -> None:
        self.results = [
            msgspec.structs.replace(result, **fields) if result.check == check else result for result in self.results
        ]

    def violate(self, check: str, **fields: Any) -> None:
        self.change(check, **VIOLATED | fields)

    def excuse(self, check: str, reason: str = "the subject does not expose scores") -> None:
        self.change(check, **NOT_EXAMINED | {"reason": reason})

    def rename(self, old: str, new: str) -> None:
        text = msgspec.json.encode([self.results, self.planned]).decode()
        for before, after in ((f'"{old}@', f'"{new}@'), (f'"{old}.', f'"{new}.'), (f'"{old}"', f'"{new}"')):
            text = text.replace(before, after)
        self.results, self.planned = msgspec.json.decode(text, type=tuple[list[Result], list[PlannedResult]])

    def drop(self, wanted: Callable[[Any], bool], *, plan: bool = False) -> None:
        self.results = [result for result in self.results if not wanted(result)]
        if plan:
            self.planned = [planned for planned in self.planned if not wanted(planned)]

    def write(self, path: Path) -> Path:
        writer = Writer(path)
        writer.write(Manifest(planned=self.planned, **self.head))
        for result in self.results:
            writer.write(result)
        if self.closing:
            explanations = [Explanation(text, Certainty.FITTED) for text in self.causes]
            digest, count = run_digest(self.results), len(self.results)
            writer.write(Closing(digest, self.verdict, [], count, 1.0, explanations=explanations))
        writer.close()
        return path

    @property
    def verdict(self) -> str:
        verdicts = {result.verdict for result in self.results}
        return next((each for each in ("violated", "inconclusive") if each in verdicts), "consistent")


def layers_of(seed: int) -> list[AttentionLayer]:
    """Return layers, the first three the same for all seeds."""
    return [*ANCHORS, *(AttentionLayer(width=9, seq_len=2 + number + 10 * seed) for number in range(5))]


def sheet(seed: int, layers: Sequence[AttentionLayer] = ()) -> Sheet:
    """Return a clean run, consistent with any other at any seed."""
    results = [
        a_result(check, layer, (0.137 * seed + 0.618034 * number) % 1.0)
        for number, layer in enumerate(layers or layers_of(seed))
        for check in CHECKS
    ]
    planned = [PlannedResult(result.id, result.item, result.check) for result in results]
    head = {"schema": SCHEMA, "versions": {"attncheck": "0.1.0"}, "seed": seed, "profile": "smoke"}
    return Sheet(results, planned, {**head, "false_alarm": 1e-6, "level": 1e-3, "subject": "my:simulator"})


def a_result(check: str, layer: AttentionLayer, uniform: float) -> Result:
    name = check.partition(".")[0]
    key = layer.key
    effect = 1.0 + 0.02 * (uniform - 0.5)
    return Result(
        id=f"{check}@{key}",
        item=f"{name}@{key}",
        property=name,
        check=check,
        claim=name,
        kind="exact",
        case=layer.to_dict(),
        verdict="consistent",
        reason="",
        size=4000,
        affordable=6000,
        level=1e-3,
        power=0.9,
        p_values=[uniform],
        effects=[effect],
        effect=effect,
        low=effect - 0.026,
        high=effect + 0.026,
        null_effect=1.0,
        mde=1.05,
        alternative=1.1,
        combined=1.0,
        continuous=True,
        text=f"ratio {effect:.4g}",
        hint="",
        seconds=0.5,
    )


@pytest.fixture
def make_sheet() -> Callable[..., Sheet]:
    return sheet


@pytest.fixture
def gated(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Return the gate as a command: exit code and output, with one-line errors on standard error only."""

    def call(run: Path, base: Path, *options: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["gate", str(run), "--baseline", str(base), *options])
        said = capsys.readouterr()
        assert bool(said.err) == (code == 2)
        assert said.err.count("\n") == (code == 2)
        return code, said.out + said.err

    return call
