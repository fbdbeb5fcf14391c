"""Modules of flax, linen and nnx, heard in a forward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
from flax import nnx

from attncheck.frameworks.jax_softmax import replaced
from attncheck.frameworks.trace import ModuleListener


@contextlib.contextmanager
def linen_heard(listener: ModuleListener) -> Iterator[None]:
    """Let a listener hear of the calls of all linen modules."""

    def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return method(*args, **kwargs)
        listener.begins(".".join(context.module.path), context.module, args, kwargs)
        made = method(*args, **kwargs)
        listener.ends(context.module, args, made)
        return made

    with nn.intercept_methods(intercept):
        yield


@contextlib.contextmanager
def nnx_heard(model: Any, listener: ModuleListener) -> Iterator[None]:
    """Let a listener hear of the calls of an nnx model and of all modules in it."""
    named = [(".".join(map(str, path)), each) for path, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)]
    names = {id(each): name for name, each in named}
    with contextlib.ExitStack() as stack:
        for kind in {type(each) for _, each in named}:
            if "__call__" in dir(kind):
                stack.enter_context(replaced(kind, "__call__", heard(kind.__call__, names, listener)))
        yield


def heard(own: Callable[..., Any], names: Mapping[int, str], listener: ModuleListener) -> Callable[..., Any]:
    """Return the call of a class of modules that a listener hears; `names` are by the identity of a module."""

    @functools.wraps(own)
    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in names:
            return own(module, *args, **kwargs)
        listener.begins(names[id(module)], module, args, kwargs)
        made = own(module, *args, **kwargs)
        listener.ends(module, args, made)
        return made

    return called
