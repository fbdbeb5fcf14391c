"""Statements of the theory: their cases, what a test of one finds, and the looks that decide on it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attncheck._lib.arithmetic import in_use
from attncheck._lib.streams import digest, seed_sequence
from attncheck.evidence.comparisons import mean_p_value, order_between, order_p_value
from attncheck.evidence.family import Outcome
from attncheck.evidence.looks import examine
from attncheck.evidence.verdicts import Trail, Verdict
from attncheck.records.schema import StatementResult
from attncheck.runs.run import Run

#: Level of one look at a statement, and statements that a run has at most. A statement that holds is violated with a
#: chance of 2 · LEVEL³, one of so many with 1e-6. It depends on nothing, so that a statement alone has the same looks.
LEVEL, MOST = 1e-3, 500
# What a test takes its case by.
_ARGUMENTS = ("layer", "case", "stack")


class Statement:
    """A statement of the theory on one case, and what its test finds: the test calls it.

    A test asserts what is computed. What rests on random numbers it hands to `equals`, `order` or `p_value`, with the
    neighbours that are wrong: see `examine`.

    Parameters
    ----------
    id : str
        ``group.statement@digest of the case``.
    case : str
        In words.
    """

    def __init__(self, id: str, case: str) -> None:
        self.id, self.case = id, case
        self.numbers: dict[str, float] = {}
        self.seconds: float | None = None  # those of an earlier run
        self.inconclusive = ""
        self._p_values: dict[str, float] = {}
        self._of_neighbours: dict[str, float] = {}

    def __call__(self, **numbers: float) -> None:
        """Take numbers that were found, by name."""
        found = {name: float(value) for name, value in numbers.items()}
        unusable = [f"{name} is {value}" for name, value in found.items() if not math.isfinite(value)]
        assert not unusable, ", ".join(unusable)  # a record holds finite numbers only
        self.numbers |= found

    def equals(
        self,
        name: str,
        estimate: float,
        error: float,
        expected: float,
        *,
        neighbours: Sequence[float] = (),
        allowance: float = 0.0,
        df: float = math.inf,
    ) -> None:
        """State that a mean is what is expected, and not what its neighbours are.

        Parameters
        ----------
        name : str
        estimate, error : float
            With its standard error.
        expected : float
        neighbours : sequence of float
            What wrong statements say.
        allowance : float
            How far the mean may be from what is expected, or from what a neighbour says.
        df : float
            Degrees of freedom of the error, infinite where it is known.
        """
        self(**{name: estimate})
        self.p_value(name, mean_p_value(estimate, error, expected, allowance=allowance, df=df))
        for other in neighbours:
            self.rejects(f"{name} {other:.3g}", mean_p_value(estimate, error, other, allowance=allowance, df=df))

    def order(
        self,
        name: str,
        values: Sequence[float],
        errors: Sequence[float],
        widths: Sequence[float],
        expected: float = -1.0,
        *,
        neighbours: Sequence[float] = (-0.5,),
        allowance: float = 0.0,
        df: float = math.inf,
    ) -> None:
        """State the order of a power law between two widths, and which orders it does not have.

        Parameters
        ----------
        name : str
        values, errors, widths : sequence of two floats
            Independent estimates at two widths, with their standard errors.
        expected : float
        neighbours : sequence of float
            Orders that wrong statements have.
        allowance : float
            What higher orders bend the slope by.
        df : float
            Degrees of freedom of each error, infinite where they are known.
        """
        slope = order_between(values, widths)
        if math.isfinite(slope):
            self(**{name: slope})
        p_value = functools.partial(order_p_value, values, errors, widths, allowance=allowance, df=df)
        self.p_value(name, p_value(expected))
        for other in neighbours:
            self.rejects(f"{name} {other:.3g}", p_value(other))

    def exceeds(self, name: str, estimate: float, error: float, bound: float, *, df: float = math.inf) -> None:
        """State that a mean exceeds a bound, and is told apart from it.

        Parameters
        ----------
        name : str
        estimate, error : float
            With its standard error.
        bound : float
        df : float
            Degrees of freedom of the error, infinite where it is known.
        """
        self(**{name: estimate})
        at_bound = mean_p_value(estimate, error, bound, df=df)
        self.p_value(name, 1.0 if estimate > bound else at_bound)
        self.rejects(f"{name} {bound:.3g}", at_bound if estimate > bound else 1.0)

    def p_value(self, name: str, p_value: float) -> None:
        """Take the p-value of what is stated."""
        assert name not in self._p_values, f"{name} is stated twice"
        self._p_values[name] = _chance(name, p_value)

    def rejects(self, name: str, p_value: float) -> None:
        """Take the p-value of what a neighbour says: where it is not small, nothing was told apart."""
        self._of_neighbours[name] = max(_chance(name, p_value), self._of_neighbours.get(name, 0.0))

    def examine(
        self, test: Callable[..., None], arguments: Mapping[str, Any], run_seed: int, level: float = LEVEL
    ) -> None:
        """Call the test, and call it with other random numbers while one of its p-values is suspicious.

        The looks are those of `attncheck.evidence.looks.examine`, at the level over the number of p-values, and all
        of one size. The attribute `inconclusive` says which neighbours were not rejected at that level.
        The numbers have the smallest p-value of the first look and the largest of a neighbour at the last, each times
        the number of p-values.

        Parameters
        ----------
        test : callable
        arguments : mapping of str to object
            By name. Where ``run_seed`` is one, each look has a run seed of its own; that of the first is `run_seed`.
        run_seed : int
        level : float
            Of one look at the statement.

        Raises
        ------
        AssertionError
            If the statement is violated.
        """

        def found(look: int) -> dict[str, Outcome]:
            self._p_values, self._of_neighbours = {}, {}
            test(**{name: _seed(run_seed, look) if name == "run_seed" else each for name, each in arguments.items()})
            return {name: Outcome(p, p, 0.0, 1.0, 1.0, 1) for name, p in self._p_values.items()}

        def evaluate(look: int, factor: int, names: tuple[str, ...]) -> dict[str, Outcome]:
            outcomes = first if look == 1 else found(look)
            return {name: outcomes[name] for name in names}

        first = found(1)
        planned = max(1, len(first))
        trails = examine(evaluate, first, level / planned)
        if self._p_values or self._of_neighbours:
            smallest = min((trail.p_values[0] for trail in trails.values()), default=1.0)
            looks = max((len(trail.p_values) for trail in trails.values()), default=1)
            self(**{"smallest p": min(1.0, planned * smallest), "looks": looks})
        if self._of_neighbours:
            self(**{"largest p of a neighbour": min(1.0, planned * max(self._of_neighbours.values()))})
        violated = [f"{name}: p = {_listed(trail)}" for name, trail in trails.items() if not trail.verdict.passed]
        assert not violated, "; ".join(violated)
        left = [f"{name} (p = {p:.2g})" for name, p in self._of_neighbours.items() if p >= level / planned]
        self.inconclusive = f"not told apart: {', '.join(left)}" if left else ""

    def told(self, failure: str | None, seconds: float) -> StatementResult:
        """Return the line of the record.

        Parameters
        ----------
        failure : str or None
            What the test says where the statement does not hold; None otherwise.
        seconds : float
            That the test took.
        """
        verdict, reason = Verdict.CONSISTENT, ""
        if failure is not None:
            verdict, reason = Verdict.VIOLATED, next(iter(failure.splitlines()), "an assertion failed")
        elif self.inconclusive:
            verdict, reason = Verdict.INCONCLUSIVE, self.inconclusive
        return StatementResult(
            id=self.id,
            key=self.id,
            verdict=str(verdict),
            numbers=self.numbers,
            case=self.case,
            reason=reason,
            seconds=seconds if self.seconds is None else self.seconds,
            arithmetic=in_use(),
        )


def cases_of(
    run: Run, key: str, strategy: Any, parameters: Mapping[str, Sequence[Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the cases of a statement, each the arguments of its test.

    Parameters
    ----------
    run : Run
    key, strategy, parameters
        As for `attncheck.pytest_plugin.theory`.
    names : sequence of str
        The arguments of the test.
    """
    if strategy is None:
        return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]
    argument = argument_of(names)
    return [{argument: each} for each in run.drawn(strategy, key)]


def argument_of(names: Sequence[str]) -> str:
    """Return the argument by which a test takes its layer, program or stack; empty if it takes none."""
    return next((name for name in _ARGUMENTS if name in names), "")


def named(key: str, cases: Sequence[Mapping[str, Any]]) -> list[Statement]:
    """Return the statement of each case."""
    ids = [f"{key}@{digest({name: getattr(value, 'key', value) for name, value in case.items()})}" for case in cases]
    words = [", ".join(_worded(name, value) for name, value in case.items()) for case in cases]
    return [Statement(id, told) for id, told in zip(ids, words, strict=True)]


def _seed(run_seed: int, look: int) -> int:
    """Return the run seed of a look."""
    return run_seed if look == 1 else int(seed_sequence(run_seed, "statements", look=look).generate_state(1)[0])


def _chance(name: str, p_value: float) -> float:
    assert 0.0 <= p_value <= 1.0, f"the p-value of {name} is {p_value}"
    return float(p_value)


def _listed(trail: Trail) -> str:
    return ", ".join(f"{p_value:.2g}" for p_value in trail.p_values)


def _worded(name: str, value: Any) -> str:
    return str(value.describe()) if hasattr(value, "describe") else f"{name}={value}"
