"""Buffers, tables, and tensors that are equal without being tied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from attncheck._lib.names import grouped, names_of, pattern_of
from attncheck.frameworks.notes import Note, asks, wrong
from attncheck.models.duties.probe import TorchModel, restored

# Names of tables that are reported if all their entries are 0.
_TABLE = re.compile(r"(relative|rel_\w*bias|bias_table|rotary|inv_freq|freqs)\w*(\.weight)?$")
# Seed of a second model.
_SEED = 2**31 - 1


def state(probe: TorchModel) -> Iterator[Note]:
    """Report buffers that are not initialised or differ between draws, tables of zeros, and copies of parameters."""
    redraw = probe.factory.fresh(_SEED)
    yield from _buffers(probe, dict(redraw.named_buffers()))
    parameters = {name: p.detach() for name, p in probe.model.named_parameters()}
    zeros = [name for name, p in parameters.items() if p.ndim > 1 and _is_zero_table(name, p)]
    if zeros:
        yield asks(f"{names_of(zeros)}: zeros", "state", *zeros)
    yield from _copies(parameters, dict(redraw.named_parameters()))


def _buffers(probe: TorchModel, redrawn: dict[str, Any]) -> Iterator[Note]:
    buffers = {name: b for name, b in probe.model.named_buffers() if b.numel()}
    unwritten = [name for name, b in buffers.items() if _is_unwritten(b) and _used(probe, b)]
    if unwritten:
        yield wrong(f"{names_of(unwritten)} not initialised: nothing, or NaN, was written to this memory")
    zeros = [name for name, b in buffers.items() if _is_zero_table(name, b) and _used(probe, b)]
    if zeros:
        yield asks(f"{names_of(zeros)}: zeros", "state")
    drawn = [n for n, b in buffers.items() if n in redrawn and not _is_unwritten(b) and not torch.equal(b, redrawn[n])]
    if drawn:  # or written by calls, as a cache is; a third model has not been called either
        third = dict(probe.factory.fresh(_SEED - 1).named_buffers())
        drawn = [name for name in drawn if name in third and not torch.equal(third[name], redrawn[name])]
    if drawn:
        yield asks(f"{names_of(drawn)}: the buffer differs between draws", "state")


def _is_zero_table(name: str, tensor: Any) -> bool:
    return tensor.numel() > 1 and bool(_TABLE.search(name)) and not tensor.any()


def _is_unwritten(tensor: Any) -> bool:
    """Return whether a buffer was never written: it contains NaN, or nothing but the largest integer of its dtype.

    In deterministic mode, torch fills new memory with these.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    return tensor.numel() > 1 and tensor.dtype != torch.bool and bool((tensor == torch.iinfo(tensor.dtype).max).all())


def _used(probe: TorchModel, buffer: Any) -> bool:
    """Return whether the outputs depend on a buffer."""
    with torch.no_grad(), restored([buffer]):
        buffer.zero_()
        zero = probe.first()
        buffer.fill_(1)
        return not torch.equal(zero, probe.first())


def _copies(parameters: dict[str, Any], redrawn: dict[str, Any]) -> Iterator[Note]:
    """Report random matrices with equal entries, unless their names differ only in numbers.

    Matrices are random if they differ between the `parameters` of the model and those of a second draw, `redrawn`.
    """
    drawn = [n for n, p in parameters.items() if p.ndim > 1 and n in redrawn and not torch.equal(p, redrawn[n])]
    groups = grouped(drawn, lambda name: (parameters[name].shape, float(parameters[name].double().sum())))
    for first, *names in groups.values():
        for name in names:
            if pattern_of(name) != pattern_of(first) and torch.equal(parameters[name], parameters[first]):
                tied = parameters[name].data_ptr() == parameters[first].data_ptr()
                reason = "shares its memory, but is another parameter" if tied else "is not tied to it"
                yield asks(f"{name} has the same entries as {first}, and {reason}", "state")
