"""A subject's declarations: call form, layers and weight laws."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from attncheck._lib.errors import refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.simulators.weights import WeightLaws

Form = Literal["size", "inputs", "program"]

#: Call forms of a subject of layers.
FORMS = "(layer, size, rng) or (layer, inputs, rng)"
#: Remedy for an invalid attribute `supports`.
SUPPORTS = "make it a function of the layer that returns True, False or a string with the reason"
#: Remedy for a simulator that does not support a layer.
MISSING_LAYER = (
    "declare which layers it supports, with an attribute supports(layer) that returns False or a reason, or with layers"
)
#: Call form of a subject of programs.
PROGRAM_FORM = "(program, width, size, rng)"


def form_of(name: str, call: Callable[..., Any]) -> Form:
    """Return the call form of a callable, such as "size" or "inputs", from its parameter names."""
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
    parameters, by_name = _parameters(call)
    positional = ", all positional (no * before them)" if by_name else ""
    refuse("subject", name, f"takes {parameters}", f"make it {forms}, with these names{positional}")


def _parameters(call: Callable[..., Any]) -> tuple[str, bool]:
    """Return the parameters as text without annotations, and whether a parameter must be passed by keyword."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return "unreadable parameters", False
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in parameters]
    by_name = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    return str(inspect.Signature(bare)) if by_name else f"({', '.join(p.name for p in bare)})", by_name


def layers_of(name: str, declared: Any) -> tuple[AttentionLayer, ...]:
    """Return the declared layers; empty if there is no declaration."""
    remedy = "list one or more attncheck.AttentionLayer, or omit the attribute"
    if declared is None:
        return ()
    if isinstance(declared, str | Mapping) or not isinstance(declared, Iterable):
        refuse(f"{name}.layers", declared, "is not a list of layers", remedy)
    layers = tuple(dict.fromkeys(declared))
    for number, layer in enumerate(layers):
        if not isinstance(layer, AttentionLayer):
            refuse(f"{name}.layers[{number}]", layer, "is not an AttentionLayer", remedy)
    if not layers:
        refuse(f"{name}.layers", [], "is empty", remedy)
    return layers


def weights_of(name: str, declared: Any, form: Form) -> WeightLaws:
    """Return the declared laws of the weights; the law of W^i is Gaussian if attncheck draws the inputs."""
    laws = WeightLaws.of(declared, f"{name}.weights")
    if form != "inputs":
        return laws
    if isinstance(declared, Mapping) and "inputs" in declared:
        refuse(f"{name}.weights['inputs']", laws.inputs, "concerns inputs that attncheck draws", "omit it")
    return dataclasses.replace(laws, inputs=WeightLaws.inputs)
