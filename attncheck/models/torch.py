"""Binding to PyTorch models."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from attncheck._lib.errors import InputError
from attncheck.frameworks.binding import in_words
from attncheck.frameworks.torch import Torch, refuse_without_numbers, tensor_of, without_gradient
from attncheck.frameworks.torch_trace import array_of, traced
from attncheck.frameworks.trace import replaced
from attncheck.models.binding import ModelBinding
from attncheck.models.calls import CallRecorder, ModuleCall, paired
from attncheck.models.default_inputs import default_inputs
from attncheck.models.parameters import Parameter, places_of

# Layers whose weights are (outputs, inputs), and whose default initialiser is uniform of variance 1/(3 fan_in).
_PROJECTIONS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


class _CalledModule(Torch):
    """Binding to a module that keeps the attention implementation that its model selects."""

    def __init__(self, make: Callable[[], Any], width: int, call: Callable[..., Any]) -> None:
        super().__init__(make, width, call)
        self.paths, self.spare, self._implemented = ("eval", "train"), frozenset(), False


class TorchModel(ModelBinding):
    """Binding to the models that ``make()`` returns; `inputs` are arrays or tensors by argument name, or in order."""

    layers = _CalledModule

    def fresh(self, seed: int) -> Any:
        """Return a newly initialised model, in which NaN marks entries that no initialiser wrote."""
        with torch.random.fork_rng(), _unwritten_as_nan():
            torch.manual_seed(seed)
            model = in_words("make", self.make)
        model = getattr(model, "_orig_mod", model)  # undoes torch.compile
        if not isinstance(model, torch.nn.Module):
            return model
        refuse_without_numbers(model)
        if any(isinstance(each, torch.nn.parameter.UninitializedParameter) for each in model.parameters()):
            with torch.no_grad():
                self.called(model, 1)  # determines the shapes of lazy parameters
        return model.eval()

    def calls(self, model: Any) -> Sequence[ModuleCall]:
        """Return the calls of modules in a forward pass on the first sequence."""
        try:
            return super().calls(model)
        except InputError:  # no axis of the inputs is the batch
            whole = self.recorded(model, None)
            return paired(whole, whole)

    def recorded(self, model: Any, sequences: int | None) -> CallRecorder:
        """Return the calls of modules in a forward pass."""
        recorder = CallRecorder("forward")
        with torch.no_grad(), traced(recorder, model):
            self.called(model, sequences)
        return recorder

    def module(self, model: Any, name: str) -> Any:
        """Return the module of that name."""
        return model.get_submodule(name)

    def parameters(self, model: Any, most: int) -> Sequence[Parameter]:
        """Return all parameters, each with a sample of at most `most` entries; set uninitialised entries to 0."""
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        owners = {f"{at}.{name}".lstrip("."): each for at, each in model.named_modules() for name in each._parameters}
        found = []
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                found.append(_described(owners[name], name, parameter.detach(), tuple(names[id(parameter)][1:]), most))
                parameter.detach().nan_to_num_(0.0)
        return found

    def unused(self, model: Any) -> frozenset[str] | None:
        """Return the names of parameters without a gradient."""
        found = without_gradient(model, lambda: self.called(model))
        return None if found is None else frozenset(found)

    def steady(self, model: Any) -> bool | None:
        """Return whether two calls with the same inputs agree."""
        with torch.no_grad(), torch.random.fork_rng():
            made = [[y for y in tree_leaves(self.called(model)) if isinstance(y, torch.Tensor)] for _ in range(2)]
        pairs = zip(*made, strict=False)
        return all(one.shape == other.shape and one.allclose(other, equal_nan=True) for one, other in pairs)

    def numbers(self, model: Any) -> Mapping[str, float]:
        """Return the numbers of a transformers configuration."""
        config = getattr(model, "config", None)
        held = {} if config is None or not hasattr(config, "to_dict") else config.to_dict()
        return {n: v for n, v in held.items() if isinstance(v, int | float) and not isinstance(v, bool)}

    def called(self, model: Any, sequences: int | None = None) -> Any:
        """Call the model on its inputs, or on a batch of `sequences` copies of the first sequence."""
        if self.inputs is None:
            self.inputs = default_inputs(model)
        with _without_cache(model):
            return super().called(model, sequences)

    def tensor(self, model: Any, value: Any) -> Any:
        """Return an input on the model's device."""
        return tensor_of(model, value)


def _described(owner: Any, name: str, parameter: Any, tied: tuple[str, ...], most: int) -> Parameter:
    """Describe a parameter of a module; `tied` are its other names."""
    shape, kind, own = tuple(parameter.shape), _kind(owner), name.rpartition(".")[2]
    fans = _fans(owner, own, shape)
    entries = parameter
    padding = getattr(owner, "padding_idx", None)
    if padding is not None and padding < len(entries) and not entries[padding].any():
        entries = torch.cat([entries[:padding], entries[padding + 1 :]])
    flat = entries.reshape(-1)
    # A sum needs no memory; if it is finite, so are all entries.
    finite = bool(flat.sum().isfinite())
    infinite = flat[:0] if finite else flat[~flat.isfinite()][:1]
    return Parameter(
        name,
        shape,
        kind,
        fans,
        (np.concatenate([array_of(flat[places_of(len(flat), most)]), array_of(infinite)]),),
        tied,
        initialised=finite or not bool(entries.isnan().any()),
        default=_default(owner, own, fans),
        precision=float(torch.finfo(entries.dtype).eps) / 2,
    )


def _kind(module: Any) -> str:
    """Return the name of the class that PyTorch documents, or of the module's own."""
    documented = (each.__name__ for each in type(module).__mro__ if getattr(torch.nn, each.__name__, None) is each)
    found = next(documented, "Module")
    return type(module).__name__ if found == "Module" else found


def _fans(owner: Any, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the fans of a weight, if the class of its module says which axis is which."""
    if len(shape) < 2:
        return None
    if isinstance(owner, _PROJECTIONS) and name == "weight":
        size = math.prod(shape[2:])
        return shape[1] * size, shape[0] * size
    if isinstance(owner, torch.nn.MultiheadAttention) and name.endswith("proj_weight"):
        return shape[1], shape[0]
    if type(owner).__name__ == "Conv1D" and name == "weight":  # of transformers: (inputs, outputs)
        return shape[0], shape[1]
    return None


def _default(owner: Any, name: str, fans: tuple[int, int] | None) -> tuple[str, float] | None:
    """Return the law and standard deviation of PyTorch's own initialiser, for layers with a random one."""
    if isinstance(owner, _PROJECTIONS):
        fan_in = (fans or _fans(owner, "weight", tuple(owner.weight.shape)) or (1, 1))[0]
        return "uniform", (3 * fan_in) ** -0.5
    if isinstance(owner, torch.nn.Embedding):
        return "normal", 1.0
    if isinstance(owner, torch.nn.MultiheadAttention) and name == "in_proj_weight" and fans is not None:
        return "uniform", math.sqrt(2 / sum(fans))
    return None


@contextlib.contextmanager
def _without_cache(model: Any) -> Iterator[None]:
    """Disable the key-value cache of a model of the library transformers in this context."""
    config = getattr(model, "config", None)
    nested = [] if config is None else vars(config).values()
    with contextlib.ExitStack() as stack:
        for each in (config, *nested):
            if getattr(each, "use_cache", False):
                stack.enter_context(replaced(each, "use_cache", False))
        yield


@contextlib.contextmanager
def _unwritten_as_nan() -> Iterator[None]:
    """Fill new memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills
