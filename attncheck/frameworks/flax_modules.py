"""Listening to the calls of flax modules (linen and nnx) in a forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
from flax import nnx

from attncheck.frameworks.trace import ModuleListener, heard, replaced


@contextlib.contextmanager
def linen_heard(listener: ModuleListener) -> Iterator[None]:
    """Notify a listener of the calls of all linen modules."""

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
    """Notify a listener of the calls of an nnx model and of all modules in it."""
    named = [(".".join(map(str, path)), each) for path, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)]
    names = {id(each): name for name, each in named}
    with contextlib.ExitStack() as stack:
        for kind in {type(each) for _, each in named}:
            if "__call__" in dir(kind):
                stack.enter_context(replaced(kind, "__call__", heard(kind.__call__, names, listener)))
        yield
