from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncheck.diagnosis.messages import explain
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.plan import Cost
from attncheck.records.run_record import record_of
from attncheck.records.schema import Result
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.runs.view import RunView
from tests.recorded import make_closing

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=2)
GROUPED = AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, mask="causal")
COST = Cost(3_000, 1e-3, 0.9)


def made(record: Path | None = None, **options: Any) -> Run:
    return Run.of(RunOptions(**{"profile": "smoke", "record": record, **options}))


def planned(*names: str, layer: AttentionLayer = LAYER, **options: Any) -> Run:
    run = made(**options)
    return run.planning(item.id for name in names for item in run.items_on(name, [layer]))


@functools.cache
def examined(run: Run, name: str, layer: AttentionLayer = LAYER) -> tuple[tuple[Result, ...], str]:
    results = run.examine(run.items_on(name, [layer]))
    return tuple(results), explain(results, run.record, subject=run.subject.name)


def results_of(run: Run, name: str, layer: AttentionLayer = LAYER) -> list[Result]:
    return list(examined(run, name, layer)[0])


def view_of(run: Run, results: Sequence[Result]) -> RunView:
    """Return the view of results without causes."""
    conclusion = run.conclude(results)
    closing = make_closing(results, verdict=conclusion.verdict, reasons=list(conclusion.reasons))
    return RunView(record_of(run.record, [run.manifest(), *results, closing]))


@pytest.fixture(autouse=True)
def _streams_are_left_alone() -> Iterator[None]:
    """Assert that no examination uses a global generator."""
    before = np.random.get_state(legacy=False)  # noqa: NPY002  # the global one is what is looked at
    yield
    after = np.random.get_state(legacy=False)  # noqa: NPY002  # as before
    np.testing.assert_equal(before, after)
