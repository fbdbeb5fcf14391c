"""Binding to PyTorch."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.frameworks.binding import Arrays, Binding
from attncheck.frameworks.torch_trace import array_of, recorded, traced
from attncheck.frameworks.trace import Trace

_UNWATCHED = re.compile(r"HigherOrderOperator (\w+)")
# Attention implementations of transformers to select.
_IMPLEMENTATIONS = ("sdpa", "eager")
_WEIGHTS = "need_weights"


class Torch(Binding):
    """Binding to PyTorch modules, including those of transformers.

    The code paths are "eval" and "train". `MultiheadAttention` adds "eval" with weights returned; modules of
    transformers have both paths for each attention implementation. `make` draws from the global generator.
    """

    def __init__(self, make: Callable[[], Any], width: int, call: Callable[..., Any] | None = None) -> None:
        self.make, self.call = make, call
        module = self.init(0)
        if not isinstance(module, torch.nn.Module):
            refuse("make", module, "is not a torch.nn.Module", "return one")
        refuse_without_numbers(module)
        self._dtype, self._device = place_of(module)
        self.precision = float(torch.finfo(self._dtype).eps) / 2
        self.fills = True
        self.paths = ("eval", "train")
        if isinstance(module, torch.nn.MultiheadAttention) and call is None:
            self.paths += (f"eval, {_WEIGHTS}",)
        configurations = _configurations(module)
        self._implemented = bool(configurations)
        if self._implemented:
            own = configurations[0]._attn_implementation
            names = sorted(_IMPLEMENTATIONS, key=lambda name: name != own)
            self.paths = tuple(f"{mode}, {name}" for name in names for mode in ("eval", "train"))
            self.spare = frozenset(path for path in self.paths if not path.endswith(names[0]))

    def init(self, seed: int) -> Any:
        """Return a freshly initialised module; the global generator is restored."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = self.make()
        return getattr(module, "_orig_mod", module)  # undoes torch.compile

    def run(self, state: Any, x: FloatArray, trace: Trace, path: str = "eval") -> FloatArray:
        """Return the output, and report the forward pass to a trace."""
        try:
            return self._output(state, x, path, trace)
        except NotImplementedError as error:  # PyTorch cannot trace some operators
            if (found := _UNWATCHED.search(str(error))) is None:
                raise
            remedy = "call scaled_dot_product_attention, or test it by sampling: pass a simulator to attncheck.check"
            refuse("call", found[1], "is a single PyTorch operation, which cannot be inspected", remedy)

    def random(self, state: Any, x: FloatArray, path: str = "eval") -> bool:
        """Return whether a call draws from PyTorch's generators."""
        cuda = self._device.type == "cuda"
        states = (torch.get_rng_state, *((lambda: torch.cuda.get_rng_state(self._device),) if cuda else ()))
        with torch.random.fork_rng():
            before = [each() for each in states]
            self._output(state, x, path)
            return not all(torch.equal(old, each()) for old, each in zip(before, states, strict=True))

    def _given(self, *tensors: Any) -> None:
        """Record the unit roundoff of attention's inputs, which autocast may make coarser."""
        coarse = (float(torch.finfo(each.dtype).eps) / 2 for each in tensors if each.is_floating_point())
        self.precision = max((self.precision, *coarse))

    def attended(self, state: Any, arrays: Arrays, x: FloatArray, path: str = "eval") -> tuple[FloatArray, ...]:
        """Return outputs, queries, keys and values of N modules; see `Binding.attended`."""
        whole = _CallableModule(state, functools.partial(self._called, weights=_WEIGHTS in path))
        values = {
            id(own): torch.as_tensor(arrays[name], dtype=own.dtype, device=own.device)
            for name, own in state.named_parameters()
        }
        # One name per module: under several names, PyTorch would set its parameters twice, and restore the wrong ones.
        held = {
            ".".join(filter(None, ("held", at, name))): values[id(parameter)]
            for at, module in state.named_modules()
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        }
        many = recorded(functools.partial(torch.func.functional_call, whole, tie_weights=False))
        with self._ready(state, path):
            return tuple(map(array_of, many(held, self._tensor(x))))

    def unused(self, state: Any, x: FloatArray, path: str = "eval") -> tuple[str, ...]:
        """Return the names of parameters without a gradient."""
        state.train(path.startswith("train"))
        return without_gradient(state, lambda: self._called(state, self._tensor(x), _WEIGHTS in path)) or ()

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the parameters by name, shared ones under each of their names."""
        return {name: array_of(p) for name, p in state.named_parameters(remove_duplicate=False)}

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return the module itself, with the given parameters assigned."""
        with torch.no_grad():
            for name, parameter in state.named_parameters():
                parameter.copy_(torch.as_tensor(arrays[name]))
        return state

    def _output(self, module: Any, x: FloatArray, path: str, trace: Trace | None = None) -> FloatArray:
        given = self._tensor(x)
        with self._ready(module, path), traced(trace or Trace(), module, given, self._given):
            made = self._called(module, given, _WEIGHTS in path)
        return array_of(made) if isinstance(made, torch.Tensor) else made

    def _tensor(self, x: FloatArray) -> Any:
        return torch.as_tensor(x, dtype=self._dtype, device=self._device)

    @contextlib.contextmanager
    def _ready(self, module: Any, path: str) -> Iterator[None]:
        """Set the mode of a code path and disable gradients in this context."""
        module.train(path.startswith("train"))
        with torch.no_grad(), _implementation(module, path) if self._implemented else contextlib.nullcontext():
            yield

    def _called(self, module: Any, x: Any, weights: bool) -> Any:
        if self.call is not None:
            return self.call(module, x)
        if isinstance(module, torch.nn.MultiheadAttention):
            return module(x, x, x, need_weights=weights)[0]
        made = module(x)
        made = getattr(made, "last_hidden_state", made)
        return made[0] if isinstance(made, tuple) else made


class _CallableModule(torch.nn.Module):
    """Module whose forward method calls a function of another module, so that parameters can be replaced."""

    def __init__(self, held: torch.nn.Module, called: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.held, self.called = held, called

    def forward(self, x: Any) -> Any:
        return self.called(self.held, x)


@contextlib.contextmanager
def _implementation(module: Any, path: str) -> Iterator[None]:
    """Select the attention implementation of transformers that a code path names, within this context."""
    found = _configurations(module)
    before = [each._attn_implementation for each in found]
    for each in found:
        each._attn_implementation = path.rpartition(", ")[2]
    try:
        yield
    finally:
        for each, name in zip(found, before, strict=True):
            each._attn_implementation = name


def _configurations(module: Any) -> list[Any]:
    """Return a module's transformers configurations."""
    held = (getattr(each, "config", None) for each in module.modules())
    return list({id(c): c for c in held if hasattr(c, "_attn_implementation")}.values())


def refuse_without_numbers(module: Any) -> None:
    """Refuse compiled modules, and modules on the meta device, whose parameters hold no numbers."""
    if any(isinstance(each, torch.jit.ScriptModule) for each in module.modules()):
        refuse("make", type(module).__name__, "is compiled, which hides what it computes", "pass it uncompiled")
    if any(each.is_meta for each in module.parameters()):
        refuse("make", "meta", "is a device that holds no numbers", "make the module on the CPU")


def without_gradient(module: Any, call: Callable[[], Any]) -> tuple[str, ...] | None:
    """Return the names of parameters on which no output of a call depends, or None if there is no backward pass."""
    wanted = {name: each for name, each in module.named_parameters() if each.requires_grad}
    with torch.enable_grad(), torch.random.fork_rng():
        made = [y for y in tree_leaves(call()) if isinstance(y, torch.Tensor) and y.requires_grad]
        if not made:
            return None
        total = sum(y.float().sum() for y in made)
        try:
            gradients = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
        except Exception:  # a custom backward pass may fail in any way
            return None
    return tuple(name for name, found in zip(wanted, gradients, strict=True) if found is None)


def place_of(module: Any) -> tuple[Any, Any]:
    """Return the dtype and device of the weights."""
    for each in module.parameters():
        if each.is_floating_point():
            return each.dtype, each.device
    return torch.get_default_dtype(), torch.device("cpu")


def tensor_of(module: Any, value: Any) -> Any:
    """Move an array or tensor to a module's device, and real numbers to its precision; keep other values unchanged."""
    value = torch.as_tensor(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, torch.Tensor):
        return value
    dtype, device = place_of(module)
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)
