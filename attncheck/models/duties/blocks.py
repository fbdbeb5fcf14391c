"""Blocks around attention: residual paths, norms, and dropout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from attncheck._lib.groups import grouped
from attncheck.frameworks.notes import Note, asks
from attncheck.frameworks.trace import CoreTrace
from attncheck.models.calls import ModuleCall
from attncheck.models.duties.duty import NotExaminedError
from attncheck.models.duties.probe import TorchModel, restored, same
from attncheck.models.names import names_of, pattern_of

# Cosine of an array and its norm.
_PARALLEL = 0.9999
# Relative changes of linear and of normalised arrays when inputs are doubled, and variation of normalised ones.
_LINEAR, _NORMALISED, _CONSTANT = 0.5, 0.05, 1e-3
_DROPPED = 0.5


def residual(probe: TorchModel) -> Iterator[Note]:
    """Report blocks that are not the identity if all their matrices are 0, although attention gets a norm of the input.

    Blocks that normalise after the residual path are not examined.
    """
    blocks = [block for call in _representatives(probe) if (block := _block(probe, call)) is not None]
    if not blocks:
        raise NotExaminedError("no block passes the norm of its input to attention")
    for name in dict.fromkeys(blocks):
        block = probe.model.get_submodule(name)
        matrices = [m for m in block.modules() if any(p.ndim > 1 for p in m.parameters(recurse=False))]
        weights = [p for m in matrices for p in m.parameters(recurse=False)]
        with torch.no_grad(), restored(weights):
            for weight in weights:
                weight.zero_()
            x, y = _recorded(probe, [name])[name]
        if not same(x, y):
            yield asks(f"residual path: if all matrices of {name} are 0, it returns {_described(x, y)}", "residual")


def norms(probe: TorchModel) -> Iterator[Note]:
    """Report norms that reach queries or keys only, and normalised values with queries that are not."""
    calls = [call for call in _representatives(probe) if not call.source]
    if not calls:
        raise NotExaminedError("no self-attention was found")
    for call in calls:
        one, two = (_core(probe, call, factor) for factor in (1.0, 2.0))
        q, k, v = (_change(one[i], two[i]) for i in range(3))
        if v > _LINEAR and min(q, k) < _NORMALISED and max(q, k) > _LINEAR:
            which, other = ("queries", "keys") if q < k else ("keys", "queries")
            yield asks(f"{call.name}: a norm reaches {which}, but not {other} and values", "norms")
        elif _is_normalised(one[2]) and not _is_normalised(one[0]):
            yield asks(f"{call.name}: values are normalised in every head, but queries are not", "norms")


def dropout(probe: TorchModel) -> Iterator[Note]:
    """Report dropout of scores, and modules for dropout that are not called and change nothing in training."""
    modules = {n: m for n, m in probe.model.named_modules() if isinstance(m, _DropoutNd) and m.p > 0}
    if not modules:
        raise NotExaminedError("no module drops entries")
    with torch.no_grad(), restored(list(probe.model.buffers())), _training(probe.model):
        mode = _Dropped()
        with mode, _called(probe.model) as called:
            probe.outputs()
        if mode.of_scores:
            yield asks("dropout acts on scores, before the softmax", "dropout")
        idle = [n for n in modules if n not in called and n.rpartition(".")[0] in called]
        unused = [n for names in grouped(idle, pattern_of).values() for n in _without_effect(probe, modules, names)]
    if unused:
        yield asks(f"{names_of(unused)}: dropout that changes nothing in training", "dropout")


def _representatives(probe: TorchModel) -> list[ModuleCall]:
    """Return the first call of attention of each kind."""
    return [calls[0] for calls in grouped(probe.attention, lambda call: (pattern_of(call.name), call.source)).values()]


def _block(probe: TorchModel, call: ModuleCall) -> str | None:
    """Return the name of the innermost module around one attention module that passes the norm of its input to it."""
    parts = call.name.split(".")
    around = [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]
    recorded = _recorded(probe, [call.name, *around])
    if call.name not in recorded:
        return None
    h = recorded[call.name][0]
    for name in around:
        inside = [c for c in probe.attention if c.name.startswith(f"{name}.")]
        alone = sum(pattern_of(c.name) == pattern_of(call.name) for c in inside) == 1
        if name in recorded and alone and _is_norm(h, *recorded[name]) and _has_other_matrices(probe, name, call):
            return name
    return None


def _has_other_matrices(probe: TorchModel, name: str, call: ModuleCall) -> bool:
    """Return whether a module has matrices outside of attention, as blocks have."""
    parameters = probe.model.get_submodule(name).named_parameters()
    return any(p.ndim > 1 and not f"{name}.{at}".startswith(f"{call.name}.") for at, p in parameters)


def _is_norm(h: Any, x: Any, y: Any) -> bool:
    """Return whether h is x, normalised at each position, and y, the output for x, has its shape."""
    if not h.shape == x.shape == y.shape or torch.equal(h, x):
        return False
    pairs = ((h, x), (h - h.mean(-1, keepdim=True), x - x.mean(-1, keepdim=True)))
    return any(bool((torch.cosine_similarity(a, b, dim=-1) > _PARALLEL).all()) for a, b in pairs)


def _recorded(probe: TorchModel, names: list[str]) -> dict[str, tuple[Any, Any]]:
    """Return hidden states and outputs of the first call of modules."""
    recorded: dict[str, tuple[Any, Any]] = {}
    with contextlib.ExitStack() as stack, torch.no_grad():
        for name in names:

            def record(module: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                states = [next(_hidden(values), None) for values in ((args, kwargs), output)]
                if name not in recorded and states[0] is not None and states[1] is not None:
                    recorded[name] = (states[0].clone(), states[1].clone())

            module = probe.model.get_submodule(name)
            stack.callback(module.register_forward_hook(record, with_kwargs=True).remove)
        probe.outputs()
    return recorded


def _hidden(values: Any) -> Iterator[Any]:
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.ndim == 3:
            yield leaf


def _described(x: Any, y: Any) -> str:
    """Describe the output y of a block for its input x."""
    factor = float((x * y).sum() / (x * x).sum())
    if not y.any():
        return "0, not its input"
    if same(y, factor * x, 1e-3):
        return f"{factor:.3g} times its input"
    return "the norm of its input, not its input" if _is_norm(y, x, y) else "other values than its input"


def _core(probe: TorchModel, call: ModuleCall, factor: float) -> tuple[Any, Any, Any]:
    """Return queries, keys and values of an attention module for random inputs of this size."""
    assert call.given is not None
    adapter = probe.factory.replayed(call, [probe.model.get_submodule(call.name)])
    rng, trace = np.random.default_rng(0), CoreTrace()
    x = factor * rng.standard_normal((2, call.given.lengths[-1], call.given.width))
    adapter.outputs(adapter.fresh(0), x, trace, adapter.paths[0])
    if not trace.cores:
        raise NotExaminedError("attention was not read")
    core = trace.cores[0]
    return core.query, core.key, core.value


def _change(one: Any, other: Any) -> float:
    return float(np.linalg.norm(other - one) / np.linalg.norm(one)) if one.shape == other.shape else np.nan


def _is_normalised(array: Any) -> bool:
    """Return whether all vectors have the same length."""
    lengths = np.linalg.norm(array, axis=-1)
    return bool(lengths.std() < _CONSTANT * lengths.mean())


@contextlib.contextmanager
def _training(model: Any) -> Iterator[None]:
    model.train()
    try:
        yield
    finally:
        model.eval()


@contextlib.contextmanager
def _called(model: Any) -> Iterator[set[str]]:
    """Collect the names of modules that are called."""
    names: set[str] = set()
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            handle = module.register_forward_hook(lambda *_, name=name: names.add(name))
            stack.callback(handle.remove)
        yield names


class _Dropped(TorchFunctionMode):
    """Mode that notices dropout of negative numbers just before a softmax in the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.of_scores = False
        self._shape: Any = None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if name == "dropout" and tensor is not None and tensor.ndim > 2:
            self._shape = tensor.shape if (tensor < 0).any() else None
        elif name == "softmax" and tensor is not None:
            self.of_scores |= tensor.shape == self._shape
            self._shape = None
        return function(*args, **(kwargs or {}))


def _without_effect(probe: TorchModel, modules: dict[str, Any], names: list[str]) -> list[str]:
    """Return these names of modules if the outputs do not depend on how much the modules drop."""
    rates = {name: module.p for name, module in modules.items()}
    outputs = []
    try:
        for rate in (0.0, _DROPPED):
            for name, module in modules.items():
                module.p = rate if name in names else 0.0
            torch.manual_seed(0)
            outputs.append(probe.first())
    finally:
        for name, module in modules.items():
            module.p = rates[name]
    return names if torch.equal(outputs[0], outputs[1]) else []
