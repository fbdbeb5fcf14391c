"""Several records read as one run: parts of it, made on other machines or one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attncheck._lib.errors import InputError
from attncheck._lib.groups import grouped
from attncheck.evidence.looks import Evaluator
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.looks.pools import examine_pools, pools_of
from attncheck.looks.result import violated
from attncheck.records.run_record import RunRecord, read_records
from attncheck.records.schema import Closing, Manifest, Result, case_key, line_digest, run_digest

# Fields of a manifest in which the parts of a run agree.
_SETTINGS = ("subject", "source", "seed", "profile", "draws", "false_alarm", "versions")


def paths_of(run: Path | Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths of a run's records as a tuple.

    Examples
    --------
    >>> [str(path) for path in paths_of(Path("run.jsonl"))]
    ['run.jsonl']
    """
    return (Path(run),) if isinstance(run, str | Path) else tuple(map(Path, run))


def read_run(run: Path | Iterable[Path], what: str = "record") -> RunRecord:
    """Read a run from one or several files, which may hold several records each.

    Pools of several parts are computed again from the first looks at all cases; a suspicious one that no part has
    examined is inconclusive, because further looks need the subject.

    Raises
    ------
    InputError
        If a file is invalid or was edited, which is called `what`, or if the records are of different runs.
    """
    parts = [part for path in paths_of(run) for part in read_records(path, what)]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: Sequence[RunRecord]) -> RunRecord:
    manifest = _manifest_of(parts)
    every = {(each.id, line_digest(each)): each for part in parts for each in part.results}
    results = sorted(every.values(), key=lambda each: each.id)
    pools = _pools_of(results, [pool for part in parts for pool in part.pools], manifest.level)
    closings = [part.closing for part in parts if part.closing]
    wrong = [each for each in closings if each.verdict == "violated"]
    closing = Closing(
        digest=run_digest([*results, *pools]),
        # What a part found violated stays so; all else is concluded from the results.
        verdict="violated" if wrong else "consistent",
        reasons=list(dict.fromkeys(reason for each in wrong for reason in each.reasons)),
        reported=len(results) + len(pools),
        seconds=sum(each.seconds for each in closings),
        explanations=next((each.explanations for each in closings if each.explanations), []),
        failed=[text for each in closings for text in each.failed],
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
    """Return the manifest of a run with the plans of its parts; raise `InputError` if their settings differ."""
    first = parts[0]
    for part in parts:
        part.check_digest()
        for name in _SETTINGS:
            ours, theirs = getattr(first.manifest, name), getattr(part.manifest, name)
            if ours != theirs:
                problem = f"is {theirs} in {part.path} and {ours} in {first.path}; pass records of one run"
                raise InputError(f"{name}: {problem}")
    return msgspec.structs.replace(
        first.manifest,
        planned=list(dict.fromkeys(each for part in parts for each in part.manifest.planned)),
        fixed=sorted({key for part in parts for key in part.manifest.fixed}),
        checks=list(dict.fromkeys(name for part in parts for name in part.manifest.checks)),
        min_examined=max((part.manifest.min_examined for part in parts if part.manifest.min_examined), default=None),
    )


def _pools_of(results: Sequence[Result], examined: Iterable[Result], level: float) -> list[Result]:
    """Return the pools of results; those that a part has examined on the same cases, or found violated, are its own."""
    by_id = grouped(examined, lambda pool: pool.id)
    bad = [case_key(result) for result in violated(results)]
    pools, _ = examine_pools(pools_of(results), bad, _none_later, level, _first_look)
    found = [_examined(pool, by_id.get(pool.id, ())) for pool in pools]
    ids = {pool.id for pool in found}
    lost = [
        own for id, of_parts in by_id.items() if id not in ids for own in of_parts if own.verdict == Verdict.VIOLATED
    ]
    return sorted([*found, *lost], key=lambda pool: pool.id)


def _examined(pool: Result, of_parts: Sequence[Result]) -> Result:
    """Return a pool as a part has examined it: violated, or on the same cases; else the pool itself."""
    violations = [each for each in of_parts if each.verdict == Verdict.VIOLATED]
    return next(iter([*violations, *(each for each in of_parts if each.case == pool.case)]), pool)


def _none_later(*look: Any) -> dict[str, Any]:
    raise AssertionError("a record has no further looks")


def _first_look(evaluate: Evaluator, names: Sequence[str], level: float) -> dict[str, Trail]:
    """Return the trails of first looks alone: a suspicious one decides nothing."""
    first = evaluate(1, 1, tuple(names)) if names else {}
    suspicious = {name: outcome.p_value < level for name, outcome in first.items()}
    verdict = {True: Verdict.INCONCLUSIVE, False: Verdict.CONSISTENT}
    return {name: Trail((outcome,), verdict[suspicious[name]], level) for name, outcome in first.items()}
