"""Merging of several records into one run, whose parts ran on different machines or one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attncheck._lib.errors import InputError
from attncheck._lib.names import grouped
from attncheck.evidence.looks import Evaluator
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.looks.pools import examine_pools, pools_of
from attncheck.looks.result import violated
from attncheck.records.run_record import RunRecord, read_records
from attncheck.records.schema import Closing, Manifest, Result, case_key, line_digest, run_digest

# Fields of a manifest that must be equal in all parts of a run.
_SETTINGS = ("subject", "source", "seed", "profile", "draws", "false_alarm", "versions")


def paths_of(run: Path | Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths of a run's records as a tuple.

    Examples
    --------
    >>> [str(path) for path in paths_of(Path("run.jsonl"))]
    ['run.jsonl']
    """
    return (Path(run),) if isinstance(run, str | Path) else tuple(map(Path, run))


def read_run(run: Path | Iterable[Path], field: str = "record") -> RunRecord:
    """Read a run from one or several files, which may hold several records each.

    Pools of several parts are computed again from the first looks at all cases; a suspicious pool that no part has
    examined is inconclusive, because further looks need the subject.

    Raises
    ------
    InputError
        If a file, called `field` in the message, is invalid or was edited, or if records belong to different runs.
    """
    parts = [part for path in paths_of(run) for part in read_records(path, field)]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: Sequence[RunRecord]) -> RunRecord:
    manifest = _manifest_of(parts)
    every = {(line.id, line_digest(line)): line for part in parts for line in part.results}
    results = sorted(every.values(), key=lambda line: line.id)
    pools = _pools_of(results, [pool for part in parts for pool in part.pools], manifest.level)
    closings = [part.closing for part in parts if part.closing]
    wrong = [line for line in closings if line.verdict == "violated"]
    closing = Closing(
        digest=run_digest([*results, *pools]),
        # If a part ended violated, so does the run. Otherwise its conclusion follows from the results.
        verdict="violated" if wrong else "consistent",
        reasons=list(dict.fromkeys(reason for line in wrong for reason in line.reasons)),
        seconds=sum(line.seconds for line in closings),
        explanations=next((line.explanations for line in closings if line.explanations), []),
        failed=[text for line in closings for text in line.failed],
    )
    return RunRecord(
        parts[0].path,
        manifest,
        tuple(results),
        tuple(pools),
        closing if len(closings) == len(parts) else None,
        tuple(parts),
    )


def _manifest_of(parts: Sequence[RunRecord]) -> Manifest:
    """Return the manifest of a run, with the plans of all its parts; raise `InputError` if their settings differ."""
    first = parts[0]
    for part in parts:
        for name in _SETTINGS:
            ours, theirs = getattr(first.manifest, name), getattr(part.manifest, name)
            if ours != theirs:
                problem = f"is {theirs} in {part.path} and {ours} in {first.path}; pass records of one run"
                raise InputError(f"{name}: {problem}")
    return msgspec.structs.replace(
        first.manifest,
        planned=list(dict.fromkeys(result for part in parts for result in part.manifest.planned)),
        fixed=sorted({key for part in parts for key in part.manifest.fixed}),
        checks=list(dict.fromkeys(name for part in parts for name in part.manifest.checks)),
        min_examined=max((part.manifest.min_examined for part in parts if part.manifest.min_examined), default=None),
    )


def _pools_of(results: Sequence[Result], examined: Iterable[Result], level: float) -> list[Result]:
    """Pool results of all parts.

    The result of a pool in a part takes precedence if it has the same cases or is violated.
    """
    by_id = grouped(examined, lambda pool: pool.id)
    bad = [case_key(result) for result in violated(results)]
    pools, _ = examine_pools(pools_of(results), bad, _none_later, level, _first_look)
    return sorted((_examined(pool, by_id.get(pool.id, ())) for pool in pools), key=lambda pool: pool.id)


def _examined(pool: Result, of_parts: Sequence[Result]) -> Result:
    """Return the result of a pool that one of the parts has examined, or else `pool` itself.

    Among the results of the parts, `of_parts`, a violated one takes precedence over one with the same cases as `pool`.
    """
    violations = [candidate for candidate in of_parts if candidate.verdict == Verdict.VIOLATED]
    return next(iter([*violations, *(candidate for candidate in of_parts if candidate.case == pool.case)]), pool)


def _none_later(*look: Any) -> dict[str, Any]:
    raise AssertionError("a record has no further looks")


def _first_look(evaluate: Evaluator, names: Sequence[str], level: float) -> dict[str, Trail]:
    """Return trails that consist of a first look.

    A suspicious look makes the verdict inconclusive, because no further look follows.
    """
    first = evaluate(1, 1, tuple(names)) if names else {}
    suspicious = {name: outcome.p_value < level for name, outcome in first.items()}
    verdict = {True: Verdict.INCONCLUSIVE, False: Verdict.CONSISTENT}
    return {name: Trail((outcome,), verdict[suspicious[name]], level) for name, outcome in first.items()}
