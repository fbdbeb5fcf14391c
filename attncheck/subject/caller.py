"""How a subject is called for draws of a case, and held to what it exposed before: layers and programs alike."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck.checks.check import BaseSetting
from attncheck.checks.programs.sample import PROGRAM_FIELDS
from attncheck.checks.sample import EVERY_FIELD
from attncheck.layers.case import Case
from attncheck.simulators.weights import WeightLaws
from attncheck.subject.named import in_one_line

FloatArray = NDArray[np.float64]

# Draws of a probe: enough to tell shapes and whether the generator is used; more where weights of few values make few
# numbers of them, in layers up to a width.
_PROBE, _PROBE_DISCRETE, _FEW_NUMBERS = 4, 64, 8
# Two samples from one generator may differ by this share of their size: a GPU adds in any order.
_WOBBLE = 0.05


class BaseSample(Protocol):
    """What samples of layers and of programs have in common."""

    @property
    def outputs(self) -> FloatArray:
        """What was returned, one row per draw."""
        ...

    @property
    def coordinates(self) -> int:
        """The neurons that were returned."""
        ...

    @property
    def exposed(self) -> frozenset[str]:
        """The names that checks may need."""
        ...

    def need(self, name: str) -> FloatArray:
        """Return an exposed array."""
        ...


_Case = TypeVar("_Case", bound=Case)
_Sample = TypeVar("_Sample", bound=BaseSample)
_Setting = TypeVar("_Setting", bound=BaseSetting)


@dataclasses.dataclass(frozen=True)
class Caller(abc.ABC, Generic[_Case, _Sample, _Setting]):
    """A subject's part in one domain, layers or programs.

    Attributes
    ----------
    name : str
        How reports call the subject.
    weights : WeightLaws
        The laws of its weights.
    """

    name: str
    weights: WeightLaws

    @abc.abstractmethod
    def reason_unsupported(self, case: _Case) -> str:
        """Return why the subject declares that it cannot simulate a case; empty if it can."""

    @abc.abstractmethod
    def draw(self, case: _Case, size: int, rng: np.random.Generator) -> _Sample:
        """Draw a validated sample."""

    @abc.abstractmethod
    def setting(self, case: _Case, sample: _Sample) -> _Setting:
        """Return what is known of a case once the subject was seen to return a sample."""

    def drawer(self, case: _Case, size: int, rng: np.random.Generator) -> Callable[[np.random.Generator], _Sample]:
        """Return what draws again and again, the same but for the generator of the weights."""
        return lambda generator: self.draw(case, size, generator)

    def given(self, case: _Case) -> tuple[str, ...]:
        """Return what may be the same whatever the generator is."""
        return ()

    def called_with(self, case: _Case) -> Any:
        """Return what the subject is handed of a case."""
        return case

    def probe(self, case: _Case, rng: np.random.Generator) -> _Setting:
        """Learn what the subject exposes on a case, and that its generator decides what it draws.

        Raises
        ------
        InputError
            If two generators give the same digits, or one generator does call after call, so that every look would
            be the same look; or if one generator gives different ones, so that no result could be repeated.
        """
        few = not self.weights.gaussian and case.width <= _FEW_NUMBERS
        draw = self.drawer(case, _PROBE_DISCRETE if few else _PROBE, rng)
        one, other = rng.spawn(2)
        first, again, later, second = draw(copy.deepcopy(one)), draw(one), draw(one), draw(other)
        remedy = "draw all random numbers from the generator passed as rng"
        given = self.given(case)
        others = {"two different generators": second, "two calls with one generator, one after the other,": later}
        for which, sample in others.items():
            for name in (*EVERY_FIELD, "vectors", "gram"):
                drawn = name in first.exposed & sample.exposed and name not in given
                if drawn and _same_digits(first.need(name), sample.need(name)):
                    self.refuse(case, f"{which} gave the same {name}; {remedy}")
        if not _alike(first.outputs, again.outputs):
            self.refuse(case, f"one generator gave different outputs when used twice; {remedy}")
        return self.setting(case, first)

    def hold(self, case: _Case, sample: _Sample, exposed: frozenset[str], coordinates: int) -> None:
        """Refuse a sample that does not expose what another call did."""
        if missing := exposed - sample.exposed:
            names = ", ".join(sorted(missing & {*EVERY_FIELD, *PROGRAM_FIELDS}) or sorted(missing))
            self.refuse(case, f"returned {names} in one call and not in another; return the same always")
        if sample.coordinates != coordinates:
            counts = f"{coordinates} neurons in one call and {sample.coordinates} in another"
            self.refuse(case, f"returned {counts}; return the same always")

    def run(self, function: Callable[..., Any], case: _Case, *arguments: Any) -> Any:
        """Call a function of the subject's; whatever it raises becomes an `InputError` in one line."""
        try:
            with np.errstate():  # what it makes of it ends with the call
                return function(self.called_with(case), *arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise InputError(
                f"subject={self.name}: raised {in_one_line(error)} on {case.describe()}; mend the simulator"
            ) from error

    def refuse(self, case: _Case, problem: str) -> NoReturn:
        """Say what is wrong with what the subject does on a case."""
        raise InputError(f"subject={self.name}: on {case.describe()} {problem}")


def _same_digits(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are the same ones: zeros, and a bound that all are clipped at, prove nothing."""
    finite = first[np.isfinite(first) & (first != 0.0)]
    return np.array_equal(first, second) and len(np.unique(np.abs(finite))) > 1


def _alike(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are the same but for the order in which sums were taken."""
    return first.shape == second.shape and bool(np.abs(first - second).max() <= _WOBBLE * np.abs(first).max())
