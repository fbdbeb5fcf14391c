"""Listening to the calls of keras layers in a forward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from attncheck.frameworks.trace import ModuleListener, heard, replaced

# Attributes that list sublayers known under other names.
_LISTS = ("_layers", "_functional", "_modules")


def named_layers(layer: Any) -> list[tuple[str, Any]]:
    """Return a layer and its sublayers by attribute path; layers of a functional model have their own names."""
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
def layers_heard(model: Any, listener: ModuleListener) -> Iterator[None]:
    """Notify a listener of the calls of a layer and of all layers in it."""
    names = {id(each): name for name, each in named_layers(model)}
    kind = keras.layers.Layer
    with replaced(kind, "__call__", heard(kind.__call__, names, listener)):
        yield
