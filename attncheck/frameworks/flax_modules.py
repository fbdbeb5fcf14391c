"""Forward passes of flax modules (linen and nnx), reported to a trace: calls of modules and softmaxes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
from flax import nnx

from attncheck.frameworks.jax_softmax import softmax_traced
from attncheck.frameworks.trace import Trace, replaced, traced_calls


@contextlib.contextmanager
def linen_traced(trace: Trace) -> Iterator[None]:
    """Report the calls of all linen modules, and softmaxes."""

    def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name != "__call__":
            return method(*args, **kwargs)
        trace.begins(".".join(context.module.path), context.module, args, kwargs)
        made = method(*args, **kwargs)
        trace.ends(context.module, args, made)
        return made

    with softmax_traced(trace, nn, nnx), nn.intercept_methods(intercept):
        yield


@contextlib.contextmanager
def nnx_traced(trace: Trace, model: Any) -> Iterator[None]:
    """Report the calls of an nnx model and of all modules in it, and softmaxes."""
    named = [(".".join(map(str, path)), each) for path, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)]
    names = {id(each): name for name, each in named}
    with softmax_traced(trace, nn, nnx), contextlib.ExitStack() as stack:
        for kind in {type(each) for _, each in named}:
            if "__call__" in dir(kind):
                stack.enter_context(replaced(kind, "__call__", traced_calls(kind.__call__, names, trace)))
        yield
