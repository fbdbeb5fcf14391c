"""The simulator under test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import refuse
from attncheck.checks.check import Setting
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.program import ProgramCase
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws
from attncheck.subject.callers import Caller, LayerCaller, ProgramCaller
from attncheck.subject.declared import FORMS, PROGRAM_FORM, SUPPORTS, Form, form_of, layers_of, weights_of
from attncheck.subject.named import SubjectName, imported_by_name, name_of

#: Draws per call in a look: enough to reveal repeats within a call, few enough for many calls.
CALL_DRAWS = 256


@dataclasses.dataclass(frozen=True)
class Subject:
    """A simulator under test.

    Attributes
    ----------
    name : str
        Name in reports, ``module:callable``.
    call : callable
        ``call(layer, size, rng)``, which draws its own inputs, or ``call(layer, inputs, rng)``, which receives the
        inputs X, (N, seq_len, width), before any norm of the layer. Returns a mapping with ``outputs``,
        (N, seq_len, k), and optionally other arrays of `attncheck.Draws`.
    form : {"size", "inputs", "program"}
        Call form.
    supports : callable AttentionLayer -> bool or str
        Whether the simulator supports a layer, or the reason why not. From the callable's attribute `supports`.
    layers : tuple of AttentionLayer
        The only layers that the simulator draws, such as those of a module of fixed width and heads. From the
        callable's attribute `layers`; empty if it draws any layer.
    weights : WeightLaws
        Laws of the weights. From the callable's attribute `weights`: "gaussian", "uniform", "rademacher", "truncated
        normal", "student5", or a mapping from "query", "key", "value", "output" and (if the simulator draws inputs)
        "inputs" to these names. Unless all laws are "gaussian", the simulator is compared with draws of explicit
        matrices.
    programs : callable or None
        ``programs(program, width, size, rng)``, which returns the arrays of `attncheck.ProgramDraws`; None if the
        simulator draws layers only. From the callable's attribute `programs`, or the callable itself if its first
        parameters are ``program, width``.
    timeout : float
        Time limit of a call, in seconds.
    """

    name: str
    call: Callable[..., Mapping[str, Any]]
    form: Form
    supports: Callable[[AttentionLayer], bool | str] = lambda layer: True
    weights: WeightLaws = GAUSSIAN_LAWS
    programs: Callable[..., Mapping[str, Any]] | None = None
    layers: tuple[AttentionLayer, ...] = ()
    timeout: float = math.inf

    @classmethod
    def of(cls, subject: Any) -> Subject:
        """Return the subject for a callable, a ``module:callable`` name, or a `SubjectName`.

        The name of the second parameter, ``size`` or ``inputs``, determines the form.

        Raises
        ------
        InputError
            If the subject cannot be found or called.

        Examples
        --------
        >>> Subject.of("attncheck.subject:direct").form
        'size'
        """
        if isinstance(subject, Subject):
            return subject
        if isinstance(subject, SubjectName):
            return dataclasses.replace(cls.of(subject.name), timeout=subject.timeout)
        name = subject if isinstance(subject, str) else name_of(subject)
        call = imported_by_name("subject", subject) if isinstance(subject, str) else subject
        if not callable(call):
            refuse("subject", name, "is not callable", f"pass a function {FORMS}")
        supports = getattr(call, "supports", cls.supports)
        if not callable(supports):
            refuse(f"{name}.supports", supports, "is not callable", SUPPORTS)
        form, programs = form_of(name, call), getattr(call, "programs", None)
        weights = weights_of(name, getattr(call, "weights", cls.weights), form)
        if form == "program":
            programs = call
        if programs is not None and not callable(programs):
            refuse(f"{name}.programs", programs, "is not callable", f"make it a function {PROGRAM_FORM}")
        layers = layers_of(name, getattr(call, "layers", None))
        return cls(name, call, form, supports, weights, programs=programs, layers=layers)

    @property
    def sent(self) -> SubjectName:
        """The subject in the form sent to other processes."""
        return SubjectName(self.name, self.timeout)

    @property
    def declares_support(self) -> bool:
        """Whether the subject declares which layers it supports."""
        return self.supports is not Subject.supports

    def simulates(self, kind: str) -> bool:
        """Return whether the subject simulates cases of a kind, "layer" or "program"."""
        return self.programs is not None if kind == "program" else self.form != "program"

    def caller(self, case: Case) -> Caller[Any, Any, Any]:
        """Return the object that calls the subject on a layer or program, and validates the returned arrays."""
        if isinstance(case, ProgramCase):
            return ProgramCaller(self.name, self.weights, self.timeout, self.programs)
        return self._layers

    @property
    def _layers(self) -> LayerCaller:
        return LayerCaller(self.name, self.weights, self.timeout, self.call, self.form, self.supports)

    def reason_unsupported(self, case: Case) -> str:
        """Return why the subject does not support a layer or program; empty if it does."""
        return self.caller(case).reason_unsupported(case)

    @overload
    def draw(self, case: AttentionLayer, size: int, rng: np.random.Generator) -> Sample: ...

    @overload
    def draw(self, case: ProgramCase, size: int, rng: np.random.Generator) -> ProgramSample: ...

    def draw(self, case: Case, size: int, rng: np.random.Generator) -> Sample | ProgramSample:
        """Draw a validated sample of a layer, or of a program at each width of a case; may raise InputError."""
        drawn: Sample | ProgramSample = self.caller(case).draw(case, size, rng)
        return drawn

    def draw_on(self, layer: AttentionLayer, inputs: NDArray[np.float64], rng: np.random.Generator) -> Sample:
        """Draw a validated sample on given inputs (N, seq_len, width), for the form "inputs"; may raise InputError."""
        return self._layers.draw_on(layer, inputs, rng)

    def draw_as(self, setting: Setting | ProgramSetting, size: int, rng: np.random.Generator) -> Any:
        """Draw a sample for a setting; raises InputError if it lacks arrays or neurons that the setting declares."""
        caller: Caller[Any, Any, Any] = self.caller(setting.case)
        drawn = caller.draw(setting.case, size, rng)
        caller.hold(setting.case, drawn, setting.exposed, setting.coordinates)
        return drawn

    def draw_in_calls(self, setting: Setting | ProgramSetting, size: int, rng: np.random.Generator) -> Any:
        """Draw a sample as `draw_as` does, in calls of `CALL_DRAWS` draws; the last call may be smaller.

        Examples
        --------
        >>> subject, rng = Subject.of("attncheck.subject:collapsed"), np.random.default_rng(0)
        >>> subject.draw_in_calls(subject.probe(AttentionLayer(width=4), rng), 600, rng).calls
        (256, 256, 88)
        """
        sizes = [min(CALL_DRAWS, size - start) for start in range(0, size, CALL_DRAWS)]
        first, *others = [self.draw_as(setting, count, rng) for count in sizes]
        return first.joined(others) if others else first

    @overload
    def probe(self, case: AttentionLayer, rng: np.random.Generator) -> Setting: ...

    @overload
    def probe(self, case: ProgramCase, rng: np.random.Generator) -> ProgramSetting: ...

    def probe(self, case: Case, rng: np.random.Generator) -> Setting | ProgramSetting:
        """Determine what the subject returns on a case, and check that its generator controls its draws.

        Raises
        ------
        InputError
            If different generators, or consecutive calls with one generator, give equal numbers, or if equal
            generators give clearly different numbers. If equal generators give slightly different numbers, the setting
            is not `repeatable`.
        """
        setting: Setting | ProgramSetting = self.caller(case).probe(case, rng)
        return setting
