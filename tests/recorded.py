"""Records of runs: of any lines, written by hand, and of real runs on small layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from attncheck._lib.streams import digest
from attncheck._lib.text import inert
from attncheck._lib.workers import InProcess
from attncheck.layers.attention import AttentionLayer
from attncheck.records.schema import SCHEMA, Closing, Manifest, PlannedResult, Result, read, run_digest
from attncheck.records.writer import Writer
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run

RIGHT, WRONG = "attncheck.subject:collapsed", "attncheck.faults:tied_query_key"
SMALL = [AttentionLayer(width=8, seq_len=3, num_heads=2), AttentionLayer(width=4, seq_len=2, num_heads=1)]


class Recorded(NamedTuple):
    """Records of a right, a wrong and an incomplete run."""

    right: Path
    wrong: Path
    incomplete: Path


def examine(
    record: Path,
    subject: Any = RIGHT,
    names: Iterable[str] = ("scores",),
    layers: Sequence[AttentionLayer] = SMALL,
    *,
    first: int | None = None,
    causes: bool = False,
    **options: Any,
) -> RunReport:
    """Examine properties on layers, or only the first items, and return the report of the finished run."""
    run = Run.of(RunOptions(**{"subject": subject, "profile": "smoke", "record": record, **options}))
    items = [item for name in names for item in run.items_on(name, layers)]
    report = RunReport(run.planning(item.id for item in items))
    report.take(report.run.examine(items[:first]))
    if first is None:
        report.take(report.pool(InProcess())[0])
    if causes:
        report.diagnose(InProcess())
    report.finish()
    return report


def make_result(check: str = "scores.scale", layer: Any = SMALL[0], **changes: Any) -> Result:
    """Return the line of a check that is consistent, but for the changes."""
    case = layer.to_dict() if isinstance(layer, AttentionLayer) else layer
    name, key = check.partition(".")[0], digest(case)
    effect = changes.get("effect", 1.001) or 1.0
    low, high = effect - 0.02, effect + 0.02
    usual: dict[str, Any] = {
        **{"id": f"{check}@{key}", "item": f"{name}@{key}", "property": name, "check": check, "claim": name},
        **{"kind": "exact", "case": case, "verdict": "consistent", "reason": "", "size": 1000, "affordable": 60_000},
        **{"level": 5e-4, "power": 0.99, "p_values": [0.4], "effects": [effect], "effect": effect},
        **{"low": low, "high": high, "null_effect": 1.0, "mde": 1.03, "alternative": 1.0404, "combined": 1.0},
        **{"continuous": True, "hint": "the standard deviation of W_Q differs", "seconds": 0.5},
        "text": f"variance, observed over declared: {effect:.4g} [{low:.4g}, {high:.4g}], expected 1",
    }
    return Result(**(usual | changes | {"plot": msgspec.to_builtins(changes.get("plot"))}))


def make_manifest(planned: Iterable[PlannedResult | Result] = (), **changes: Any) -> Manifest:
    """Return the first line of a record that plans results."""
    plan = [PlannedResult(line.id, line.item, line.check) for line in planned]
    usual: dict[str, Any] = {
        **{"schema": SCHEMA, "versions": {"attncheck": "0.1.0", "numpy": "2.1.0"}, "seed": 7, "profile": "smoke"},
        **{"false_alarm": 1e-6, "level": 5e-4, "subject": "mine:simulate", "planned": plan},
        **{"machine": {"python": "3.11.7"}, "started": "2026-01-02T03:04:05+00:00"},
    }
    return Manifest(**(usual | changes))


def make_closing(results: Sequence[Result], **changes: Any) -> Closing:
    """Return the last line of a record of results."""
    verdicts = {result.verdict for result in results}
    verdict = next((bad for bad in ("violated", "inconclusive") if bad in verdicts), "consistent")
    usual: dict[str, Any] = {"verdict": verdict, "reasons": [], "seconds": 12.5}
    usual["digest"] = run_digest([msgspec.structs.replace(result, id=inert(result.id)) for result in results])
    return Closing(**(usual | changes))


def write_lines(path: Path, lines: Iterable[Manifest | Result | Closing]) -> Path:
    """Write lines as a run does."""
    writer = Writer(path)
    for line in lines:
        writer.write(line)
    writer.close()
    return path


def write_record(
    path: Path, results: Iterable[Result], *, close: bool = True, closing: Any = None, **changes: Any
) -> Path:
    """Write a record of results; plans exactly these by default."""
    results = list(results)
    ending = [make_closing(results, **(closing or {}))] if close else []
    return write_lines(path, [make_manifest(**{"planned": results, **changes}), *results, *ending])


def closing_of(record: Path) -> Closing:
    """Return the last line of a finished record."""
    *_, closing = read(record)
    assert isinstance(closing, Closing)
    return closing


def results_in(record: Path) -> list[Result]:
    """Return the results of a record, pools included."""
    return [line for line in read(record) if isinstance(line, Result)]
