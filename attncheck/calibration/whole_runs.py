"""Whole runs without a front end: what a subject comes to under many run seeds, anchors and random layers included."""

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
    """What one run came to.

    Attributes
    ----------
    seed : int
    verdict : str
    digest : str
    results, examined, violated : int
        How many results of single configurations there are and have a p-value, and how many results are violated.
    looks : tuple of int
        How many results of single configurations took one, two, three and four looks.
    pool_looks : tuple of int
        The same of pools.
    level : float
        Level of one look.
    uniformity : float
        p-value of the ledger: do first-look p-values, one for each unit, look uniform?
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
        """How many first looks were suspicious."""
        return sum(self.looks[1:])

    @property
    def suspicious_pools(self) -> int:
        """How many pools had a suspicious first look."""
        return sum(self.pool_looks[1:])


@dataclasses.dataclass(frozen=True)
class StatementsRun:
    """What the statements of the theory came to under one run seed.

    Attributes
    ----------
    seed : int
    statements, statistical : int
        How many there are, and of how many looks decided.
    violated, inconclusive, suspicious : tuple of str
        Their ids; the last of those with a suspicious first look.
    seconds : float
        Of all of them together.
    """

    seed: int
    statements: int
    statistical: int
    violated: tuple[str, ...]
    inconclusive: tuple[str, ...]
    suspicious: tuple[str, ...]
    seconds: float

    @classmethod
    def of(cls, seed: int, lines: Sequence[StatementResult]) -> StatementsRun:
        """Return what the lines of a record come to."""
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
    """Hold a subject to all properties on anchors and random layers, as ``pytest properties/`` does.

    Parameters
    ----------
    seed : int
        The run seed.
    profile : str
    subject : str, optional
        ``module:callable``; attncheck's literal simulator by default.
    false_alarm : float
        The budget of the run.

    Returns
    -------
    WholeRun
        With the digest that pytest or ``attncheck run`` comes to.
    """
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
    """Iterate over whole runs in the order of their seeds, each as soon as it is done.

    Parameters
    ----------
    seeds : iterable of int
    profile : str
    subject : str, optional
        ``module:callable``; attncheck's literal simulator by default.
    spec : ExecutorSpec, optional
        Who does the work; this process by default.
    false_alarm : float
        The budget of each run.
    """
    one = functools.partial(whole_run, profile=profile, subject=subject, false_alarm=false_alarm)
    with TaskExecutor(spec or here()) as executor:
        yield from in_order(executor, one, list(seeds))
