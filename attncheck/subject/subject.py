"""The simulator under test: found by name, called in one of its forms, and held to what it declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np

from attncheck._lib.errors import refuse
from attncheck.checks.check import Setting
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting
from attncheck.checks.sample import EVERY_FIELD, Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.program import ProgramCase
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws
from attncheck.subject.caller import Caller
from attncheck.subject.declared import FORMS, PROGRAM_FORM, SUPPORTS, Form, form_of, layers_of, weights_of
from attncheck.subject.layers import LayerCaller
from attncheck.subject.named import find_subject, name_of
from attncheck.subject.programs import ProgramCaller


@dataclasses.dataclass(frozen=True)
class Subject:
    """A simulator to be examined.

    Attributes
    ----------
    name : str
        How reports call it, ``module:callable``.
    call : callable
        ``call(layer, size, rng)``, which draws its own inputs, or ``call(layer, inputs, rng)``, which is
        handed X of shape (N, seq_len, width), before a norm of the layer. Returns a mapping with ``outputs``
        (N, seq_len, k) and whatever else it exposes of `attncheck.Draws`.
    form : {"size", "inputs"}
        Which of the two.
    supports : callable AttentionLayer -> bool or str
        Whether it can simulate a layer; a string says why not. From the callable's attribute `supports`.
    layers : tuple of AttentionLayer
        The layers that it is, where it is no simulator of any: a module has a width, heads and scales of its own. Runs
        visit these and no others. From the callable's attribute `layers`; empty where it takes what it is given.
    weights : WeightLaws
        The laws of its weights, from the callable's attribute `weights`: a name of
        `attncheck.simulators.weights.WEIGHT_LAWS`, or a mapping of matrices ("query", "key", "value", "output", and
        "inputs" where it draws these) to names. Where they are not all "gaussian", it is held to literal draws.
    fields : sequence of str
        What it may return: a file may hold more than a simulator.
    programs : callable or None
        ``programs(program, width, size, rng)``, which simulates programs and returns the arrays of
        `attncheck.ProgramDraws`; None if the subject simulates layers only. From the callable's attribute
        `programs`, or the callable itself where its first parameters are called so.
    """

    name: str
    call: Callable[..., Mapping[str, Any]]
    form: Form
    supports: Callable[[AttentionLayer], bool | str] = lambda layer: True
    weights: WeightLaws = GAUSSIAN_LAWS
    fields: Sequence[str] = EVERY_FIELD
    programs: Callable[..., Mapping[str, Any]] | None = None
    layers: tuple[AttentionLayer, ...] = ()

    @classmethod
    def of(cls, subject: Any) -> Subject:
        """Return the subject for a callable, a ``module:callable`` name, or a subject.

        The form is read off the name of the callable's second parameter, ``size`` or ``inputs``.

        Raises
        ------
        InputError
            If it cannot be found or called so.

        Examples
        --------
        >>> Subject.of("attncheck.subject:direct").form
        'size'
        """
        if isinstance(subject, Subject):
            return subject
        name = subject if isinstance(subject, str) else name_of(subject)
        call = find_subject(subject) if isinstance(subject, str) else subject
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

    def simulates(self, kind: str) -> bool:
        """Return whether it simulates cases of a kind, "layer" or "program", at all."""
        return self.programs is not None if kind == "program" else self.form != "program"

    def caller(self, case: Case) -> Caller[Any, Any, Any]:
        """Return what calls the subject for a layer, or for a program."""
        if isinstance(case, ProgramCase):
            return ProgramCaller(self.name, self.weights, self.programs)
        return LayerCaller(self.name, self.weights, self.call, self.form, self.supports, self.fields)

    def reason_unsupported(self, case: Case) -> str:
        """Return why the subject declares that it cannot simulate a layer or program; empty if it can.

        Raises
        ------
        InputError
            If the declaration fails or is neither a boolean nor a string.
        """
        return self.caller(case).reason_unsupported(case)

    @overload
    def draw(self, case: AttentionLayer, size: int, rng: np.random.Generator) -> Sample: ...

    @overload
    def draw(self, case: ProgramCase, size: int, rng: np.random.Generator) -> ProgramSample: ...

    def draw(self, case: Case, size: int, rng: np.random.Generator) -> Sample | ProgramSample:
        """Draw a validated sample of a layer, or of a program at each width of a case.

        Raises
        ------
        InputError
            If the subject fails, or returns what cannot be used; names subject and case.
        """
        drawn: Sample | ProgramSample = self.caller(case).draw(case, size, rng)
        return drawn

    def draw_as(self, setting: Setting | ProgramSetting, size: int, rng: np.random.Generator) -> Any:
        """Draw a sample that exposes what was planned for.

        Raises
        ------
        InputError
            As for `draw`, or if a field is missing or the number of neurons is another one.
        """
        caller: Caller[Any, Any, Any] = self.caller(setting.case)
        drawn = caller.draw(setting.case, size, rng)
        caller.hold(setting.case, drawn, setting.exposed, setting.coordinates)
        return drawn

    @overload
    def probe(self, case: AttentionLayer, rng: np.random.Generator) -> Setting: ...

    @overload
    def probe(self, case: ProgramCase, rng: np.random.Generator) -> ProgramSetting: ...

    def probe(self, case: Case, rng: np.random.Generator) -> Setting | ProgramSetting:
        """Learn what the subject exposes on a layer or program, and that its generator decides what it draws.

        Raises
        ------
        InputError
            If two generators give the same digits, or one generator does call after call, so that every look would
            be the same look; or if one generator gives different ones, so that no result could be repeated.
        """
        setting: Setting | ProgramSetting = self.caller(case).probe(case, rng)
        return setting
