"""Listening to the calls of keras layers in a forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from attncheck.frameworks.trace import ModuleListener, heard, replaced

# Attributes that list sublayers known under other names.
_LISTS = ("_layers", "_functional", "_modules")


def named_layers(layer: Any) -> list[tuple[str, Any]]:
    """Return a layer and its sublayers by attribute path, since keras numbers names globally."""
    found: dict[int, tuple[str, Any]] = {}

    def visit(name: str, each: Any) -> None:
        if isinstance(each, keras.layers.Layer):
            if id(each) not in found:
                found[id(each)] = (name, each)
                # On torch, attributes that are layers are stored as submodules.
                own = {**vars(each), **vars(each).get("_modules", {})}
                for key, held in ((key, held) for key, held in own.items() if key not in _LISTS):
                    visit(f"{name}.{key.lstrip('_')}".lstrip("."), held)
                for place, held in enumerate(each._layers):
                    visit(f"{name}.{place}".lstrip("."), held)
        elif isinstance(each, list | tuple):
            for place, held in enumerate(each):
                visit(f"{name}.{place}", held)
        elif isinstance(each, dict):
            for key, held in each.items():
                visit(f"{name}.{key}", held)

    visit("", layer)
    return list(found.values())


@contextlib.contextmanager
def layers_heard(model: Any, listener: ModuleListener) -> Iterator[None]:
    """Notify a listener of the calls of a layer and of all layers in it."""
    names = {id(each): name for name, each in named_layers(model)}
    kind = keras.layers.Layer
    with replaced(kind, "__call__", heard(kind.__call__, names, listener)):
        yield
