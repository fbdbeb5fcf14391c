"""Softmaxes of eager forward passes in JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from attncheck.frameworks.trace import Trace, replaced

_OWN_ATTENTION, _OWN_SOFTMAX = jax.nn.dot_product_attention, jax.nn.softmax


@contextlib.contextmanager
def softmax_traced(trace: Trace, *modules: Any) -> Iterator[None]:
    """Report every softmax, also inside JAX's attention, to a trace that uses these events.

    `modules` are Python modules other than `jax.nn` that have their own softmax.
    """
    if not trace.uses("softmax"):
        yield
        return

    def softmax(x: Any, axis: Any = -1, *args: Any, **kwargs: Any) -> Any:
        if isinstance(axis, int):
            trace.softmax(np.asarray(x, float), axis % x.ndim - x.ndim)
        return _OWN_SOFTMAX(x, axis, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for module in (jax.nn, *modules):
            if hasattr(module, "softmax"):
                stack.enter_context(replaced(module, "softmax", softmax))
        stack.enter_context(replaced(jax.nn, "dot_product_attention", _attention))
        yield


def _attention(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, **options: Any) -> Any:
    """Compute JAX's attention, (batch, positions, heads, head_dim), with a softmax that is reported."""
    known = {"scale", "is_causal", "implementation"}
    if query.ndim != 4 or any(argument is not None for name, argument in options.items() if name not in known):
        return _OWN_ATTENTION(query, key, value, bias, mask, **options)
    repeats = query.shape[2] // key.shape[2]
    key, value = (jax.numpy.repeat(argument, repeats, axis=2) for argument in (key, value))
    scale = options.get("scale") or query.shape[-1] ** -0.5
    scores = jax.numpy.einsum("bqhd,bkhd->bhqk", query, key) * scale
    scores = scores if bias is None else scores + bias
    visible = jax.numpy.ones(scores.shape[-2:], dtype=bool)
    visible = jax.numpy.tril(visible) if options.get("is_causal") else visible
    visible = visible if mask is None else visible & mask
    weights = jax.nn.softmax(jax.numpy.where(visible, scores, -jax.numpy.inf), axis=-1)
    return jax.numpy.einsum("bhqk,bkhd->bqhd", weights, value)
