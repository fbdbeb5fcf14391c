"""Forward passes of keras layers, reported to a trace: calls of layers, softmaxes and, on torch, attention cores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from attncheck.frameworks.trace import Trace, replaced, traced_calls

# Attributes that list sublayers known under other names.
_LISTS = ("_layers", "_functional", "_modules")


def named_layers(layer: Any) -> list[tuple[str, Any]]:
    """Return a layer and its sublayers by attribute path; layers of a functional model appear under their own names."""
    found: dict[int, tuple[str, Any]] = {}

    def visit(name: str, each: Any) -> None:
        if isinstance(each, keras.layers.Layer):
            if id(each) not in found:
                found[id(each)] = (name, each)
                # On torch, attributes that are layers are stored as submodules.
                own = {**vars(each), **vars(each).get("_modules", {})}
                for key, held in ((key, held) for key, held in own.items() if key not in _LISTS):
                    if key == "_operations":
                        visit(name, _by_name(held))
                    else:
                        visit(f"{name}.{key.lstrip('_')}".lstrip("."), held)
                for place, held in enumerate(each._layers):
                    visit(f"{name}.{place}".lstrip("."), held)
        elif isinstance(each, list | tuple):
            for place, held in enumerate(each):
                visit(f"{name}.{place}", held)
        elif isinstance(each, dict):
            for key, held in each.items():
                visit(f"{name}.{key}".lstrip("."), held)

    visit("", layer)
    return list(found.values())


def _by_name(layers: Sequence[Any]) -> dict[str, Any]:
    """Return the layers of a functional model by name, with number 0 for the first of a kind: "dense_0", "dense_1"."""
    names = {each.name for each in layers}
    numbered = {name.rpartition("_")[0] for name in names if name.rpartition("_")[2].isdigit()}
    first = {name for name in names & numbered if f"{name}_0" not in names}
    return {f"{each.name}_0" if each.name in first else each.name: each for each in layers}


@contextlib.contextmanager
def traced(trace: Trace, model: Any, inputs: Any = None) -> Iterator[None]:
    """Report a forward pass of a layer to a trace; on JAX, cores are reported by `Keras.run` only."""
    with contextlib.ExitStack() as stack:
        if trace.uses("begins"):
            names = {id(each): name for name, each in named_layers(model)}
            kind = keras.layers.Layer
            stack.enter_context(replaced(kind, "__call__", traced_calls(kind.__call__, names, trace)))
        if keras.backend.backend() == "jax":
            from attncheck.frameworks.jax_softmax import softmax_traced

            stack.enter_context(softmax_traced(trace))
        else:
            from attncheck.frameworks import torch_trace

            stack.enter_context(torch_trace.traced(trace, inputs=inputs))
        yield
