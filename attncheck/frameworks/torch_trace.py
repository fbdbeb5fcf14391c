"""Attention cores of PyTorch forward passes, recognised by their dataflow."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.backends import mha
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks.trace import AttentionCore, Trace, leaves_of

#: PyTorch's own attention, kept while it is replaced.
ATTENTION = functional.scaled_dot_product_attention
_DROPOUTS = (functional.dropout, torch.dropout)
_SOFTMAX = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)
# Matrix products, with the index of their first factor.
_PRODUCTS = {
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.bmm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.baddbmm.default: 1,
}

# Operations that keep attention linear.
_MOVES = ("alias", "clone", "copy", "detach", "expand", "permute", "reshape", "slice", "split", "squeeze", "t", "to")
_LINEAR = (*_MOVES, "transpose", "unsafe_view", "unsqueeze", "view", "add", "div", "mul", "neg", "sub")


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """A matrix product, (N, r, c) times (N, c, s), from which a tensor is derived.

    `from_inputs` tells whether both factors depend on the inputs, `softmax` whether a softmax follows, and `linear`
    whether only linear operations follow.
    """

    left: Any
    right: Any
    from_inputs: bool
    softmax: bool = False
    linear: bool = True

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.left.shape[-2], self.right.shape[-1]


class SoftmaxMode(TorchDispatchMode):
    """Report every softmax to a trace."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _SOFTMAX:
            self.trace.softmax(array_of(args[0]), args[1] % args[0].ndim - args[0].ndim)
        return function(*args, **(kwargs or {}))


class CoreMode(TorchDispatchMode):
    """Follow the inputs through a forward pass, and report every attention core to a trace.

    An attention core consists of a matrix product, operations without products, and a second product with another
    tensor that depends on the inputs. Both factors of the first product depend on the inputs, or a softmax lies between
    the products. A first product over positions with only linear operations after it belongs to linear attention.
    """

    def __init__(self, trace: Trace, inputs: Any, on_core: Callable[..., None]) -> None:
        super().__init__()
        self._trace, self._on_core = trace, on_core
        self._paused, self._length = False, inputs.shape[1]
        self._count = 0
        # Maps the storage address of each tensor that depends on the inputs to the product from which it is derived, or
        # None. Addresses are used because views and in-place changes keep them.
        self._from: dict[int, Product | None] = {_address(inputs): None}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if self._paused:  # operations inside PyTorch's own attention are not followed
            return result
        addresses = [_address(tensor) for tensor in tensors_of((args, kwargs), real=False)]
        followed = [self._from[address] for address in addresses if address in self._from]
        origin = next((leaf for leaf in followed if leaf is not None), None)
        if origin is not None and function not in _PRODUCTS:
            linear = origin.linear and function.overloadpacket.__name__.strip("_") in _LINEAR
            origin = dataclasses.replace(origin, softmax=origin.softmax or function in _SOFTMAX, linear=linear)
        elif function in _PRODUCTS and followed:
            first, second = args[_PRODUCTS[function] :][:2]
            result, origin = self._multiplied(first, second, result)
        for tensor in tensors_of(result, real=False):
            if followed:
                self._from[_address(tensor)] = origin
            else:
                self._from.pop(_address(tensor), None)
        return result

    def _multiplied(self, first: Any, second: Any, result: Any) -> tuple[Any, Product | None]:
        """Return the result of a matrix product, and the product if it may start an attention core."""
        origins = [self._open(factor) for factor in (first, second)]
        if (origins[0] is None) != (origins[1] is None):
            transposed = origins[0] is None
            weights, value = (second.mT, first.mT) if transposed else (first, second)
            scored = origins[1] if transposed else origins[0]
            assert scored is not None
            if _fits(scored, weights) and not (scored.linear and scored.left.shape[-1] == self._length):
                query, key = scored.left, scored.right.mT
                if scored.size != weights.shape[-2:]:  # the first factor contains the keys
                    query, key = key, query
                heads = self._answered(query, key, value, weights, result.mT if transposed else result)
                return (heads.mT.contiguous() if transposed else heads), None
        both = all(_address(factor) in self._from for factor in (first, second))
        return result, Product(first, second, both)

    def _open(self, tensor: Any) -> Product | None:
        """Return the product of queries and keys from which a tensor is derived, or None."""
        product = self._from.get(_address(tensor))
        return product if product is not None and (product.from_inputs or product.softmax) else None

    def _answered(self, query: Any, key: Any, value: Any, weights: Any, result: Any) -> Any:
        """Report an attention core, and return the result that the trace gives in its place, else `result`."""
        self._on_core(query, key, value)
        # Plain matrices get a leading axis.
        q, k, v, w = (a if a.ndim > 2 else a[None] for a in map(array_of, (query, key, value, weights)))
        heads = self._trace.core(AttentionCore(q, k, v, w, self._count))
        self._count += 1
        if heads is None:
            return result
        heads = np.ascontiguousarray(heads).reshape(result.shape)
        return torch.as_tensor(heads, dtype=result.dtype, device=result.device)

    def attend(
        self, query: Any, key: Any, value: Any, mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute PyTorch's attention without dropout, and report it."""
        args = (kwargs.pop("attn_mask", mask), 0.0, *args)
        self._paused = True
        try:
            with torch._C.DisableTorchFunction():
                result = ATTENTION(query, key, value, *args, **kwargs)
                # If the values are unit vectors, attention returns its weights.
                units = torch.eye(key.shape[-2], dtype=value.dtype, device=value.device)
                units = units.expand(*value.shape[:-2], *units.shape)
                weights = ATTENTION(query, key, units, *args, **kwargs)
        finally:
            self._paused = False
        result = self._answered(query, key, value, weights, result)
        self._from[_address(result)] = None
        return result


def _fits(scored: Product, weights: Any) -> bool:
    """Return whether weights have the shape of the scores `scored`, or that of their transpose."""
    rows, columns = scored.size
    shapes = ((rows, columns), (columns, rows))
    number = scored.left.shape[:-2].numel() * rows * columns
    return weights.shape[-2:] in shapes and weights.numel() == number


def tensors_of(value: Any, real: bool = True) -> list[Any]:
    """Return the tensors in nested containers, or only those of real numbers."""
    tensors = (leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor))
    return [tensor for tensor in tensors if tensor.is_floating_point() or not real]


def _address(tensor: Any) -> int:
    """Return the storage address of a tensor."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # a tensor without storage
        return -id(tensor)


class _Attention(TorchFunctionMode):
    """Mode that calls `attend` in place of PyTorch's attention, however it was imported, and skips dropout.

    The mode does not suffice alone: `MultiheadAttention` calls the function outside of the mode, and uses a fused
    kernel in inference.
    """

    def __init__(self, attend: Callable[..., Any]) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is ATTENTION:
            return self.attend(*args, **(kwargs or {}))
        if function in _DROPOUTS:
            return args[0]
        return function(*args, **(kwargs or {}))


def _reported(trace: Trace, *args: Any, **kwargs: Any) -> Any:
    """Call PyTorch's attention, and report the call to a trace."""
    trace.attends()
    return ATTENTION(*args, **kwargs)


@contextlib.contextmanager
def traced(
    trace: Trace, model: Any = None, inputs: Any = None, on_core: Callable[..., None] = lambda *_: None
) -> Iterator[None]:
    """Report a forward pass to a trace.

    Parameters
    ----------
    trace : Trace
    model : torch.nn.Module, optional
        The module that runs; without it, calls of modules are not reported.
    inputs : torch.Tensor, optional
        Inputs of the forward pass, (batch, positions, n); without them, cores are not reported. With them, attention
        runs without dropout.
    on_core : callable, optional
        Called with the queries, keys and values of every core, as tensors.

    Examples
    --------
    >>> from attncheck.frameworks.trace import CoreTrace
    >>> x = torch.randn(2, 3, 8)
    >>> trace = CoreTrace()
    >>> with traced(trace, inputs=x):
    ...     y = (x @ x.mT).softmax(-1) @ x
    >>> trace.cores[0].weights.shape, np.allclose(trace.cores[0].heads, y, atol=1e-5)
    ((2, 3, 3), True)
    """
    with contextlib.ExitStack() as stack:
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())  # fused kernels show no softmax
        if model is not None and (trace.uses("begins") or trace.uses("ends")):
            for name, module in model.named_modules():
                pre_hook = functools.partial(trace.begins, name)
                stack.callback(module.register_forward_pre_hook(pre_hook, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(trace.ends).remove)
        if trace.uses("attends"):
            stack.enter_context(_Attention(functools.partial(_reported, trace)))
        if trace.uses("softmax"):
            mha.set_fastpath_enabled(False)
            for context in (sdpa_kernel(SDPBackend.MATH), SoftmaxMode(trace)):
                stack.enter_context(context)
        if inputs is not None and trace.uses("core"):
            mode = CoreMode(trace, inputs, on_core)
            kernel = mock.patch.object(functional, "scaled_dot_product_attention", mode.attend)
            mha.set_fastpath_enabled(False)
            for context in (kernel, _Attention(mode.attend), mode):
                stack.enter_context(context)
        yield


def array_of(tensor: Any) -> FloatArray:
    """Return a tensor as a NumPy array."""
    return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())
