"""Statements of the theory: their cases, tests and looks."""

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

#: Level of one look at a statement, and maximum number of statements. A true statement is violated with probability
#: 2 · LEVEL³, any of them with 1e-6. Constant, so that a statement has the same looks when run alone.
LEVEL, MOST = 1e-3, 500
# Names of a test's case argument.
_ARGUMENTS = ("layer", "case", "stack")


class Statement:
    """A statement of the theory on one case, named ``group.statement@digest of the case``.

    Its test asserts computed facts and calls the statement with numbers. Estimates from random draws go to
    `equals`, `order` or `p_value`, with wrong neighbouring statements to reject; see `examine`.
    """

    def __init__(self, id: str, case: str) -> None:
        self.id, self.case = id, case
        self.numbers: dict[str, float] = {}
        self.seconds: float | None = None  # duration in the interrupted run if its result is reused
        self.inconclusive = ""
        self._p_values: dict[str, float] = {}
        self._of_neighbours: dict[str, float] = {}

    def __call__(self, **numbers: float) -> None:
        """Record numbers by name, to show them with the result of the statement."""
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
        """Test that a mean, estimated with a standard error, has its expected value.

        Also check that the wrong values in `neighbours` are rejected.

        `allowance` is the deviation allowed from any of these values, and `df` the degrees of freedom of the error,
        infinite if the error is known.
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
        """Test the exponent of a power law n^expected, and check that the exponents in `neighbours` are rejected.

        `values`, with standard errors `errors`, are independent estimates at two `widths`. `allowance` bounds the
        effect of higher orders on the exponent.
        """
        slope = order_between(values, widths)
        if math.isfinite(slope):
            self(**{name: slope})
        p_value = functools.partial(order_p_value, values, errors, widths, allowance=allowance, df=df)
        self.p_value(name, p_value(expected))
        for other in neighbours:
            self.rejects(f"{name} {other:.3g}", p_value(other))

    def exceeds(self, name: str, estimate: float, error: float, bound: float, *, df: float = math.inf) -> None:
        """Test that a mean, with its standard error, significantly exceeds a bound."""
        self(**{name: estimate})
        at_bound = mean_p_value(estimate, error, bound, df=df)
        self.p_value(name, 1.0 if estimate > bound else at_bound)
        self.rejects(f"{name} {bound:.3g}", at_bound if estimate > bound else 1.0)

    def p_value(self, name: str, p_value: float) -> None:
        """Record the p-value of the statement."""
        assert name not in self._p_values, f"{name} is stated twice"
        self._p_values[name] = _chance(name, p_value)

    def rejects(self, name: str, p_value: float) -> None:
        """Record the p-value of a wrong alternative, which must be small."""
        self._of_neighbours[name] = max(_chance(name, p_value), self._of_neighbours.get(name, 0.0))

    def examine(
        self, test: Callable[..., None], arguments: Mapping[str, Any], run_seed: int, level: float = LEVEL
    ) -> None:
        """Run the test, and repeat it with other random numbers while a p-value is suspicious.

        The looks follow `attncheck.evidence.looks.examine`, all of one size, at `level` over the number of p-values.
        `inconclusive` lists neighbours not rejected at that level. The recorded p-values are Bonferroni-corrected:
        the smallest of the first look, and the largest of a neighbour at the last. Raises AssertionError if the
        statement is violated.
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
        """Return the result for the record; `failure` is the error message of a failed test."""
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
    """Return the cases of a statement, as arguments of its test."""
    if strategy is None:
        return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]
    argument = argument_of(names)
    return [{argument: each} for each in run.drawn(strategy, key)]


def argument_of(names: Sequence[str]) -> str:
    """Return the name of a test's argument for a layer, program or stack; empty if it has none."""
    return next((name for name in _ARGUMENTS if name in names), "")


def named(key: str, cases: Sequence[Mapping[str, Any]]) -> list[Statement]:
    """Return the statement of each case."""
    ids = [f"{key}@{digest({name: getattr(value, 'key', value) for name, value in case.items()})}" for case in cases]
    words = [", ".join(_worded(name, value) for name, value in case.items()) for case in cases]
    return [Statement(id, told) for id, told in zip(ids, words, strict=True)]


def _seed(run_seed: int, look: int) -> int:
    """Return the seed of a look, derived from the seed of the run."""
    return run_seed if look == 1 else int(seed_sequence(run_seed, "statements", look=look).generate_state(1)[0])


def _chance(name: str, p_value: float) -> float:
    assert 0.0 <= p_value <= 1.0, f"the p-value of {name} is {p_value}"
    return float(p_value)


def _listed(trail: Trail) -> str:
    return ", ".join(f"{p_value:.2g}" for p_value in trail.p_values)


def _worded(name: str, value: Any) -> str:
    return str(value.describe()) if hasattr(value, "describe") else f"{name}={value}"
