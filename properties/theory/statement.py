"""Statements of the theory as ordinary tests: what one look at random draws shows, and a decorator."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from attncheck.evidence import Evidence
from attncheck.looks.examples import draw_examples

from .p_values import mean_p_value, order_p_value

_Function = Callable[..., None]
# Number of random layers of a statement.
_LAYERS = 4
# Arguments of a statement that are no parameters of the test.
_GIVEN = ("run_seed", "look")


class Look:
    """p-values of a statement, and of wrong neighbouring statements, from the draws of one look."""

    def __init__(self) -> None:
        self.p_values: dict[str, float] = {}
        self.neighbours: dict[str, float] = {}

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
        p_value = functools.partial(order_p_value, values, errors, widths, allowance=allowance, df=df)
        self.p_value(name, p_value(expected))
        for other in neighbours:
            self.rejects(f"{name} {other:.3g}", p_value(other))

    def exceeds(self, name: str, estimate: float, error: float, bound: float, *, df: float = math.inf) -> None:
        """Test that a mean, with its standard error, significantly exceeds a bound."""
        at_bound = mean_p_value(estimate, error, bound, df=df)
        self.p_value(name, 1.0 if estimate > bound else at_bound)
        self.rejects(f"{name} {bound:.3g}", at_bound if estimate > bound else 1.0)

    def p_value(self, name: str, p_value: float) -> None:
        """Take the p-value of the statement."""
        assert name not in self.p_values, f"{name} is stated twice"
        assert math.isfinite(p_value), f"{name} has no p-value"
        self.p_values[name] = float(p_value)

    def rejects(self, name: str, p_value: float) -> None:
        """Take the p-value of a wrong statement, which must be small."""
        assert math.isfinite(p_value), f"{name} has no p-value"
        self.neighbours[name] = max(float(p_value), self.neighbours.get(name, 0.0))


def statement(strategy: Any = None, **parameters: Sequence[Any]) -> Callable[[_Function], _Function]:
    """Turn a function of ``run_seed`` and ``look`` into a test, repeated by `Evidence` on fresh draws if suspicious.

    Parameters
    ----------
    strategy : hypothesis strategy, optional
        Strategy of the function's further argument, a layer or stack; the random layers are the same in every run.
    **parameters : sequence
        Values of further arguments: all combinations are tested.
    """

    def decorate(function: _Function) -> _Function:
        names = [name for name in inspect.signature(function).parameters if name not in _GIVEN]
        if strategy is None:
            cases = list(itertools.product(*(parameters[name] for name in names)))
        else:
            cases = [(layer,) for layer in draw_examples(strategy, _LAYERS, 0, function.__name__)]

        def test(evidence: Evidence, **arguments: Any) -> None:
            def measure(seed: int) -> tuple[dict[str, float], dict[str, float]]:
                look = Look()
                function(**arguments, run_seed=seed, look=look)
                return look.p_values, look.neighbours

            __tracebackhide__ = True
            evidence.assert_p_values(measure)

        test.__name__, test.__doc__, test.__module__ = function.__name__, function.__doc__, function.__module__
        kinds = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("evidence", *names)]
        vars(test)["__signature__"] = inspect.Signature(kinds)
        if not names:
            return test
        ids = [" ".join(getattr(value, "describe", value.__str__)() for value in case) for case in cases]
        marked: _Function = pytest.mark.parametrize(names, cases, ids=ids)(test)
        return marked

    return decorate
