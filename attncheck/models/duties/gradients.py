"""Properties of gradients: every parameter has one, and every tensor with one is a registered parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from attncheck._lib.names import names_of
from attncheck._lib.text import counted
from attncheck.frameworks.notes import Note, asks, wrong
from attncheck.frameworks.torch_trace import tensors_of
from attncheck.models.duties.duty import NotExaminedError
from attncheck.models.duties.probe import TorchModel, noise, restored

# Parameters must have a gradient after _STEPS optimisation steps, even if other parameters start at 0. A step changes
# an entry by at most _STEP.
_STEPS, _STEP = 3, 0.02
# Names of parameters that may be used for some tokens only.
_ROUTED = re.compile("expert|router|moe")
# Minimum number of consecutive unused rows that count as a head.
_HEAD = 4


def registration(probe: TorchModel) -> Iterator[Note]:
    """Report tensors with a gradient that persist between calls, but are not registered as parameters."""
    leaves, again = _leaves(probe), _leaves(probe)
    if not leaves:
        raise NotExaminedError("the outputs have no gradient")
    known = (*probe.model.parameters(), *probe.model.buffers(), *probe.arguments.values())
    unregistered = [again[i] for i in leaves if i in again.keys() - set(map(id, known))]
    if unregistered:
        shape = tuple(unregistered[0].shape)
        number = f"{counted(len(unregistered), 'tensor')} not registered as parameters, one of shape {shape}"
        yield wrong(f"the outputs depend on {number}: modules in a Python list?")


def _leaves(probe: TorchModel) -> dict[int, Any]:
    """Return the tensors at which the autograd graph of the outputs begins, by their ids."""
    pending, visited, leaves = [output.grad_fn for output in tensors_of(probe.outputs())], set[Any](), dict[int, Any]()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        pending += [next_node for next_node, _ in node.next_functions]
    return leaves


def reached(probe: TorchModel) -> Iterator[Note]:
    """Report parameters whose gradient is exactly 0, also after a few steps, and unused rows of attention matrices."""
    parameters = {name: p for name, p in probe.model.named_parameters() if p.requires_grad and p.numel()}
    first = _gradients(probe, parameters)
    reals = [v for v in probe.arguments.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    if any(scores.shape[-1] == 1 for scores in probe.scores):
        raise NotExaminedError("a softmax is over a single position, so that its weight is always 1")
    if not all(v.any() for v in reals):
        raise NotExaminedError("an input is 0 everywhere")
    unmoved = [name for name, g in first.items() if not g.any() and not _pads(probe, name)]
    routed = [name for name in unmoved if _ROUTED.search(name)]
    zero = [name for name in unmoved if name not in routed]
    if zero:
        zero = _zero_after_steps(probe, parameters, zero)
    never = [name for name in zero if parameters[name].ndim > 1 and not parameters[name].any()]
    never = never if len(never) > 1 else []  # a single factor that is 0 has a gradient, so the cause is elsewhere
    if never:
        yield wrong(f"{names_of(never)}: zeros, and their gradients stay exactly 0 for these inputs: they do not train")
    if remaining := [name for name in zero if name not in never]:
        yield asks(f"{names_of(remaining)}: the gradient is exactly 0, also after optimisation steps", "reach")
    unused = {name: rows for name in first if (rows := _unused_rows(probe, name, first[name]))}
    if unused:
        number, total = next(iter(unused.values()))
        text = f"{names_of(list(unused))}: {number} of {total} rows are unused: their gradient is exactly 0"
        yield asks(text, "reach")
    elif not zero and len(first) < len(parameters):
        raise NotExaminedError("no gradient of the outputs reaches some parameters")
    elif routed and not zero:
        raise NotExaminedError(f"no token of these inputs reaches {names_of(routed)}")


def _pads(probe: TorchModel, name: str) -> bool:
    """Return whether a parameter is an embedding table with a padding row, whose gradient is always 0."""
    owner = probe.model.get_submodule(name.rpartition(".")[0])
    return getattr(owner, "padding_idx", None) is not None


def _gradients(probe: TorchModel, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients of a random combination of all outputs, for the parameters on which it depends."""
    outputs = [output for output in tensors_of(probe.outputs()) if output.requires_grad]
    if not outputs or not parameters:
        raise NotExaminedError("the outputs have no gradient")
    total = torch.stack([(output * noise(output)).sum().float() for output in outputs]).sum()
    computed = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return {name: g for name, g in zip(parameters, computed, strict=True) if g is not None}


def _zero_after_steps(probe: TorchModel, parameters: dict[str, Any], zero: list[str]) -> list[str]:
    """Return the names in `zero` whose gradient is still 0 after a few optimisation steps.

    The steps change only the parameters that are 0; their values are restored afterwards.
    """
    movable = {name: p for name, p in parameters.items() if not p.any()}
    with restored(list(movable.values())):
        for _ in range(_STEPS + 1):
            steps = _gradients(probe, parameters)
            with torch.no_grad():
                for name in movable.keys() & steps.keys():
                    movable[name] -= _STEP * steps[name] / steps[name].abs().max().clamp(min=1e-30)
    return [name for name in zero if name in steps and not steps[name].any()]


def _unused_rows(probe: TorchModel, name: str, gradient: Any) -> tuple[int, int] | None:
    """Return the number of unused rows, which have no gradient, and the number of all rows.

    The result is None unless the parameter is a matrix of attention that has unused rows, all of them in runs of at
    least `_HEAD` consecutive rows, as if heads were unused.
    """
    at, _, _ = name.rpartition(".")
    owner = probe.model.get_submodule(at)
    in_attention = any(f"{name}.".startswith(f"{call.name}.") for call in probe.attention)
    conv = type(owner).__name__ == "Conv1D"  # of transformers, with weights (inputs, outputs)
    matrix = conv or isinstance(owner, torch.nn.Linear | torch.nn.MultiheadAttention)
    if gradient.ndim != 2 or not in_attention or not matrix or not gradient.any():
        return None
    used = (gradient.T if conv else gradient).any(1)
    values, lengths = used.unique_consecutive(return_counts=True)
    if used.all() or lengths[~values].min() < _HEAD:
        return None
    return int((~used).sum()), len(used)
