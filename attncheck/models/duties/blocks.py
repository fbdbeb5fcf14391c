"""Blocks around attention: residual paths, norms, and dropout."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from attncheck._lib.names import grouped, names_of, pattern_of
from attncheck.frameworks.notes import Note, asks
from attncheck.frameworks.torch_trace import tensors_of
from attncheck.frameworks.trace import CoreTrace, Trace
from attncheck.models.duties.duty import NotExaminedError
from attncheck.models.duties.probe import TorchModel, restored, same
from attncheck.models.replay import ModuleCall

# Minimum cosine of the angle between an array and its normalised copy.
_PARALLEL = 1 - 1e-6
# If inputs are multiplied by 3, the relative change of an array is above `_LINEAR` if it is linear in the inputs, and
# below `_NORMALISED` if it is normalised. Lengths of normalised vectors have a relative standard deviation below
# `_CONSTANT`.
_LINEAR, _NORMALISED, _CONSTANT = 0.5, 0.05, 1e-3
# Names of matrix products. After a product, entries are no longer those that dropout changed.
_PRODUCTS = ("linear", "matmul", "__matmul__", "bmm", "einsum")


def residual(probe: TorchModel) -> Iterator[Note]:
    """Report pre-norm blocks that are not the identity if all their matrices are 0.

    Blocks that normalise after the residual path are not examined.
    """
    recorded = _around_attention(probe)
    all_blocks = [blocks for call in probe.attention if (blocks := _blocks(probe, call, recorded))]
    if not all_blocks:
        raise NotExaminedError("no module around attention normalises its input for attention")
    # Usually no block is wrong. Otherwise, each block is tested alone, because an error may hide later ones.
    if not _wrong(probe, all_blocks):
        return
    returned = {name: _described(*arrays) for blocks in all_blocks for name, arrays in _wrong(probe, [blocks]).items()}
    for text, names in grouped(returned, returned.__getitem__).items():
        which = f"{names_of(names)} are 0, {'it returns' if len(names) == 1 else 'each returns'}"
        yield asks(f"residual path: if all matrices of {which} {text}", "residual")


def norms(probe: TorchModel) -> Iterator[Note]:
    """Report norms of queries only, of keys only, or of values only, and blocks without the norm that others have."""
    calls = [call for call in probe.attention if not call.source]
    if not calls:
        raise NotExaminedError("no self-attention was found")
    uneven: dict[str, list[str]] = {}
    for call in calls:
        # If inputs are multiplied by 3, normalised arrays change by rounding only, and constant arrays not at all.
        one, three = (_core(probe, call, factor) for factor in (1.0, 3.0))
        q, k, v = (
            np.linalg.norm(b - a) / max(float(np.linalg.norm(a)), 1e-300) for a, b in zip(one, three, strict=True)
        )
        if v > _LINEAR and 0 < min(q, k) < _NORMALISED and max(q, k) > _LINEAR:
            which, excluded = ("queries", "keys") if q < k else ("keys", "queries")
            uneven.setdefault(f"a norm acts on {which}, but not on {excluded} and values", []).append(call.name)
        elif _is_normalised(one[2]) and not _is_normalised(one[0]):
            uneven.setdefault("values are normalised in every head, but queries are not", []).append(call.name)
    if without := _without_norm(probe):
        uneven["attention receives the input of the block, which other blocks normalise first"] = without
    for text, names in uneven.items():
        yield asks(f"{names_of(names)}: {text}", "norms")


def dropout(probe: TorchModel) -> Iterator[Note]:
    """Report dropout of scores, and dropout modules that are not called although the module around them runs."""
    modules = {n: m for n, m in probe.model.named_modules() if isinstance(m, _DropoutNd) and m.p > 0}
    mode, training = _Dropping(), dataclasses.replace(probe, model=copy.deepcopy(probe.model).train())
    with mode:
        training.traced(mode)
    if not modules and not mode.dropping:
        raise NotExaminedError("nothing is dropped in training")
    if mode.of_scores:
        names = sorted(filter(None, mode.of_scores))  # without the model itself, whose name is empty
        where = f"{names_of(names)}: " if names else ""
        yield asks(f"{where}dropout acts on scores, before the softmax", "dropout")
    parents = mode.called - mode.dropping
    unused = [name for name in modules if name not in mode.called and name.rpartition(".")[0] in parents]
    if unused:
        yield asks(f"{names_of(unused)}: dropout that changes nothing in training", "dropout")


def _wrong(probe: TorchModel, all_blocks: Sequence[Sequence[str]]) -> dict[str, tuple[Any, Any]]:
    """Set the matrices of all blocks to 0, and find the blocks that then do not return their input.

    Each element of `all_blocks` lists nested modules, innermost first. One of them is the block, so a block is wrong if
    none of these modules returns its input. The result maps the innermost module of each wrong block to its input and
    output.
    """
    modules = [module for blocks in all_blocks for module in probe.model.get_submodule(blocks[-1]).modules()]
    matrices = [m for m in modules if any(p.ndim > 1 for p in m.parameters(recurse=False))]
    weights = list(dict.fromkeys(p for m in matrices for p in m.parameters(recurse=False)))
    with torch.no_grad(), restored(weights):
        for weight in weights:
            weight.zero_()
        recorded = _recorded(probe, [name for blocks in all_blocks for name in blocks])
    wrong = (blocks[0] for blocks in all_blocks if not any(same(*recorded[name]) for name in blocks))
    return {name: recorded[name] for name in wrong}


def _around(call: ModuleCall) -> list[str]:
    """Return the names of the modules around an attention module, innermost first."""
    parts = call.name.split(".")
    return [".".join(parts[:i]) for i in range(len(parts) - 1, 0, -1)]


def _blocks(probe: TorchModel, call: ModuleCall, recorded: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Return the names of modules around an attention module that pass a norm of their own input to it.

    The innermost one comes first. Such a module may be only the branch of a block that the residual path bypasses, or
    contain more than a block. `recorded` maps the names of modules to their input and output.
    """
    blocks = []
    for name in _around(call) if call.name in recorded else []:
        inside = [c for c in probe.attention if c.name.startswith(f"{name}.")]
        alone = sum(pattern_of(c.name) == pattern_of(call.name) for c in inside) == 1 and inside[0] is call
        normed = name in recorded and _is_norm(recorded[call.name][0], *recorded[name])
        if alone and normed and _has_more_matrices(probe, name, call):
            blocks.append(name)
    return blocks


def _without_norm(probe: TorchModel) -> list[str]:
    """Return the names of attention modules that receive the input of their block, where others receive a norm of it.

    Modules whose names differ only in numbers are compared. The first one is left out: its input may be normalised
    before the block.
    """
    recorded = _around_attention(probe)
    without = []
    for calls in grouped(probe.attention, lambda call: pattern_of(call.name)).values():
        blocks = {call.name: _blocks(probe, call, recorded) for call in calls}
        patterns = {pattern_of(name) for names in blocks.values() for name in names}
        for call in calls[1:]:
            around = [name for name in _around(call) if pattern_of(name) in patterns and name in recorded]
            if not blocks[call.name] and any(torch.equal(recorded[call.name][0], recorded[n][0]) for n in around):
                without.append(call.name)
    return without


def _has_more_matrices(probe: TorchModel, name: str, call: ModuleCall) -> bool:
    """Return whether a module has matrices outside of its attention, as a transformer block has."""
    parameters = probe.model.get_submodule(name).named_parameters()
    return any(p.ndim > 1 and not f"{name}.{at}".startswith(f"{call.name}.") for at, p in parameters)


def _is_norm(h: Any, x: Any, y: Any) -> bool:
    """Return whether h is x normalised at each position (RMS or layer norm), and y has the shape of x."""
    if not h.shape == x.shape == y.shape or torch.equal(h, x):
        return False
    pairs = ((h, x), (h - h.mean(-1, keepdim=True), x - x.mean(-1, keepdim=True)))
    return any(bool((torch.cosine_similarity(a, b, dim=-1) > _PARALLEL).all()) for a, b in pairs)


class _States(Trace):
    """Trace that keeps the input and output hidden states of the first call of each module in `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.pairs: dict[str, tuple[Any, Any]] = {}
        self._names, self._running = names, list[tuple[str, Any]]()

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._running.append((name, _hidden((args, kwargs))))

    def ends(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        name, x = self._running.pop()
        y = _hidden(output)
        if name in self._names and name not in self.pairs and x is not None and y is not None:
            self.pairs[name] = x, y


def _recorded(probe: TorchModel, names: Sequence[str]) -> Mapping[str, tuple[Any, Any]]:
    """Return by name the input and output hidden states of the first call of each module in `names`."""
    return probe.traced(_States(names)).pairs


def _around_attention(probe: TorchModel) -> Mapping[str, tuple[Any, Any]]:
    """Return the result of `_recorded` for all attention modules and the modules around them."""
    return _recorded(probe, sorted({name for call in probe.attention for name in (call.name, *_around(call))}))


def _hidden(values: Any) -> Any:
    """Return a copy of the first real tensor with three axes in nested containers, or None."""
    return next((tensor.clone() for tensor in tensors_of(values) if tensor.ndim == 3), None)


def _described(x: Any, y: Any) -> str:
    """Describe the output y of a block with input x, in which all matrices are 0.

    Raises `NotExaminedError` if the residual path seems to have a learned scale or a gate.
    """
    if not y.isfinite().all():
        raise NotExaminedError("outputs are not finite")
    factor = float((x * y).sum() / (x * x).sum())
    if not y.any():
        return "0, not its input"
    if factor > 1 and same(y, round(factor) * x, 1e-3):
        return f"{round(factor)} times its input"
    if _is_norm(y, x, y) and not same(y, factor * x, 1e-3):
        return "the norm of its input, not its input"
    raise NotExaminedError("residual paths are scaled or gated")


def _core(probe: TorchModel, call: ModuleCall, factor: float) -> tuple[Any, Any, Any]:
    """Return queries, keys and values of an attention module for random inputs that are multiplied by `factor`."""
    assert call.given is not None
    adapter = probe.factory.replayed(call, [probe.model.get_submodule(call.name)])
    rng, trace = np.random.default_rng(0), CoreTrace()
    x = factor * rng.standard_normal((2, call.given.lengths[-1], call.given.width))
    adapter.outputs(adapter.fresh(0), x, trace, adapter.paths[0])
    if not trace.cores:
        raise NotExaminedError("attention was not read")
    core = trace.cores[0]
    return core.query, core.key, core.value


def _is_normalised(array: Any) -> bool:
    """Return whether all vectors have the same length."""
    lengths = np.linalg.norm(array, axis=-1)
    return bool(lengths.std() < _CONSTANT * lengths.mean())


class _Dropping(Trace, TorchFunctionMode):
    """Recorder of the modules in which dropout runs, and of dropout before a softmax.

    Attributes
    ----------
    called : set of str
        Names of modules that are called.
    dropping : set of str
        Names of modules that call functions for dropout.
    of_scores : set of str
        Modules whose dropout acts on scores: its input has negative numbers, and a softmax of the same shape follows
        without a matrix product in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self.called, self.dropping, self.of_scores = set[str](), set[str](), set[str]()
        self._running, self._shape = list[str](), None

    def begins(self, name: str, *_: Any) -> None:
        self.called.add(name)
        self._running.append(name)

    def ends(self, *_: Any) -> None:
        self._running.pop()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(function, "__name__", ""), kwargs or {}
        tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if _drops(name, args, options):
            self.dropping |= {*self._running[-1:]}
            self._shape = tensor.shape if tensor is not None and (tensor < 0).any() else None
        elif name in _PRODUCTS:
            self._shape = None
        elif name == "softmax" and tensor is not None:
            self.of_scores |= {*self._running[-1:]} if tensor.shape == self._shape else set()
            self._shape = None
        return function(*args, **options)


def _drops(name: str, args: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a call of a PyTorch function drops entries."""
    rate, index = {"dropout": ("p", 1), "scaled_dot_product_attention": ("dropout_p", 4)}.get(name, ("", 0))
    return bool(rate) and options.get(rate, args[index] if len(args) > index else 0.0) > 0
