"""Hand-made records: every verdict, every plot, any size."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from attncheck._lib.streams import digest
from attncheck.evidence.plot_data import cdf_of_two, cdf_of_uniform
from attncheck.layers.attention import AttentionLayer
from attncheck.records.schema import SCHEMA, Closing, Manifest, PlannedResult, Result, run_digest
from attncheck.records.writer import Writer

LAYERS = (
    AttentionLayer(width=16, seq_len=4, num_heads=2),
    AttentionLayer(width=8, seq_len=3, num_heads=1, mask="causal"),
    AttentionLayer(width=2, seq_len=5, num_heads=1, mask="causal"),
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&{{7*7}}$\\frac$\x00\x1b[31m"


def make_result(check: str = "scores.scale", claim: str = "scores", layer: Any = LAYERS[0], **changes: Any) -> Result:
    fields = layer.to_dict() if isinstance(layer, AttentionLayer) else layer
    effect = changes.get("effect", 1.001) or 1.0
    low, high = effect - 0.02, effect + 0.02
    usual: dict[str, Any] = {
        "id": f"{check}@{digest(fields)}",
        "item": f"{check.partition('.')[0]}@{digest(fields)}",
        "property": check.partition(".")[0],
        "check": check,
        "claim": claim,
        "kind": "exact",
        "case": fields,
        "verdict": "consistent",
        "reason": "",
        "size": 1000,
        "affordable": 60_000,
        "level": 5e-4,
        "power": 0.99,
        "p_values": [0.4],
        "effects": [effect],
        "effect": effect,
        "low": low,
        "high": high,
        "null_effect": 1.0,
        "mde": 1.03,
        "alternative": 1.0404,
        "combined": 1.0,
        "continuous": True,
        "text": f"variance, observed over declared: {effect:.4g} [{low:.4g}, {high:.4g}], expected 1",
        "hint": "the standard deviation of W_Q differs",
        "seconds": 0.5,
    }
    return Result(**(usual | changes | {"plot": msgspec.to_builtins(changes.get("plot"))}))


def violated_result(check: str = "scores.scale", layer: AttentionLayer = LAYERS[1], **changes: Any) -> Result:
    usual: dict[str, Any] = {
        "verdict": "violated",
        "p_values": [1e-9, 1e-8, 1e-9],
        "effects": [0.25, 0.26, 0.25],
        "effect": 0.25,
        "combined": 1e-24,
        "diagnosis": ["score variance 0.25 [0.24, 0.26], declared 1"],
    }
    return make_result(check, layer=layer, **(usual | changes))


def idle_result(check: str = "conditional.law", claim: str = "conditional", **changes: Any) -> Result:
    usual: dict[str, Any] = {
        "verdict": "not examined",
        "reason": "the subject does not expose value_gram",
        "p_values": [],
        "effects": [],
        "effect": None,
        "low": None,
        "high": None,
        "null_effect": None,
        "mde": None,
        "alternative": None,
        "continuous": False,
        "text": "",
        "hint": "",
        "size": 0,
    }
    return make_result(check, claim, **(usual | changes))


def plotted_results() -> list[Result]:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((500, 3))
    distance: dict[str, Any] = {"null_effect": 0.0, "alternative": 0.05, "effect": 0.02}
    return [
        make_result("outputs.limit", "limit", **(distance | {"kind": "limit", "null_effect": 0.03})),
        make_result("scores.heads", "heads", null_effect=0.0, effect=0.01, mde=0.05),
        make_result("scores.law", plot=cdf_of_uniform(np.sort(rng.random(500)), 0.0), **distance),
        make_result("scores.size", plot=cdf_of_two(np.sort(values[:, 0]), np.arange(-2, 2, 0.01), np.zeros_like)),
        make_result("scores.spread"),
        make_result("conditional.scale", "conditional"),
        make_result("theorem1.order", "theorem1", **(distance | {"kind": "limit", "null_effect": 0.03})),
    ]


def write_record(path: Path, results: Iterable[Result], *, close: bool = True, **changes: Any) -> Path:
    """Write a record of results; plans exactly these by default."""
    results = list(results)
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "versions": {"attncheck": "0.1.0", "numpy": "2.1.0"},
        "seed": 7,
        "profile": "smoke",
        "false_alarm": 1e-6,
        "level": 5e-4,
        "subject": "mine:simulate",
        "planned": [PlannedResult(result.id, result.item, result.check) for result in results],
        "machine": {"python": "3.11.7"},
        "started": "2026-01-02T03:04:05+00:00",
    }
    closing = changes.pop("closing", {})
    writer = Writer(path)
    writer.write(Manifest(**(manifest | changes)))
    for result in results:
        writer.write(result)
    if close:
        verdict = "violated" if any(result.verdict == "violated" for result in results) else "consistent"
        ending: dict[str, Any] = {"verdict": verdict, "reasons": [], "reported": len(results), "seconds": 12.5}
        writer.write(Closing(digest=run_digest(results), **(ending | closing)))
    writer.close()
    return path


@pytest.fixture(scope="session")
def hostile_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "hostile.jsonl"
    layer = LAYERS[0].to_dict() | {"mask": HOSTILE, HOSTILE: HOSTILE, "width": HOSTILE}
    texts: dict[str, Any] = {"text": HOSTILE, "hint": HOSTILE, "item": HOSTILE, "property": HOSTILE}
    bad = violated_result(HOSTILE, claim=HOSTILE, id=HOSTILE, diagnosis=[HOSTILE], **texts)
    results = [
        msgspec.structs.replace(bad, case=layer),
        idle_result(HOSTILE * 40, HOSTILE, reason=HOSTILE),
        *plotted_results(),
    ]
    named = {HOSTILE: HOSTILE}
    owed = [PlannedResult(HOSTILE + "missing", HOSTILE, HOSTILE)]
    return write_record(path, results, subject=HOSTILE, versions=named, machine=named, profile=HOSTILE, planned=owed)


@pytest.fixture(scope="session")
def clean_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [make_result(layer=layer) for layer in LAYERS] + plotted_results() + [idle_result()]
    return write_record(tmp_path_factory.mktemp("records") / "clean.jsonl", results)


@pytest.fixture(scope="session")
def faulty_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [make_result(), make_result(layer=LAYERS[0].replace(width=32)), idle_result()]
    results += [violated_result(layer=layer) for layer in LAYERS[1:]]
    results += [make_result("draws.signs", "draws", layer=layer) for layer in LAYERS]
    results += plotted_results()
    return write_record(tmp_path_factory.mktemp("records") / "faulty.jsonl", results)


def long_record(path: Path, lines: int) -> Path:
    template = msgspec.to_builtins(make_result())
    template["type"] = "result"
    names = [f"scores.scale@{number:012x}" for number in range(lines)]
    planned = [PlannedResult(name, f"scores@{number // 8:012x}", "scores.scale") for number, name in enumerate(names)]
    write_record(path, [], close=False, planned=planned)
    before, _, after = msgspec.json.encode(template).partition(template["id"].encode())
    middle, _, after = after.partition(template["item"].encode())
    with open(path, "ab") as file:
        for number, name in enumerate(names):
            file.write(before + name.encode() + middle + planned[number].item.encode() + after + b"\n")
    return path
