"""Adapter to PyTorch."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.names import grouped
from attncheck.frameworks.adapter import Arrays, roundoff
from attncheck.frameworks.framework import FrameworkAdapter, Parameter
from attncheck.frameworks.torch_trace import array_of, tensors_of, traced
from attncheck.frameworks.trace import Trace, first_array

_UNWATCHED = re.compile(r"HigherOrderOperator (\w+)")
# Attention implementations of the transformers library, each a code path.
_IMPLEMENTATIONS = ("sdpa", "eager")
_WEIGHTS = "need_weights"
_HALF = (torch.float16, torch.bfloat16)
# Layers whose weights are (outputs, inputs), and whose default initialiser is uniform of variance 1/(3 fan_in).
_PROJECTIONS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)


class Torch(FrameworkAdapter):
    """Adapter to PyTorch modules, including those of transformers.

    The code paths are "eval" and "train". For `MultiheadAttention`, a third one returns attention weights in evaluation
    mode. Modules of transformers have both paths for each attention implementation. `make` draws from PyTorch's global
    generator.
    """

    method = "forward"
    paths: tuple[str, ...] = ("eval", "train")

    def __init__(self, *options: Any, example: Any = None, **keywords: Any) -> None:
        super().__init__(*options, **keywords)
        if example is None:
            return
        if not isinstance(example, torch.nn.Module):
            refuse("make", example, "is not a torch.nn.Module", "return one")
        self.precision = roundoff(_address_of(example)[0])
        if isinstance(example, torch.nn.MultiheadAttention) and self.call is None:
            self.paths += (f"eval, {_WEIGHTS}",)
        if configurations := _configurations(example):
            default = configurations[0]._attn_implementation
            names = sorted(_IMPLEMENTATIONS, key=lambda name: name != default)
            self.paths = tuple(f"{mode}, {name}" for name in names for mode in ("eval", "train"))
            self.spare = frozenset(path for path in self.paths if not path.endswith(names[0]))

    def make(self, seed: int) -> Any:
        """Return a freshly initialised module; the global generator is restored."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = self.new_module()
            module = getattr(module, "_orig_mod", module)  # undoes torch.compile
            self._refuse_without_numbers(module)
            if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
                with torch.no_grad():
                    self.called(module, self.inputs(module))  # determines the shapes of lazy parameters
        return module

    def _refuse_without_numbers(self, module: Any) -> None:
        """Refuse compiled modules, and modules on the meta device, whose parameters hold no numbers."""
        field = self.fields[0]
        if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
            refuse(field, type(module).__name__, "is compiled, which hides what it computes", "pass it uncompiled")
        if any(part.is_meta for part in module.parameters()):
            refuse(field, "meta", "is a device that holds no numbers", "make the module on the CPU")

    def run(self, module: Any, x: FloatArray, trace: Trace, path: str = "eval") -> Any:
        """Return the output, and report the forward pass to a trace."""
        try:
            return self._output(module, x, path, trace)
        except NotImplementedError as error:  # PyTorch cannot trace some operators
            if (operator := _UNWATCHED.search(str(error))) is None:
                raise
            remedy = "call scaled_dot_product_attention, or test it by sampling: pass a simulator to attncheck.check"
            refuse("call", operator[1], "is a single PyTorch operation, which cannot be inspected", remedy)

    def random(self, module: Any, x: FloatArray, path: str = "eval") -> bool:
        """Return whether a call draws from PyTorch's generators."""
        with torch.random.fork_rng():
            before = _generator_states(module)
            self._output(module, x, path)
            return not all(map(torch.equal, before, _generator_states(module)))

    def unused(self, module: Any, x: FloatArray, path: str = "eval") -> tuple[str, ...]:
        """Return the names of parameters without a gradient."""
        module.train(path.startswith("train"))
        return self.independent(module, lambda: self._first_output(module, self.tensor(module, x), path)) or ()

    def parameters(self, module: Any) -> Mapping[str, FloatArray]:
        """Return the parameters by name, shared ones under each of their names."""
        return {name: array_of(p) for name, p in module.named_parameters(remove_duplicate=False)}

    def fill(self, module: Any, arrays: Arrays) -> Any:
        """Return the module itself, with the given parameters assigned."""
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(torch.as_tensor(arrays[name]))
        return module

    def plain(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a module; `torch.nn.MultiheadAttention` gets a single input as query, key and value."""
        if isinstance(module, torch.nn.MultiheadAttention) and len(args) == 1:
            return module(*args * 3, **{"need_weights": False, **kwargs})
        return module(*args, **kwargs)

    def tensor(self, module: Any, value: Any) -> Any:
        """Move an array or tensor to the module's device, and real numbers to its precision; keep other values."""
        value = torch.as_tensor(value) if isinstance(value, np.ndarray) else value
        if not isinstance(value, torch.Tensor):
            return value
        dtype, device = _address_of(module)
        return value.to(device, dtype) if value.is_floating_point() else value.to(device)

    def numbers(self, tensor: Any) -> FloatArray:
        """Return a tensor as a NumPy array."""
        return array_of(tensor)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Disable gradients, and use one thread, which is faster for small matrices on busy cores."""
        with contextlib.ExitStack() as stack, torch.no_grad():
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            yield

    def traced(self, trace: Trace, model: Any) -> contextlib.AbstractContextManager[None]:
        """Report calls of modules and softmaxes to a trace."""
        return traced(trace, model)

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Return a model's modules by name."""
        return dict(model.named_modules())

    def stored(self, model: Any) -> Iterator[Parameter]:
        """Yield the parameters of a model, and write zeros to uninitialised memory."""
        names = grouped(model.named_parameters(remove_duplicate=False), lambda item: id(item[1]))
        owners = {f"{at}.{name}".lstrip("."): part for at, part in model.named_modules() for name in part._parameters}
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                tied = tuple(other for other, _ in names[id(parameter)][1:])
                yield _stored(owners[name], name, parameter.detach(), tied)
                parameter.detach().nan_to_num_(0.0)

    def evaluated(self, module: Any, single: bool = False) -> Any:
        """Return a module in evaluation mode; `single` replaces half precision by single precision."""
        module = module.float() if single and _address_of(module)[0] in _HALF else module
        return module.eval()

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Fill new memory with NaN."""
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        memory = torch.utils.deterministic
        with contextlib.ExitStack() as stack:
            stack.callback(torch.use_deterministic_algorithms, before[0], warn_only=before[1])
            stack.callback(setattr, memory, "fill_uninitialized_memory", memory.fill_uninitialized_memory)
            torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = True
            yield

    def independent(self, model: Any, outputs: Callable[[], Any]) -> tuple[str, ...] | None:
        """Return the names of parameters without a gradient, or None if there is no backward pass."""
        trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        with torch.enable_grad(), torch.random.fork_rng():
            tensors = [y for y in tensors_of(outputs()) if y.requires_grad]
            if not tensors:
                return None
            total = sum(y.float().sum() for y in tensors)
            try:
                gradients = torch.autograd.grad(total, list(trainable.values()), allow_unused=True)
            except Exception:  # a custom backward pass may fail in any way
                return None
        return tuple(name for name, gradient in zip(trainable, gradients, strict=True) if gradient is None)

    def tokens(self, module: Any) -> int | None:
        """Return the vocabulary size of the first embedding, or None without one."""
        return next((m.num_embeddings for m in module.modules() if isinstance(m, torch.nn.Embedding)), None)

    def address(self, tensor: Any) -> Hashable:
        """Return a tensor's memory address, shape and strides."""
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()

    def trainer(
        self, module: Any, optimizer: Callable[..., Any], loss: Callable[..., Any], data: Sequence[Any]
    ) -> Callable[[], Any]:
        """Return a function that takes a step of a PyTorch optimiser, and returns the module."""
        step: Callable[[], Any] = torch.enable_grad()(super().trainer(module, optimizer, loss, data))
        return step

    def _given(self, *tensors: Any) -> None:
        """Record the unit roundoff of attention's inputs, which may be larger than the module's because of autocast."""
        self.precision = max(self.precision, *(roundoff(t.dtype) for t in tensors if t.is_floating_point()))

    def _output(self, module: Any, x: FloatArray, path: str, trace: Trace | None = None) -> Any:
        tensor = self.tensor(module, x)
        with _on_path(module, path), traced(trace or Trace(), module, tensor, self._given):
            outputs = self._first_output(module, tensor, path)
        return array_of(outputs) if isinstance(outputs, torch.Tensor) else outputs

    def _first_output(self, module: Any, x: Any, path: str) -> Any:
        """Return the outputs of the user's `call`, or else the first array of real numbers among the outputs."""
        outputs = self.apply(module, x, **({_WEIGHTS: True} if _WEIGHTS in path else {}))
        return outputs if self.call is not None else first_array(outputs, outputs)


@contextlib.contextmanager
def _on_path(module: Any, path: str) -> Iterator[None]:
    """Set the mode and attention implementation that a code path names, and disable gradients in this context."""
    module.train(path.startswith("train"))
    implementation = path.rpartition(", ")[2]
    configurations = _configurations(module) if implementation in _IMPLEMENTATIONS else []
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for configuration in configurations:
            stack.callback(setattr, configuration, "_attn_implementation", configuration._attn_implementation)
            configuration._attn_implementation = implementation
        yield


def _configurations(module: Any) -> list[Any]:
    """Return the distinct transformers configurations of a module and its submodules."""
    configs = (getattr(submodule, "config", None) for submodule in module.modules())
    return list({id(c): c for c in configs if hasattr(c, "_attn_implementation")}.values())


def _address_of(module: Any) -> tuple[Any, Any]:
    """Return the dtype and device of a module's first floating-point parameter, or else the defaults."""
    for parameter in module.parameters():
        if parameter.is_floating_point():
            return parameter.dtype, parameter.device
    return torch.get_default_dtype(), torch.device("cpu")


def _generator_states(module: Any) -> list[Any]:
    """Return the states of PyTorch's generators on the CPU and on the module's device."""
    device = _address_of(module)[1]
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _stored(owner: Any, name: str, value: Any, tied: tuple[str, ...]) -> Parameter:
    """Describe the parameter called `name`, with the tensor `value`, of the module `owner`.

    `tied` are the other names of the parameter.
    """
    shape, attribute = tuple(value.shape), name.rpartition(".")[2]
    fans = _fans(owner, attribute, shape)
    padding = getattr(owner, "padding_idx", None)
    if padding is not None and padding < len(value) and not value[padding].any():
        value = torch.cat([value[:padding], value[padding + 1 :]])
    return Parameter(name, shape, _kind(owner), fans, (value,), tied, default=_default(owner, attribute, fans))


def _kind(module: Any) -> str:
    """Return the name of the class in `torch.nn` that a module belongs to or is derived from.

    If that is only `Module`, the name of the module's own class is returned.
    """
    documented = (base.__name__ for base in type(module).__mro__ if getattr(torch.nn, base.__name__, None) is base)
    name = next(documented, "Module")
    return type(module).__name__ if name == "Module" else name


def _fans(owner: Any, name: str, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return (fan_in, fan_out) of a weight, or None if the class of its module does not determine the axes."""
    if len(shape) < 2:
        return None
    if isinstance(owner, _PROJECTIONS) and name == "weight":
        size = math.prod(shape[2:])
        return shape[1] * size, shape[0] * size
    if isinstance(owner, torch.nn.MultiheadAttention) and name.endswith("proj_weight"):
        return shape[1], shape[0]
    if type(owner).__name__ == "Conv1D" and name == "weight":  # of transformers, with shape (inputs, outputs)
        return shape[0], shape[1]
    return None


def _default(owner: Any, name: str, fans: tuple[int, int] | None) -> tuple[str, float] | None:
    """Return the law and standard deviation of PyTorch's default initialiser, or None if the default is not random."""
    if isinstance(owner, _PROJECTIONS):
        fan_in = (fans or _fans(owner, "weight", tuple(owner.weight.shape)) or (1, 1))[0]
        return "uniform", (3 * fan_in) ** -0.5
    if isinstance(owner, torch.nn.Embedding):
        return "normal", 1.0
    if isinstance(owner, torch.nn.MultiheadAttention) and name == "in_proj_weight" and fans is not None:
        return "uniform", math.sqrt(2 / sum(fans))
    return None
