"""Calls of a subject on a layer or program, and checks of what it returns."""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError
from attncheck.checks.check import BaseSetting
from attncheck.checks.programs.sample import PROGRAM_FIELDS, ProgramSample
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.layers.case import Case
from attncheck.simulators.weights import WeightLaws
from attncheck.subject.guard import GuardError, guarded, in_pool
from attncheck.subject.named import in_one_line

# Draws of a probe. A few show the shapes, and whether the generator is used; weights that are not Gaussian need more
# draws up to the width `_FEW_NUMBERS`, where different generators may give equal numbers.
_PROBE, _PROBE_DISCRETE, _FEW_NUMBERS = 4, 64, 8
# Names of arrays that subjects of layers and of programs return.
_FIELDS = (*EVERY_FIELD, "vectors", "gram")
# Relative difference allowed between samples from equal generators, because GPUs sum in any order.
_WOBBLE = 0.05


class StoppedCall(InputError):
    """A call of a subject was stopped and should not be repeated."""


_Case = TypeVar("_Case", bound=Case)
_Sample = TypeVar("_Sample", bound=Sample | ProgramSample)
_Setting = TypeVar("_Setting", bound=BaseSetting[Any])


@dataclasses.dataclass(frozen=True)
class Caller(abc.ABC, Generic[_Case, _Sample, _Setting]):
    """Calls a subject on cases of one domain, layers or programs."""

    name: str
    weights: WeightLaws
    timeout: float

    @abc.abstractmethod
    def reason_unsupported(self, case: _Case) -> str:
        """Return why the subject does not support a case; empty if it does."""

    @abc.abstractmethod
    def draw(self, case: _Case, size: int, rng: np.random.Generator) -> _Sample:
        """Draw a validated sample."""

    @abc.abstractmethod
    def setting(self, case: _Case, sample: _Sample, repeatable: bool) -> _Setting:
        """Return the setting of a case: the arrays and neurons in a sample, and whether draws are repeatable."""

    def drawer(self, case: _Case, size: int, rng: np.random.Generator) -> Callable[[np.random.Generator], _Sample]:
        """Return a function that draws a sample from a generator; inputs from attncheck are the same in all samples."""
        return lambda generator: self.draw(case, size, generator)

    def given(self, case: _Case) -> tuple[str, ...]:
        """Return the names of arrays that may be the same for all generators."""
        return ()

    def called_with(self, case: _Case) -> Any:
        """Return the argument that describes the case to the subject."""
        return case

    def probe(self, case: _Case, rng: np.random.Generator) -> _Setting:
        """Return the setting of a case, after checking that the generator controls the draws; see `Subject.probe`."""
        few = not self.weights.gaussian and case.width <= _FEW_NUMBERS
        draw = self.drawer(case, _PROBE_DISCRETE if few else _PROBE, rng)
        one, second_rng = rng.spawn(2)
        first, again, later, second = draw(copy.deepcopy(one)), draw(one), draw(one), draw(second_rng)
        remedy = "draw all random numbers from the generator passed as rng"
        exempt = self.given(case)
        samples = {"two different generators": second, "two consecutive calls with one generator": later}
        for which, sample in samples.items():
            for name in _FIELDS:
                drawn = name in first.exposed & sample.exposed and name not in exempt
                if drawn and _same_digits(first.need(name), sample.need(name)):
                    self.refuse(case, f"{which} gave the same {name}; {remedy}")
        if not _equal(first.outputs, again.outputs):
            self.refuse(case, f"equal generators gave different outputs; {remedy}")
        same = all(np.array_equal(first.need(name), again.need(name)) for name in first.exposed & {*_FIELDS})
        return self.setting(case, first, same)

    def hold(self, case: _Case, sample: _Sample, exposed: frozenset[str], coordinates: int) -> None:
        """Raise `InputError` if a sample lacks arrays or neurons that another call returned."""
        if missing := exposed - sample.exposed:
            names = ", ".join(sorted(missing & {*EVERY_FIELD, *PROGRAM_FIELDS}) or sorted(missing))
            self.refuse(case, f"returned {names} in one call and not in another; return the same arrays in every call")
        if sample.coordinates != coordinates:
            counts = f"{coordinates} neurons in one call and {sample.coordinates} in another"
            self.refuse(case, f"returned {counts}; return the same number in every call")

    def run(self, function: Callable[..., Any], case: _Case, *arguments: Any) -> Any:
        """Call a function of the subject; any exception becomes a one-line `InputError`."""
        with self._blamed(case):
            return function(self.called_with(case), *arguments)

    @contextlib.contextmanager
    def reading(self, case: _Case) -> Iterator[None]:
        """Guard the reading of returned objects, which may run code of the subject too."""
        refused = None
        with self._blamed(case):
            try:
                yield
            except InputError as error:
                refused = error
        if refused is not None:
            raise InputError(f"{refused} (subject {self.name} on {case.describe()})")

    @contextlib.contextmanager
    def _blamed(self, case: _Case) -> Iterator[None]:
        """Guard code of the subject; any exception becomes a one-line `InputError`."""
        try:
            with guarded(self.timeout):
                yield
        except GuardError as error:
            raise StoppedCall(f"subject={self.name}: on {case.describe()} {error}") from None
        except BaseException as error:
            # In a pool, Ctrl-C need not be raised again: the process that owns the pool ends its workers.
            if isinstance(error, KeyboardInterrupt) and not in_pool():
                raise
            raise InputError(
                f"subject={self.name}: raised {in_one_line(error)} on {case.describe()}; mend the simulator"
            ) from error

    def refuse(self, case: _Case, problem: str) -> NoReturn:
        """Raise `InputError` for the subject on a case."""
        raise InputError(f"subject={self.name}: on {case.describe()} {problem}")


def _same_digits(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are equal, unless they are constant, such as all zeros or all clipped at one bound."""
    finite = first[np.isfinite(first) & (first != 0.0)]
    return np.array_equal(first, second) and len(np.unique(np.abs(finite))) > 1


def _equal(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are equal up to the order of summation."""
    return first.shape == second.shape and bool(np.abs(first - second).max() <= _WOBBLE * np.abs(first).max())
