"""Callers of a subject on layers, with or without given inputs, or on programs; they validate returned arrays."""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.checks.check import BaseSetting, Setting
from attncheck.checks.claims import UNSUPPORTED
from attncheck.checks.programs.sample import PROGRAM_FIELDS, ProgramSample, ProgramSetting, sample_of
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.norm import normalised
from attncheck.layers.program import ProgramCase
from attncheck.layers.requirements import linear
from attncheck.simulators.collapsed import draw_images
from attncheck.simulators.weights import WeightLaws
from attncheck.subject.declared import MISSING_LAYER, SUPPORTS, Form
from attncheck.subject.guard import GuardError, guarded, in_pool
from attncheck.subject.named import in_one_line

# Number of draws of a probe. A few suffice to show the shapes, and whether the generator is used. Weights that are not
# Gaussian need more at widths up to `_FEW_NUMBERS`, where a few draws may be equal for different generators.
_PROBE, _PROBE_DISCRETE, _FEW_NUMBERS = 4, 64, 8
# Names of arrays that subjects of layers and of programs return.
_FIELDS = (*EVERY_FIELD, "vectors", "gram")
# Relative difference allowed between samples from equal generators, because GPUs sum in any order.
_WOBBLE = 0.05
_Case = TypeVar("_Case", bound=Case)
_Sample = TypeVar("_Sample", bound=Sample | ProgramSample)
_Setting = TypeVar("_Setting", bound=BaseSetting[Any])
# Maximum number of entries of the inputs X per call of a subject.
_INPUT_ENTRIES = 2**22


class StoppedCall(InputError):
    """Error for a call of a subject that was stopped, and that should not be repeated."""


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
        """Return the setting of a case.

        It records which arrays and how many neurons the sample has, and whether draws are `repeatable`.
        """

    def drawer(self, case: _Case, size: int, rng: np.random.Generator) -> Callable[[np.random.Generator], _Sample]:
        """Return a function that draws a sample from a generator.

        If attncheck draws the inputs, it draws them once, and all samples use the same inputs.
        """
        return lambda generator: self.draw(case, size, generator)

    def given(self, case: _Case) -> tuple[str, ...]:
        """Return the names of the arrays that may be equal in samples from different generators.

        For all other arrays, equality shows that the subject does not use the generator.
        """
        return ()

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
        """Raise `InputError` if a sample lacks an array in `exposed`, or does not have `coordinates` neurons."""
        if missing := exposed - sample.exposed:
            names = ", ".join(sorted(missing & {*EVERY_FIELD, *PROGRAM_FIELDS}) or sorted(missing))
            self.refuse(case, f"returned {names} in one call and not in another; return the same arrays in every call")
        if sample.coordinates != coordinates:
            counts = f"{coordinates} neurons in one call and {sample.coordinates} in another"
            self.refuse(case, f"returned {counts}; return the same number in every call")

    def run(self, function: Callable[..., Any], case: _Case, *arguments: Any) -> Any:
        """Call a function of the subject; any exception becomes a one-line `InputError` about the case."""
        with self._blamed(case):
            return function(*arguments)

    @contextlib.contextmanager
    def reading(self, case: _Case) -> Iterator[None]:
        """Guard code in this context that reads objects returned by the subject, which may run the subject's code."""
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
        """Guard code of the subject in this context; any exception becomes a one-line `InputError`."""
        try:
            with guarded(self.timeout):
                yield
        except GuardError as error:
            raise StoppedCall(f"subject={self.name}: on {case.describe()} {error}") from None
        except BaseException as error:
            # In a pool, Ctrl-C need not be raised again: the process that owns the pool ends its workers.
            if isinstance(error, KeyboardInterrupt) and not in_pool():
                raise
            # A simulator can declare that it supports only some layers. There is no such declaration for programs.
            lacks = isinstance(error, NotImplementedError) and case.kind != "program"
            remedy = MISSING_LAYER if lacks else "mend the simulator"
            raise InputError(
                f"subject={self.name}: raised {in_one_line(error)} on {case.describe()}; {remedy}"
            ) from error

    def refuse(self, case: _Case, problem: str) -> NoReturn:
        """Raise `InputError` for the subject on a case."""
        raise InputError(f"subject={self.name}: on {case.describe()} {problem}")


def _same_digits(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are equal for no trivial reason.

    Equality is trivial if all nonzero numbers have the same absolute value, for example if all are clipped at one
    bound.
    """
    finite = first[np.isfinite(first) & (first != 0.0)]
    return np.array_equal(first, second) and len(np.unique(np.abs(finite))) > 1


def _equal(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are equal up to the order of summation."""
    return first.shape == second.shape and bool(np.abs(first - second).max() <= _WOBBLE * np.abs(first).max())


@dataclasses.dataclass(frozen=True)
class ProgramCaller(Caller[ProgramCase, ProgramSample, ProgramSetting]):
    """Calls a subject on programs; attributes as in `Subject`."""

    programs: Callable[..., Mapping[str, Any]] | None

    def reason_unsupported(self, case: ProgramCase) -> str:
        """Return why the subject does not simulate programs, or an empty string."""
        remedy = "a simulator of programs names its first parameters program, width"
        return "" if self.programs else f"the subject simulates layers only; {remedy}"

    def draw(self, case: ProgramCase, size: int, rng: np.random.Generator) -> ProgramSample:
        """Draw a validated sample of a program at each width of a case."""
        if self.programs is None:
            remedy = "define its attribute `programs`, see attncheck.subject.Subject"
            self.refuse(case, f"was asked for a program; {remedy}")
        arrays = [self.run(self.programs, case, case.program, n, size, rng) for n in case.widths]
        with self.reading(case):
            return sample_of(case, arrays, size)

    def setting(self, case: ProgramCase, sample: ProgramSample, repeatable: bool) -> ProgramSetting:
        """Return the setting of a program: the arrays and neurons in a sample, and whether draws are repeatable."""
        return ProgramSetting(case, sample.exposed, sample.coordinates, self.weights, repeatable)


@dataclasses.dataclass(frozen=True)
class LayerCaller(Caller[AttentionLayer, Sample, Setting]):
    """Calls a subject on layers; attributes as in `Subject`."""

    call: Callable[..., Mapping[str, Any]]
    form: Form
    supports: Callable[[AttentionLayer], bool | str]

    def reason_unsupported(self, case: AttentionLayer) -> str:
        """Return why the subject does not support a layer; empty if it does."""
        if self.form == "program":
            return "the subject simulates programs only"
        answer = self.run(self.supports, case, case)
        if isinstance(answer, str):
            return answer or UNSUPPORTED
        if not isinstance(answer, bool | np.bool_):
            refuse(f"{self.name}.supports", answer, f"was returned for {case.describe()}", SUPPORTS)
        return "" if answer else UNSUPPORTED

    def draw(self, case: AttentionLayer, size: int, rng: np.random.Generator) -> Sample:
        """Draw a validated sample; if attncheck passes the inputs, in several calls of bounded size."""
        if self.form == "size":
            return self._sample(case, size, size, rng)
        step = max(1, _INPUT_ENTRIES // (case.seq_len * case.width))
        counts = [min(step, size - start) for start in range(0, size, step)]
        parts = [self.draw_on(case, draw_images(case, count, rng), rng) for count in counts]
        for part in parts:
            self.hold(case, part, parts[0].exposed, parts[0].coordinates)
        return parts[0].joined(parts[1:]) if len(parts) > 1 else parts[0]

    def drawer(
        self, case: AttentionLayer, size: int, rng: np.random.Generator
    ) -> Callable[[np.random.Generator], Sample]:
        """Return a function that draws a sample from a generator, always on the same inputs if attncheck draws them."""
        if self.form == "size":
            return super().drawer(case, size, rng)
        inputs = draw_images(case, size, rng)
        return lambda generator: self.draw_on(case, inputs, generator)

    def given(self, case: AttentionLayer) -> tuple[str, ...]:
        """Return the names of the arrays that may be equal in samples from different generators.

        These are the inputs and their Gram matrix, if attncheck passes the inputs or if they may saturate. At width 1,
        and with random signs as matrix entries, the Gram matrices of keys and values may then be equal too.
        """
        names = ("inputs", "input_gram") if self.form == "inputs" or not linear(case) else ()
        signs = not self.weights.continuous and case.width == 1
        return (*names, "key_gram", "value_gram") if names and signs else names

    def setting(self, case: AttentionLayer, sample: Sample, repeatable: bool) -> Setting:
        """Return the setting of a layer: the arrays and neurons in a sample, and whether draws are repeatable."""
        draw_on = self.draw_on if self.form == "inputs" else None
        return Setting(case, sample.exposed, sample.coordinates, self.weights, repeatable, draw_on)

    def draw_on(self, layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Sample:
        """Call the subject on inputs X, before any norm of the layer; the sample contains X and its Gram matrix too."""
        sample = self._sample(layer, inputs.copy(), len(inputs), rng)
        inputs = normalised(layer.norm, inputs)
        exposed = inputs[:, :, : sample.coordinates]
        gram = inputs @ inputs.swapaxes(-1, -2) / layer.width
        return dataclasses.replace(sample, inputs=exposed, input_gram=gram)

    def _sample(self, layer: AttentionLayer, second: Any, size: int, rng: np.random.Generator) -> Sample:
        arrays = self.run(self.call, layer, layer, second, rng)
        with self.reading(layer):
            return Sample.from_mapping(layer, arrays, size)
