"""The simulator under test: found by name, called in one of two forms, and held to what it declares."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.imports import find
from attncheck.checks.check import Setting
from attncheck.checks.claims import NO_PROGRAMS
from attncheck.checks.programs.sample import PROGRAM_FIELDS, ProgramSample, ProgramSetting, sample_of
from attncheck.checks.sample import EVERY_FIELD, Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.norm import normalised
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.program.extent import vectors_of
from attncheck.layers.requirements import linear
from attncheck.readings import Reading, simulate
from attncheck.simulators.collapsed import draw_images
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.matrix_free import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.simulators.weights import GAUSSIAN_LAWS, WeightLaws

__all__ = ["Subject", "collapsed", "direct", "matrix_free", "programs"]

FloatArray = NDArray[np.float64]
Form = Literal["size", "inputs", "program"]

DEFAULT_SUBJECT = "attncheck.subject:direct"
_FORMS = "(layer, size, rng) or (layer, inputs, rng)"
_PROGRAM_FORM = "(program, width, size, rng)"
_SUPPORTS = "make it a function of the layer that returns True, False or a string that says why not"
# Draws of a probe: enough to tell shapes and whether the generator is used; more where weights of few values make few
# numbers of them, in layers up to a width.
_PROBE, _PROBE_DISCRETE, _FEW_NUMBERS = 4, 64, 8
# Two samples from one generator may differ by this share of their size: a GPU adds in any order.
_WOBBLE = 0.05
# Characters of another's error message that are passed on.
_MESSAGE = 200
# Widths up to which programs are simulated with literal matrices.
_LITERAL = 24
# Entries of X that are handed to a subject in one call.
_INPUT_ENTRIES = 2**22


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
        name = subject if isinstance(subject, str) else _name_of(subject)
        call = _find(subject) if isinstance(subject, str) else subject
        if not callable(call):
            refuse("subject", name, "is not callable", f"pass a function {_FORMS}")
        supports = getattr(call, "supports", cls.supports)
        if not callable(supports):
            refuse(f"{name}.supports", supports, "is not callable", _SUPPORTS)
        form, programs = _form_of(name, call), getattr(call, "programs", None)
        weights = _weights_of(name, getattr(call, "weights", cls.weights), form)
        if form == "program":
            programs = call
        if programs is not None and not callable(programs):
            refuse(f"{name}.programs", programs, "is not callable", f"make it a function {_PROGRAM_FORM}")
        layers = _layers_of(name, getattr(call, "layers", None))
        return cls(name, call, form, supports, weights, programs=programs, layers=layers)

    def reason_unsupported(self, case: Case) -> str:
        """Return why the subject declares that it cannot simulate a layer or program; empty if it can.

        Raises
        ------
        InputError
            If the declaration fails or is neither a boolean nor a string.
        """
        if isinstance(case, ProgramCase):
            return "" if self.programs else NO_PROGRAMS
        if self.form == "program":
            return "the subject simulates programs and no layers"
        answer = self._run(self.supports, case)
        if isinstance(answer, str):
            return answer or "the subject does not support this layer"
        if not isinstance(answer, bool | np.bool_):
            refuse(f"{self.name}.supports", answer, f"is what it returns for {case.describe()}", _SUPPORTS)
        return "" if answer else "the subject does not support this layer"

    def draw(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> Sample:
        """Draw a validated sample.

        Raises
        ------
        InputError
            If the subject fails, or returns what cannot be used; names subject and layer.
        """
        if self.form == "size":
            return self._sample(layer, size, size, rng)
        step = max(1, _INPUT_ENTRIES // (layer.seq_len * layer.width))
        counts = [min(step, size - start) for start in range(0, size, step)]
        parts = [self._draw_given(draw_images(layer, count, rng), layer, rng) for count in counts]
        for part in parts:
            self._hold(part, parts[0].exposed, parts[0].coordinates)
        return _joined(parts)

    def draw_program(self, case: ProgramCase, size: int, rng: np.random.Generator) -> ProgramSample:
        """Draw a validated sample of a program at each width of a case."""
        if self.programs is None:
            self._refuse(
                case, "was asked for a program; give it an attribute `programs`, see attncheck.subject.Subject"
            )
        arrays = [self._run(self.programs, case, n, size, rng) for n in case.widths]
        try:
            return sample_of(case, arrays, size)
        except InputError as error:
            raise InputError(f"{error} (subject {self.name} on {case.describe()})") from None

    @overload
    def draw_as(self, setting: Setting, size: int, rng: np.random.Generator) -> Sample: ...

    @overload
    def draw_as(self, setting: ProgramSetting, size: int, rng: np.random.Generator) -> ProgramSample: ...

    def draw_as(self, setting: Setting | ProgramSetting, size: int, rng: np.random.Generator) -> Sample | ProgramSample:
        """Draw a sample that exposes what was planned for.

        Raises
        ------
        InputError
            As for `draw`, or if a field is missing or the number of neurons is another one.
        """
        drawn = self._drawn(setting.case, size, rng)
        self._hold(drawn, setting.exposed, setting.coordinates)
        return drawn

    def _drawn(self, case: Case, size: int, rng: np.random.Generator) -> Sample | ProgramSample:
        return self.draw_program(case, size, rng) if isinstance(case, ProgramCase) else self.draw(case, size, rng)

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
        handed = self.form == "inputs" and not isinstance(case, ProgramCase)
        few = not self.weights.gaussian and case.width <= _FEW_NUMBERS
        size = _PROBE_DISCRETE if few else _PROBE
        inputs = draw_images(case, size, rng) if handed and isinstance(case, AttentionLayer) else None
        one, other = rng.spawn(2)

        def draw(generator: np.random.Generator) -> Sample | ProgramSample:
            if inputs is None or isinstance(case, ProgramCase):
                return self._drawn(case, size, generator)
            return self._draw_given(inputs, case, generator)

        first, again, later, second = draw(copy.deepcopy(one)), draw(one), draw(one), draw(other)
        remedy = "draw all random numbers from the generator passed as rng"
        given = _decided(case, self.weights, inputs is not None)
        others = {"two different generators": second, "two calls with one generator, one after the other,": later}
        for which, sample in others.items():
            for name in (*EVERY_FIELD, "vectors", "gram"):
                drawn = name in first.exposed & sample.exposed and name not in given
                if drawn and _same_digits(first.need(name), sample.need(name)):
                    self._refuse(case, f"{which} gave the same {name}; {remedy}")
        if not _alike(first.outputs, again.outputs):
            self._refuse(case, f"one generator gave different outputs when used twice; {remedy}")
        if isinstance(case, ProgramCase):
            return ProgramSetting(case, first.exposed, first.coordinates, self.weights)
        return Setting(case, first.exposed, first.coordinates, self.weights)

    def _draw_given(self, inputs: FloatArray, layer: AttentionLayer, rng: np.random.Generator) -> Sample:
        """Hand X, before it is normalised, to the subject and add what X itself says."""
        sample = self._sample(layer, inputs.copy(), len(inputs), rng)
        inputs = normalised(layer.norm, inputs)
        seen = inputs[:, :, : sample.coordinates]
        gram = inputs @ inputs.swapaxes(-1, -2) / layer.width
        return dataclasses.replace(sample, inputs=seen, input_gram=gram)

    def _sample(self, layer: AttentionLayer, second: Any, size: int, rng: np.random.Generator) -> Sample:
        arrays = self._run(self.call, layer, second, rng)
        try:
            sample = Sample.from_mapping(layer, arrays, size, self.fields)
        except InputError as error:
            raise InputError(f"{error} (subject {self.name} on {layer.describe()})") from None
        if sample.coordinates > layer.width:
            self._refuse(layer, f"returned {sample.coordinates} neurons of {layer.width}; return at most the width")
        return sample

    def _hold(self, sample: Sample | ProgramSample, exposed: frozenset[str], coordinates: int) -> None:
        """Refuse a sample that does not expose what another call did."""
        if missing := exposed - sample.exposed:
            names = ", ".join(sorted(missing & {*EVERY_FIELD, *PROGRAM_FIELDS}) or sorted(missing))
            self._refuse(sample.case, f"returned {names} in one call and not in another; return the same always")
        if sample.coordinates != coordinates:
            counts = f"{coordinates} neurons in one call and {sample.coordinates} in another"
            self._refuse(sample.case, f"returned {counts}; return the same always")

    def _run(self, function: Callable[..., Any], case: Case, *arguments: Any) -> Any:
        """Call a function of the subject's; whatever it raises becomes an `InputError` in one line."""
        try:
            with np.errstate():  # what it makes of it ends with the call
                return function(case.program if isinstance(case, ProgramCase) else case, *arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise InputError(
                f"subject={self.name}: failed on {case.describe()} with {_in_one_line(error)}; mend the simulator"
            ) from error

    def _refuse(self, case: Case, problem: str) -> NoReturn:
        raise InputError(f"subject={self.name}: on {case.describe()} {problem}")


def _decided(case: Case, weights: WeightLaws, handed: bool) -> tuple[str, ...]:
    """Return what may be the same whatever the generator is: inputs that are given or saturate, and what follows."""
    if isinstance(case, ProgramCase):
        return ()
    given = ("inputs", "input_gram") if handed or not linear(case) else ()
    signs = not weights.continuous and case.width == 1
    return (*given, "key_gram", "value_gram") if given and signs else given


def _layers_of(name: str, declared: Any) -> tuple[AttentionLayer, ...]:
    """Return the layers that a subject says it is; none where it says nothing."""
    remedy = "list one attncheck.AttentionLayer or more, or leave the attribute out"
    if declared is None:
        return ()
    if isinstance(declared, str | Mapping) or not isinstance(declared, Iterable):
        refuse(f"{name}.layers", declared, "is no list of layers", remedy)
    layers = tuple(dict.fromkeys(declared))
    for number, layer in enumerate(layers):
        if not isinstance(layer, AttentionLayer):
            refuse(f"{name}.layers[{number}]", layer, "is not an AttentionLayer", remedy)
    if not layers:
        refuse(f"{name}.layers", [], "is empty", remedy)
    return layers


def _weights_of(name: str, declared: Any, form: Form) -> WeightLaws:
    """Return what a subject declares; inputs that are handed to it are attncheck's own, of Gaussian W^i."""
    laws = WeightLaws.of(declared, f"{name}.weights")
    if form != "inputs":
        return laws
    if isinstance(declared, Mapping) and "inputs" in declared:
        refuse(f"{name}.weights['inputs']", laws.inputs, "is of inputs that are handed to the subject", "leave it out")
    return dataclasses.replace(laws, inputs=WeightLaws.inputs)


def direct(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` with literal weight matrices: the subject that is examined by default."""
    return _read(layer, size, rng, "direct")


def programs(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate a program: with literal matrices where they are small, exactly in law without them beyond."""
    multiplier = DirectMultiplier if width <= _LITERAL else MatrixFreeMultiplier
    shown = min(2, *(node.length(width) for node in vectors_of(program)))
    return draw_exposed(program, width, size, shown, rng, multiplier).as_dict()


direct.programs = programs  # type: ignore[attr-defined]  # functions take attributes, their type says no


def matrix_free(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` exactly in law without weight matrices."""
    return _read(layer, size, rng, "matrix-free")


def collapsed(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` exactly in law through Wishart Gram matrices."""
    return _read(layer, size, rng, "collapsed")


def _read(layer: AttentionLayer, size: int, rng: np.random.Generator, reading: Reading) -> dict[str, FloatArray]:
    seed = np.random.SeedSequence([int(word) for word in rng.integers(2**32, size=4)])
    return simulate(layer, size, seed, reading, coordinates=min(layer.width, 2)).as_dict()


def _name_of(call: Any) -> str:
    module, name = getattr(call, "__module__", "?"), getattr(call, "__qualname__", type(call).__qualname__)
    return f"{module}:{name}"


def _find(name: str) -> Any:
    """Import ``module:callable``, the current folder included, or what makes a layer, ``torch:module:callable``."""
    framework, _, rest = name.partition(":")
    if ":" in rest:
        # Frameworks are above subjects, and none is imported where none is named.
        return find("attncheck.frameworks.named:subject_of_name")(framework, _find(rest))
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        refuse("subject", name, "is not of the form module:callable", "write e.g. mypackage.attention:simulate")
    own = module_name.partition(".")[0] == "attncheck"
    if not own and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with np.errstate():  # what the module makes of it ends with its import
            found: Any = importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"cannot be imported: {_in_one_line(error)}"
        raise InputError(
            f"subject={name}: {problem}; check the module, run this in the folder it lies in, or add that to PYTHONPATH"
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            refuse("subject", name, f"{module_name} has no {part!r}", "name a function that the module defines")
        found = getattr(found, part)
    return found


def _form_of(name: str, call: Callable[..., Any]) -> Form:
    try:
        signature = inspect.signature(call)
        if list(signature.parameters)[:2] == ["program", "width"]:
            signature.bind(None, None, None, None)
            return "program"
        signature.bind(None, None, None)
        second = list(signature.parameters)[1]
    except (TypeError, ValueError, IndexError):
        second = ""
    if second == "size":
        return "size"
    if second == "inputs":
        return "inputs"
    forms = f"{_FORMS}, or {_PROGRAM_FORM} for programs"
    taken, by_name = _parameters(call)
    positional = ", all of them positional: no * before them" if by_name else ""
    refuse("subject", name, f"takes {taken}", f"make it {forms}, with these names{positional}")


def _parameters(call: Callable[..., Any]) -> tuple[str, bool]:
    """Return the parameters as they are written, without their types, and whether one must be passed by its name."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return "parameters that cannot be read", False
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    by_name = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    return str(inspect.Signature(bare)) if by_name else f"({', '.join(p.name for p in bare)})", by_name


def _in_one_line(error: BaseException) -> str:
    """Return what was raised and where in a person's own code, without the line breaks of its message."""
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    text = " ".join(f"{type(error).__name__}: {message}".split())
    foreign = ("<", sys.prefix, sys.base_prefix)
    frames = [f for f in traceback.extract_tb(error.__traceback__)[1:] if not f.filename.startswith(foreign)]
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return (text if len(text) <= _MESSAGE else text[: _MESSAGE - 1] + "…") + place


def _joined(samples: Sequence[Sample]) -> Sample:
    """Join samples that expose the same end to end."""
    first = samples[0]
    if len(samples) == 1:
        return first
    fields = [name for name in EVERY_FIELD if name in first.exposed]
    joined: dict[str, Any] = {name: np.concatenate([part.need(name) for part in samples]) for name in fields}
    return dataclasses.replace(first, **joined)


def _same_digits(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are the same ones: zeros, and a bound that all are clipped at, prove nothing."""
    finite = first[np.isfinite(first) & (first != 0.0)]
    return np.array_equal(first, second) and len(np.unique(np.abs(finite))) > 1


def _alike(first: FloatArray, second: FloatArray) -> bool:
    """Return whether two samples are the same but for the order in which sums were taken."""
    return first.shape == second.shape and bool(np.abs(first - second).max() <= _WOBBLE * np.abs(first).max())
