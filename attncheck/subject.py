"""The simulator under test: found by name, called in one of two forms, and held to what it declares."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attncheck.attention import AttentionLayer
from attncheck.checks.check import Setting
from attncheck.checks.sample import Sample
from attncheck.errors import InputError, check_choice, refuse
from attncheck.simulators import Reading, simulate
from attncheck.simulators.collapsed import draw_inputs
from attncheck.simulators.weights import GAUSSIAN, WEIGHT_LAWS

FloatArray = NDArray[np.float64]
Form = Literal["size", "inputs"]

DEFAULT_SUBJECT = "attncheck.subject:direct"
# Draws of a probe: enough to tell shapes and whether the generator is used.
_PROBE = 4
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
        handed X of shape (N, seq_len, width). Returns a mapping with ``outputs`` (N, seq_len, k) and
        whatever else it exposes of `attncheck.Draws`.
    form : {"size", "inputs"}
        Which of the two.
    supports : callable AttentionLayer -> bool or str
        Whether it can simulate a layer; a string says why not. From the callable's attribute `supports`.
    weights : str
        The law of its weights, one of `attncheck.simulators.weights.WEIGHT_LAWS`, from the callable's attribute
        `weights`; with another law than "gaussian" only limit claims apply.
    """

    name: str
    call: Callable[..., Mapping[str, Any]]
    form: Form
    supports: Callable[[AttentionLayer], bool | str] = lambda layer: True
    weights: str = GAUSSIAN

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
            refuse(
                "subject",
                name,
                "is not callable",
                "pass a function (layer, size, rng) or (layer, inputs, rng)",
            )
        supports = getattr(call, "supports", None)
        weights = check_choice(f"{name}.weights", getattr(call, "weights", GAUSSIAN), tuple(WEIGHT_LAWS))
        return cls(name, call, _form_of(name, call), supports or (lambda layer: True), weights)

    def reason_unsupported(self, layer: AttentionLayer) -> str:
        """Return why the subject declares that it cannot simulate `layer`; empty if it can."""
        answer = self.supports(layer)
        if isinstance(answer, str):
            return answer
        return "" if answer else "the subject does not support this layer"

    def draw(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> Sample:
        """Draw a validated sample; exceptions of the subject become an `InputError` that names it."""
        if self.form == "size":
            return Sample.from_mapping(layer, self._call(layer, size, rng), size)
        step = max(1, _INPUT_ENTRIES // (layer.seq_len * layer.width))
        parts = [
            self._draw_given(layer, draw_inputs(layer, min(step, size - start), rng), rng)
            for start in range(0, size, step)
        ]
        merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Sample.from_mapping(layer, merged, size)

    def probe(self, layer: AttentionLayer, rng: np.random.Generator) -> Setting:
        """Learn what the subject exposes on a layer, and that it uses its generator.

        Raises
        ------
        InputError
            If two different generators give the same digits: every look would be the same look.
        """
        if self.form == "inputs":
            inputs = draw_inputs(layer, _PROBE, rng)
            first, second = (
                Sample.from_mapping(layer, self._draw_given(layer, inputs, stream), _PROBE) for stream in rng.spawn(2)
            )
        else:
            first, second = (self.draw(layer, _PROBE, stream) for stream in rng.spawn(2))
        if np.array_equal(first.outputs, second.outputs) and first.outputs.any():
            remedy = "draw all random numbers from the generator passed as rng"
            raise InputError(f"subject={self.name}: two different generators gave the same outputs; {remedy}")
        return Setting(layer, first.exposed, first.coordinates, self.weights)

    def _draw_given(self, layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        """Hand X to the subject and add what X itself says."""
        given = inputs.copy()
        arrays = dict(self._call(layer, given, rng))
        coordinates = np.shape(arrays.get("outputs", ()))[-1:]
        if coordinates:
            arrays["inputs"] = inputs[:, :, : coordinates[0]]
        arrays["input_gram"] = inputs @ inputs.swapaxes(-1, -2) / layer.width
        return arrays

    def _call(self, layer: AttentionLayer, second: Any, rng: np.random.Generator) -> Mapping[str, Any]:
        try:
            arrays = self.call(layer, second, rng)
        except InputError:
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise InputError(f"subject={self.name}: failed on {layer.describe()} with {message}; mend it") from error
        if not isinstance(arrays, Mapping):
            refuse("subject", type(arrays).__name__, "must return a mapping", "return {'outputs': array, ...}")
        return arrays


def direct(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` with literal weight matrices: the subject that is examined by default."""
    return _read(layer, size, rng, "direct")


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
    """Import ``module:callable``, the current folder included."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        refuse("subject", name, "is not of the form module:callable", "write e.g. mypackage.attention:simulate")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(f"subject={name}: cannot be imported ({error}); check the module's name and path") from None
    for part in path.split("."):
        if not hasattr(found, part):
            refuse("subject", name, f"{module_name} has no {part!r}", "name a function that the module defines")
        found = getattr(found, part)
    return found


def _form_of(name: str, call: Callable[..., Any]) -> Form:
    try:
        parameters = list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        parameters = []
    second = parameters[1] if len(parameters) == 3 else ""
    if second == "size":
        return "size"
    if second == "inputs":
        return "inputs"
    problem = f"takes ({', '.join(parameters)})"
    refuse("subject", name, problem, "make it (layer, size, rng) or (layer, inputs, rng), with these names")
