"""What a subject says of itself: how it is called, which layers it is, and the laws of its weights."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import WeightLaws

Form = Literal["size", "inputs", "program"]

#: How a subject of layers is called.
FORMS = "(layer, size, rng) or (layer, inputs, rng)"
#: What makes an attribute `supports`.
SUPPORTS = "make it a function of the layer that returns True, False or a string that says why not"
#: How a subject of programs is called.
PROGRAM_FORM = "(program, width, size, rng)"


def form_of(name: str, call: Callable[..., Any]) -> Form:
    """Return the form of a callable, by the names of its parameters."""
    try:
        signature = inspect.signature(call)
        if list(signature.parameters)[:2] == ["program", "width"]:
            signature.bind(None, None, None, None)
            return "program"
        signature.bind(None, None, None)
        second = list(signature.parameters)[1]
    except (TypeError, ValueError, IndexError):
        second = ""
    if second == "size":
        return "size"
    if second == "inputs":
        return "inputs"
    forms = f"{FORMS}, or {PROGRAM_FORM} for programs"
    taken, by_name = _parameters(call)
    positional = ", all of them positional: no * before them" if by_name else ""
    refuse("subject", name, f"takes {taken}", f"make it {forms}, with these names{positional}")


def _parameters(call: Callable[..., Any]) -> tuple[str, bool]:
    """Return the parameters as they are written, without their types, and whether one must be passed by its name."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return "parameters that cannot be read", False
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    by_name = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    return str(inspect.Signature(bare)) if by_name else f"({', '.join(p.name for p in bare)})", by_name


def layers_of(name: str, declared: Any) -> tuple[AttentionLayer, ...]:
    """Return the layers that a subject says it is; none where it says nothing."""
    remedy = "list one attncheck.AttentionLayer or more, or leave the attribute out"
    if declared is None:
        return ()
    if isinstance(declared, str | Mapping) or not isinstance(declared, Iterable):
        refuse(f"{name}.layers", declared, "is no list of layers", remedy)
    layers = tuple(dict.fromkeys(declared))
    for number, layer in enumerate(layers):
        if not isinstance(layer, AttentionLayer):
            refuse(f"{name}.layers[{number}]", layer, "is not an AttentionLayer", remedy)
    if not layers:
        refuse(f"{name}.layers", [], "is empty", remedy)
    return layers


def weights_of(name: str, declared: Any, form: Form) -> WeightLaws:
    """Return what a subject declares; inputs that are handed to it are attncheck's own, of Gaussian W^i."""
    laws = WeightLaws.of(declared, f"{name}.weights")
    if form != "inputs":
        return laws
    if isinstance(declared, Mapping) and "inputs" in declared:
        refuse(f"{name}.weights['inputs']", laws.inputs, "is of inputs that are handed to the subject", "leave it out")
    return dataclasses.replace(laws, inputs=WeightLaws.inputs)
