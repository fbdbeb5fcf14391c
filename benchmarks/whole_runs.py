"""Whole runs for many seeds, fixed and random cases included."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from attncheck._lib.executors import ExecutorSpec, TaskExecutor, here, in_order
from attncheck.checks.registry import EVERY_PROPERTY
from attncheck.evidence.verdicts import Verdict
from attncheck.looks.domains import domain_of
from attncheck.records.schema import StatementResult, of_pool, run_digest
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run


@dataclasses.dataclass(frozen=True)
class WholeRun:
    """The outcome of one run.

    ``results``, ``examined`` and ``violated`` are counts; ``looks`` and ``pool_looks`` count single cases and pools
    with one to four looks; ``level`` is that of one look, ``uniformity`` the ledger's p-value.
    """

    seed: int
    verdict: str
    digest: str
    results: int
    examined: int
    violated: int
    looks: tuple[int, int, int, int]
    level: float
    uniformity: float
    pool_looks: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def suspicious(self) -> int:
        """Number of suspicious first looks."""
        return sum(self.looks[1:])

    @property
    def suspicious_pools(self) -> int:
        """Number of pools with a suspicious first look."""
        return sum(self.pool_looks[1:])


@dataclasses.dataclass(frozen=True)
class StatementsRun:
    """The outcome of the theory statements for one seed: counts, and ids by verdict."""

    seed: int
    statements: int
    statistical: int
    violated: tuple[str, ...]
    inconclusive: tuple[str, ...]
    suspicious: tuple[str, ...]
    seconds: float

    @classmethod
    def of(cls, seed: int, lines: Sequence[StatementResult]) -> StatementsRun:
        """Return the outcome from the lines of a record."""
        looked = [line for line in lines if "looks" in line.numbers]
        return cls(
            seed,
            len(lines),
            len(looked),
            tuple(line.id for line in lines if line.verdict == Verdict.VIOLATED),
            tuple(line.id for line in lines if line.verdict == Verdict.INCONCLUSIVE),
            tuple(line.id for line in looked if line.numbers["looks"] > 1),
            sum(line.seconds for line in lines),
        )


def whole_run(seed: int, profile: str, subject: str | None = None, false_alarm: float = 1e-6) -> WholeRun:
    """Test a subject, by default the literal simulator, with the plan and digest of ``pytest properties/``."""
    run = Run.of(RunOptions(subject=subject, seed=seed, profile=profile, false_alarm=false_alarm))
    items = [item for name in EVERY_PROPERTY for item in run.items(name, domain_of(name).strategy(name))]
    run = dataclasses.replace(run.settled([item.id for item in items]), explains=False)
    results = run.examine(items)
    results += run.pool(results, cases={item.case.key: item.case for item in items})[0]
    conclusion = run.conclude(results)
    looks, pool_looks = (
        Counter(len(result.p_values) for result in results if of_pool(result) == pooled) for pooled in (False, True)
    )
    return WholeRun(
        seed,
        conclusion.verdict,
        run_digest(results),
        sum(not of_pool(result) for result in results),
        sum(bool(result.p_values) and not of_pool(result) for result in results),
        sum(result.verdict == Verdict.VIOLATED for result in results),
        (looks[1], looks[2], looks[3], looks[4]),
        run.level,
        1.0 if conclusion.uniformity is None else conclusion.uniformity.p_value,
        (pool_looks[1], pool_looks[2], pool_looks[3], pool_looks[4]),
    )


def whole_runs(
    seeds: Iterable[int],
    profile: str,
    subject: str | None = None,
    spec: ExecutorSpec | None = None,
    false_alarm: float = 1e-6,
) -> Iterator[WholeRun]:
    """Iterate over whole runs in order of seeds; see `whole_run`."""
    one = functools.partial(whole_run, profile=profile, subject=subject, false_alarm=false_alarm)
    with TaskExecutor(spec or here()) as executor:
        yield from in_order(executor, one, list(seeds))
