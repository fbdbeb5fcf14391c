"""Interface between the inspection of models and a framework."""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.imports import find
from attncheck.frameworks.binding import Binding, home_of, in_words, parameters_of
from attncheck.models.calls import CallRecorder, ModuleCall, paired
from attncheck.models.parameters import Parameter
from attncheck.models.replay import sequences_of

#: Inputs of a model: by argument name, in order, or a function that returns them.
Inputs = Mapping[str, Any] | Sequence[Any] | Callable[[], Any]
# Binding of each framework, by the top-level package of a model's class.
_FRAMEWORKS = {
    "torch": "attncheck.models.torch:TorchModel",
    "flax": "attncheck.models.flax:flax_model",
    "keras": "attncheck.models.keras:KerasModel",
}


class ModelBinding(abc.ABC):
    """Interface between a framework and the inspection of models.

    Parameters
    ----------
    make : callable
        Returns a new model.
    inputs : mapping, sequence or None
        Inputs of one call, by argument name or in order; None for a model with default inputs.
    call : callable, optional
        ``call(model, *inputs)``, if not ``model(*inputs)``.
    """

    #: Class of the bindings to single modules of a model.
    layers: Any

    def __init__(
        self,
        make: Callable[..., Any],
        inputs: Mapping[str, Any] | Sequence[Any] | None,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.make, self.inputs, self.call = make, inputs, call

    @abc.abstractmethod
    def fresh(self, seed: int) -> Any:
        """Return a newly initialised model, determined by the seed."""

    def kind(self, model: Any) -> str:
        """Return the class of a model."""
        return type(model).__name__

    def calls(self, model: Any) -> Sequence[ModuleCall]:
        """Return the calls of modules in a forward pass on the first sequence, in the order in which they start."""
        return paired(self.recorded(model, 1), self.recorded(model, 2))

    @abc.abstractmethod
    def recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        """Record a forward pass on a batch of `sequences` copies of the first sequence, or on all inputs for None."""

    @abc.abstractmethod
    def module(self, model: Any, name: str) -> Any:
        """Return the module of that name."""

    def replayed(self, call: ModuleCall, modules: Sequence[Any]) -> Binding:
        """Return the binding that repeats a recorded call on `modules`, the draws of the called module."""
        assert call.given is not None
        binding: Binding = self.layers(lambda: self.made(call, modules), call.given.width, call.given.replay)
        binding.draws, binding.lengths = modules, call.given.lengths
        return binding

    def made(self, call: ModuleCall, modules: Sequence[Any]) -> Any:
        """Return the module to call, given its draws."""
        return modules[0]

    @abc.abstractmethod
    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with a sample of at most `most` entries."""

    def called(self, model: Any, sequences: int | None = None) -> Any:
        """Call the model on its inputs, or on a batch of `sequences` copies of the first sequence."""
        args, kwargs = sequences_of(self.inputs or (), sequences)
        tensor = functools.partial(self.tensor, model)
        called = model if self.call is None else functools.partial(self.call, model)
        return in_words("model", called, *map(tensor, args), **{name: tensor(each) for name, each in kwargs.items()})

    def tensor(self, model: Any, value: Any) -> Any:
        """Return an input in the form that the model takes."""
        return value

    def unused(self, model: Any) -> frozenset[str] | None:
        """Return the names of parameters that do not affect the outputs, or None if unknown."""
        return None

    def steady(self, model: Any) -> bool | None:
        """Return whether two calls with the same inputs agree, or None if unknown."""
        return None

    def numbers(self, model: Any) -> Mapping[str, float]:
        """Return the numbers of a model's configuration, by name."""
        return {}


def bound_model(
    make: Any, inputs: Inputs | None, call: Callable[..., Any] | None, seed: int
) -> tuple[ModelBinding, Any]:
    """Return the binding to the models that `make` returns, and the first model.

    Raises
    ------
    InputError
        If `make` returns no model of a supported framework.

    Examples
    --------
    >>> bound_model(lambda: 3, None, None, 0)
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: make=3: is not a model of torch, flax, keras; return one, or pass width= to ...
    """
    if call is not None and not callable(call):
        refuse("call", call, "is not a function", "pass call=lambda model, ...: ..., or omit it")
    if not callable(make) or home_of(make):
        refuse("make", type(make).__name__, "is not a function", "pass lambda: ..., which returns a new model")
    inputs = _checked(inputs)
    # A PyTorch model is recognised only once made, so PyTorch is tried first, to avoid making a model twice.
    framework = "flax" if "rngs" in parameters_of(make) else "torch" if "torch" in sys.modules else ""
    if framework == "torch":
        first: ModelBinding = find(_FRAMEWORKS["torch"])(make, inputs, call)
        model = first.fresh(seed)
        if (framework := home_of(model)) == "torch":
            return first, model
    if not framework:
        model = in_words("make", make)
        framework = home_of(model)
    if framework not in _FRAMEWORKS:
        what = f"is not a model of {', '.join(_FRAMEWORKS)}"
        refuse("make", model, what, "return one, or pass width= to inspect a layer")
    if inputs is None and framework != "torch":
        refuse("inputs", None, f"are unknown for a model of {framework}", "pass those of one call, e.g. inputs=(x,)")
    binding: ModelBinding = find(_FRAMEWORKS[framework])(make, inputs, call)
    return binding, binding.fresh(seed)


def _checked(inputs: Any) -> Mapping[str, Any] | Sequence[Any] | None:
    """Return the inputs of a model, wrapping a single array in a tuple."""
    if callable(inputs) and not hasattr(inputs, "shape"):
        inputs = in_words("inputs", inputs)
    if hasattr(inputs, "shape"):
        inputs = (inputs,)
    if inputs is None or (isinstance(inputs, Mapping | tuple | list) and len(inputs)):
        for each in inputs.values() if isinstance(inputs, Mapping) else inputs or ():
            if tuple(getattr(each, "shape", ()))[:1] == (0,):
                refuse("inputs", tuple(each.shape), "is the shape of an array without sequences", "pass at least one")
        return inputs
    refuse("inputs", inputs, "are neither arrays by name nor in order", 'pass {"input_ids": ids} or (x,)')
