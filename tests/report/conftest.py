"""Hand-made records: every verdict, every plot, any size."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from bs4 import BeautifulSoup

from attncheck.evidence.plot_data import cdf_of_two, cdf_of_uniform
from attncheck.layers.attention import AttentionLayer
from attncheck.records.schema import PlannedResult, Result
from attncheck.report.page import render_report
from tests.recorded import make_result, write_record

LAYERS = (
    AttentionLayer(width=16, seq_len=4, num_heads=2),
    AttentionLayer(width=8, seq_len=3, num_heads=1, mask="causal"),
    AttentionLayer(width=2, seq_len=5, num_heads=1, mask="causal"),
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&{{7*7}}$\\frac$\x00\x1b[31m"


def violated_result(check: str = "scores.scale", layer: AttentionLayer = LAYERS[1], **changes: Any) -> Result:
    usual: dict[str, Any] = {
        **{"verdict": "violated", "p_values": [1e-9, 1e-8, 1e-9], "effects": [0.25, 0.26, 0.25], "effect": 0.25},
        **{"combined": 1e-24, "diagnosis": ["score variance 0.25 [0.24, 0.26], declared 1"]},
    }
    return make_result(check, layer, **(usual | changes))


def idle_result(check: str = "conditional.law", **changes: Any) -> Result:
    usual: dict[str, Any] = {
        **{"verdict": "not examined", "reason": "the subject does not expose value_gram", "size": 0},
        **dict.fromkeys(("effect", "low", "high", "null_effect", "mde", "alternative")),
        **{"p_values": [], "effects": [], "continuous": False, "text": "", "hint": ""},
    }
    return make_result(check, LAYERS[0], **(usual | changes))


def plotted_results() -> list[Result]:
    rng = np.random.default_rng(0)
    normals = np.sort(rng.standard_normal((500, 3))[:, 0])
    distance: dict[str, Any] = {"null_effect": 0.0, "alternative": 0.05, "effect": 0.02, "layer": LAYERS[0]}
    limit = {**distance, "kind": "limit", "null_effect": 0.03}
    return [
        make_result("outputs.limit", claim="limit", **limit),
        make_result("scores.heads", LAYERS[0], claim="heads", null_effect=0.0, effect=0.01, mde=0.05),
        make_result("scores.law", plot=cdf_of_uniform(np.sort(rng.random(500)), 0.0), **distance),
        make_result("scores.size", LAYERS[0], plot=cdf_of_two(normals, np.arange(-2, 2, 0.01), np.zeros_like)),
        make_result("scores.spread", LAYERS[0]),
        make_result("conditional.scale", LAYERS[0]),
        make_result("theorem1.order", **limit),
    ]


@pytest.fixture(scope="session")
def hostile_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layer = LAYERS[0].to_dict() | {"mask": HOSTILE, HOSTILE: HOSTILE, "width": HOSTILE}
    texts: dict[str, Any] = dict.fromkeys(("claim", "id", "text", "hint", "item", "property"), HOSTILE)
    bad = msgspec.structs.replace(violated_result(HOSTILE, diagnosis=[HOSTILE], **texts), case=layer)
    results = [bad, idle_result(HOSTILE * 40, claim=HOSTILE, reason=HOSTILE), *plotted_results()]
    named = {HOSTILE: HOSTILE}
    missing = [PlannedResult(HOSTILE + "missing", HOSTILE, HOSTILE)]
    path = tmp_path_factory.mktemp("records") / "hostile.jsonl"
    return write_record(path, results, subject=HOSTILE, versions=named, machine=named, profile=HOSTILE, planned=missing)


@pytest.fixture(scope="session")
def clean_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [*(make_result(layer=layer) for layer in LAYERS), *plotted_results(), idle_result()]
    return write_record(tmp_path_factory.mktemp("records") / "clean.jsonl", results)


@pytest.fixture(scope="session")
def faulty_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = [make_result(layer=layer) for layer in (LAYERS[0], LAYERS[0].replace(width=32))]
    results += [idle_result(), *(violated_result(layer=layer) for layer in LAYERS[1:])]
    results += [make_result("draws.signs", layer) for layer in LAYERS]
    return write_record(tmp_path_factory.mktemp("records") / "faulty.jsonl", [*results, *plotted_results()])


# Pages of records, parsed -------------------------------------------------------------------------


@functools.cache
def render(record: Path) -> BeautifulSoup:
    return BeautifulSoup(render_report(record, out=record.with_suffix(".html")).read_bytes(), "html.parser")


def text_of(page: BeautifulSoup, section: str = "") -> str:
    """Return the text of a section, or of the page by default; "" if there is no such section."""
    part = page.find("section", id=section) if section else page
    return " ".join(part.get_text(" ").split()) if part else ""
