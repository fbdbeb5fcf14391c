"""A user's models in any framework, with the inputs of one call.

Transformers models of text or images need no inputs from the user: their configurations determine them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks.adapter import Adapter, in_words, roundoff
from attncheck.frameworks.framework import (
    MODELS,
    Arguments,
    FrameworkAdapter,
    Parameter,
    framework_of,
    parameters_of,
    recognised,
)
from attncheck.frameworks.trace import leaves_of
from attncheck.models.parameters import indices_of
from attncheck.models.replay import CallRecorder, ModuleCall, paired, sequences_of

Array = np.ndarray[Any, Any]
# Batch size and number of positions of default inputs.
_BATCH, _POSITIONS = 2, 12
#: Arguments that distinguish padding from tokens, with the number that marks a token.
PADDING = {"attention_mask": 1, "key_padding_mask": 0, "src_key_padding_mask": 0}
#: Inputs of a model: by argument name, in order, or a function that returns them.
Inputs = Mapping[str, Any] | Sequence[Any] | Callable[[], Any]


def default_inputs(model: Any) -> Mapping[str, Array]:
    """Return inputs for a transformers model of text or images; refuse other models.

    Examples
    --------
    >>> default_inputs(object())
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: inputs=None: are unknown for a model of class object; pass the inputs of one ...
    """
    name = getattr(model, "main_input_name", None)
    config = getattr(model, "config", None)
    if not isinstance(name, str) or name not in _DEFAULTS or config is None:
        problem = f"are unknown for a model of class {type(model).__name__}"
        remedy = 'pass the inputs of one call, such as inputs={"input_ids": ids} or (x,), --inputs module:function '
        remedy += "in the shell; for a layer, pass width"
        refuse("inputs", None, problem, remedy)
    inputs = {name: _DEFAULTS[name](config)}
    if getattr(config, "is_encoder_decoder", False) and hasattr(model, "get_decoder"):
        inputs["decoder_input_ids"] = _ids(config)
    return inputs


def _ids(config: Any) -> Array:
    """Return token ids without padding."""
    vocabulary = int(_of(config, "vocab_size", "text_config") or 2)
    padding = _of(config, "pad_token_id", "text_config")
    ids = np.arange(_BATCH * _POSITIONS) % vocabulary
    return np.where(ids == padding, (ids + 1) % vocabulary, ids).reshape(_BATCH, _POSITIONS)


def _pixels(config: Any) -> Array:
    size = _of(config, "image_size", "vision_config") or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = int(_of(config, "num_channels", "vision_config") or 3)
    return np.random.default_rng(0).standard_normal((_BATCH, channels, height, width))


def _of(config: Any, name: str, nested: str) -> Any:
    """Return an attribute of a configuration or, if it has none, of the configuration within it called `nested`."""
    attribute = getattr(config, name, None)
    return attribute if attribute is not None else getattr(getattr(config, nested, None), name, None)


_DEFAULTS: Mapping[str, Callable[[Any], Array]] = {"input_ids": _ids, "pixel_values": _pixels}


class ModelFactory:
    """Factory of the models that a user's function returns; it also calls the models.

    Parameters
    ----------
    kind : type
        Adapter class of the models' framework.
    make : callable
        Returns a new model.
    inputs : mapping, sequence or None
        Inputs of one call, by argument name or in order; None for a model with default inputs.
    call : callable, optional
        ``call(model, *inputs)``, if not ``model(*inputs)``.
    """

    def __init__(
        self,
        kind: type[FrameworkAdapter],
        make: Callable[..., Any],
        inputs: Mapping[str, Any] | Sequence[Any] | None,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.inputs, self.padded = _without_padding(inputs)
        self.adapter = kind(make, call, self.arguments, fields=("make", "model"))

    def fresh(self, seed: int) -> Any:
        """Return a newly initialised model, determined by the seed, in evaluation mode."""
        with self.adapter.marking():
            model = self.adapter.make(seed)
        return self.adapter.evaluated(model)

    def arguments(self, model: Any, sequences: int | None = 1) -> Arguments:
        """Return the inputs of a model, cut to the first `sequences` sequences unless `sequences` is None."""
        return sequences_of(default_inputs(model) if self.inputs is None else self.inputs, sequences)

    def outputs(self, model: Any, sequences: int | None = None) -> Any:
        """Return the outputs for all inputs, or for the first `sequences` sequences."""
        return self.outputs_for(model, self.arguments(model, sequences))

    def outputs_for(self, model: Any, arguments: Arguments) -> Any:
        """Return the outputs of a call with these arguments, with the cache of the model switched off."""
        with _without_cache(model):
            return self.adapter.called(model, arguments)

    def calls(self, model: Any) -> Sequence[ModuleCall]:
        """Return the calls of modules in a forward pass on the first sequence, in the order in which they start."""
        try:
            return paired(self._recorded(model, 1), self._recorded(model, 2))
        except InputError:  # the inputs have no batch axis
            recorder = self._recorded(model, None)
            return paired(recorder, recorder)

    def _recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        recorder = CallRecorder(self.adapter.method)
        with self.adapter.running(), self.adapter.traced(recorder, model):
            self.outputs(model, sequences)
        return recorder

    def replayed(self, call: ModuleCall, modules: Sequence[Any]) -> Adapter:
        """Return an adapter that repeats a recorded call; `modules` lists the called module of each draw."""
        assert call.given is not None
        return self.adapter.part(modules, call.given, call.given.lengths)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with a sample of at most `most` entries."""
        return [self._sampled(parameter, most) for parameter in self.adapter.stored(model)]

    def _sampled(self, parameter: Parameter, most: int) -> Parameter:
        numbers, flat = self.adapter.numbers, parameter.entries[0].reshape(-1)
        sample = numbers(flat[indices_of(len(flat), most)])
        # If the sum is finite, all entries are finite, and need not be copied.
        all_numbers = np.zeros(0) if np.isfinite(numbers(flat.sum())) else numbers(flat)
        entries = np.concatenate([sample, all_numbers[~np.isfinite(all_numbers)][:1]])
        written, precision = not np.isnan(all_numbers).any(), roundoff(flat.dtype)
        return dataclasses.replace(parameter, entries=(entries,), initialised=written, precision=precision)

    def unused(self, model: Any) -> tuple[str, ...] | None:
        """Return the names of parameters that do not affect the outputs, or None if unknown."""
        return self.adapter.independent(model, lambda: self.outputs(model))

    def steady(self, model: Any) -> bool:
        """Return whether two calls with the same inputs agree."""
        with self.adapter.running():
            first, second = (self._numbers(self.outputs(model)) for _ in range(2))
        pairs = zip(first, second, strict=False)
        return all(a.shape == b.shape and np.allclose(b, a, equal_nan=True) for a, b in pairs)

    def _numbers(self, outputs: Any) -> list[Any]:
        return [self.adapter.numbers(leaf) for leaf in leaves_of(outputs) if hasattr(leaf, "dtype")]


def _without_padding(inputs: Any) -> tuple[Any, list[str]]:
    """Return inputs whose masks of padding mark all positions as tokens, and the names of the masks that differ.

    Positions that are padded, and so may see nothing, would be read as part of the model's own mask.

    Examples
    --------
    >>> inputs, names = _without_padding({"ids": np.zeros((2, 3)), "attention_mask": np.array([[0, 1, 1], [1, 1, 1]])})
    >>> inputs["attention_mask"].tolist(), names
    ([[1, 1, 1], [1, 1, 1]], ['attention_mask'])
    """
    if not isinstance(inputs, Mapping):
        return inputs, []
    padded = [name for name in PADDING if name in inputs and _marks_padding(name, inputs)]
    return {**inputs, **{name: _filled(inputs[name], PADDING[name]) for name in padded}}, padded


def _marks_padding(name: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an input marks some positions of other inputs as padding, by 0 or 1."""
    if not has_entry_per_token(name, inputs):
        return False
    array = inputs[name]
    return bool(((array == 0) | (array == 1)).all()) and bool((array != PADDING[name]).any())


def has_entry_per_token(name: str, inputs: Mapping[str, Any]) -> bool:
    """Return whether an input is an array, (batch, positions), that has an entry for each position of another input.

    Masks of positions by positions are no such inputs.

    Examples
    --------
    >>> inputs = {"ids": np.zeros((2, 3)), "src_mask": np.ones((2, 3)), "causal_mask": np.tri(3)}
    >>> has_entry_per_token("src_mask", inputs), has_entry_per_token("causal_mask", inputs)
    (True, False)
    """
    shape = tuple(getattr(inputs[name], "shape", ()))
    return len(shape) == 2 and any(
        tuple(getattr(other, "shape", ())[:2]) == shape for key, other in inputs.items() if key != name
    )


def _filled(array: Any, number: int) -> Any:
    """Return an array of the same type and shape, all of whose entries are 0 or 1."""
    if "bool" in str(array.dtype):
        return array | True if number else array & False
    return array * 0 + number


def numbers_of(make: Any, model: Any) -> Mapping[str, float]:
    """Return numbers by name: defaults of the arguments of `make`, and fields of a transformers configuration.

    Examples
    --------
    >>> numbers_of(lambda depth=4, causal=True: None, None)
    {'depth': 4}
    """
    config: Any = getattr(model, "config", None)
    fields = parameters_of(make) | (config.to_dict() if hasattr(config, "to_dict") else {})
    return {n: v for n, v in fields.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def first_model(
    make: Any, inputs: Inputs | None, call: Callable[..., Any] | None, seed: int
) -> tuple[ModelFactory, Any]:
    """Return a factory of the models that `make` returns, and its first model.

    Raises
    ------
    InputError
        If `make` returns no model of a supported framework.

    Examples
    --------
    >>> first_model(lambda: 3, None, None, 0)
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: make=3: is not a module of torch, flax, keras; return one, or pass width= ...
    """
    if call is not None and not callable(call):
        refuse("call", call, "is not a function", "pass call=lambda model, ...: ..., or omit it")
    if not callable(make) or framework_of(make):
        refuse("make", type(make).__name__, "is not a function", "pass lambda: ..., which returns a new model")
    kind = recognised(make, "make", "return one, or pass width= to inspect a layer", MODELS)[0]
    factory = ModelFactory(kind, make, _checked(inputs), call)
    return factory, factory.fresh(seed)


def _checked(inputs: Any) -> Mapping[str, Any] | Sequence[Any] | None:
    """Return the inputs of a model, wrapping a single array in a tuple."""
    if callable(inputs) and not hasattr(inputs, "shape"):
        inputs = in_words("inputs", inputs)
    if hasattr(inputs, "shape"):
        inputs = (inputs,)
    if inputs is None or (isinstance(inputs, Mapping | tuple | list) and len(inputs)):
        for array in inputs.values() if isinstance(inputs, Mapping) else inputs or ():
            if tuple(getattr(array, "shape", ()))[:1] == (0,):
                refuse("inputs", tuple(array.shape), "is the shape of an array without sequences", "pass at least one")
        return inputs
    refuse("inputs", inputs, "is neither a mapping nor a sequence of arrays", 'pass {"input_ids": ids} or (x,)')


@contextlib.contextmanager
def _without_cache(model: Any) -> Iterator[None]:
    """Disable the key-value cache of a transformers model in this context."""
    config = getattr(model, "config", None)
    nested = getattr(config, "__dict__", {}).values()
    with contextlib.ExitStack() as stack:
        for section in (config, *nested):
            if getattr(section, "use_cache", False):
                stack.enter_context(mock.patch.object(section, "use_cache", False))
        yield
