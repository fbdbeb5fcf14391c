"""Properties of outputs by position and by sequence, from derivatives and permuted inputs."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck._lib.names import names_of
from attncheck.frameworks.notes import Note, asks, wrong
from attncheck.frameworks.trace import Trace
from attncheck.models.duties.duty import NotExaminedError
from attncheck.models.duties.probe import TorchModel, noise, same
from attncheck.models.factory import PADDING

# Later positions are hidden if their largest score is below that of earlier positions by more than `_HIDDEN`. Attention
# is almost causal if the derivatives of outputs with respect to later inputs are below `_TINY` times those with respect
# to earlier inputs. Derivatives are divided by at least `_SMALLEST`.
_HIDDEN, _TINY, _SMALLEST = 3.0, 1e-3, 1e-30
# Relative tolerance of outputs in calls with inputs of other shape or order.
_TOLERANCE = 1e-4
# Number of padded positions at either end of a sequence. Attention hides them if their scores are lower than others by
# more than `_NO_WEIGHT`.
_PADDED, _NO_WEIGHT = 2, 20.0
_POSITIONAL = re.compile(r"pos(itions?|itional)?(_?(emb|enc|bias|table|ids)\w*)?(\.|$)|rotary|inv_freq|relative|alibi")


def causality(probe: TorchModel) -> Iterator[Note]:
    """Report outputs that depend on later inputs although the model hides later positions from attention."""
    if not effect_of_later(probe) or probe.is_roundoff(effect_of_later):
        return
    positions, derivatives = probe.dependence
    later = derivatives[:, 0] * _later(positions, derivatives.shape[2])
    row, j = divmod(int(later.argmax()), derivatives.shape[2])
    ratio = effect_of_later(probe)
    text = (
        f"outputs at position {positions[row]} depend on the later input at position {j}, "
        f"{ratio:.2g} times as much as any output on an earlier one"
    )
    if not probe.scores:
        raise NotExaminedError("outputs depend on later inputs, and no softmax shows whether they should")
    if all(map(_hides_later, probe.scores)):
        yield wrong(f"attention is causal, but {text}")
    elif _causal_without_cache(probe):
        yield wrong(f"attention is not causal if a cache is passed: {text}")
    elif ratio < _TINY:
        yield asks(f"attention is almost causal, but {text}", "causality")
    else:
        raise NotExaminedError("some attention is bidirectional")


def prefix(probe: TorchModel) -> Iterator[Note]:
    """Report causal models whose outputs at the first tokens change if the last token is left out."""
    if effect_of_later(probe) and not probe.is_roundoff(effect_of_later):
        raise NotExaminedError("outputs depend on later inputs")
    length = probe.vectors.values.shape[1]
    arrays = {name: value for name, value in probe.arguments.items() if getattr(value, "ndim", 0)}
    probe.require_steady()
    if any(value.ndim < 2 or value.shape[1] != length for value in arrays.values()):
        raise NotExaminedError("not all inputs have positions as second axis")
    with torch.no_grad():
        whole, part = probe.first(), probe.first({name: value[:, :-1] for name, value in arrays.items()})
    if part.shape != whole[:, :-1].shape:
        raise NotExaminedError("the outputs are not one vector per position")
    if not same(whole[:, :-1], part, _TOLERANCE):
        text = "outputs at the first tokens change if the last one is left out: are positions counted from the end?"
        yield asks(text, "prefix")


def permutation(probe: TorchModel) -> Iterator[Note]:
    """Report models for which permuted tokens merely permute the outputs."""
    probe.require_steady()
    if not effect_of_later(probe):
        raise NotExaminedError("attention is causal")
    x = probe.vectors.values
    shuffled = noise(x[0, :, 0]).argsort()
    y, permuted = probe.for_vectors(x), probe.for_vectors(x[:, shuffled])
    if not same(y[:, shuffled], permuted):
        return
    tables = {n: p for n, p in probe.model.named_parameters() if _POSITIONAL.search(n) and p.requires_grad}
    names = [n for n, p in tables.items() if probe.derivatives((y * noise(y)).sum(), [p])[0].any()]
    text = "the outputs do not depend on the order of the tokens"
    absent = asks(f"{text}: all tokens get the same position, or none", "permutation")
    yield wrong(f"{text}, though there are positions: {names[0]}") if names else absent


def sequences(probe: TorchModel) -> Iterator[Note]:
    """Report outputs of a sequence that depend on other sequences, or on its index in the batch."""
    x = probe.vectors.values
    with torch.no_grad():
        y = probe.with_vectors(x)
    if len(x) < 2:
        raise NotExaminedError("the inputs are one sequence")
    if len(y) != len(x):
        raise NotExaminedError("the first axis of the outputs is not that of the sequences")
    tensors = {name: value for name, value in probe.arguments.items() if getattr(value, "ndim", 0)}
    if y.shape == (len(x), len(x)) and _compares_pairs(probe, tensors):
        raise NotExaminedError("the outputs compare all pairs of sequences")
    if _cross_effect(probe, 0) and not _cross_effect(probe, 1):
        raise NotExaminedError("the first axis holds the positions")
    if _cross_effect(probe) and not probe.is_roundoff(_cross_effect):
        yield asks("the outputs of one sequence depend on the other sequences of the batch", "sequences")
        return
    probe.require_steady()
    if any(len(value) != len(x) for value in tensors.values()):
        raise NotExaminedError("not all inputs have the batch as first axis")
    with torch.no_grad():
        flipped = probe.first({name: value.flip(0) for name, value in tensors.items()}).flip(0)
    if not same(y, flipped, _TOLERANCE):
        yield asks("the outputs of a sequence depend on its index in the batch", "sequences")


def _compares_pairs(probe: TorchModel, tensors: Mapping[Any, Any]) -> bool:
    """Return whether the outputs, (batch, batch), get another column if the batch gets another sequence."""
    with torch.no_grad():
        longer = probe.first({name: torch.cat([value, value[:1]]) for name, value in tensors.items()})
    return bool(longer.shape[-1] == len(longer))


def pad_tokens(probe: TorchModel) -> Iterator[Note]:
    """Report outputs at real tokens that depend on padding tokens, which only the last sequence has."""
    tokens = probe.vectors.values.shape[:2]
    accepted = {*inspect.signature(probe.model.forward).parameters, *probe.arguments}
    name = next((name for name in PADDING if name in accepted), None)
    if name is None:
        raise NotExaminedError(f"no argument marks such tokens, such as {next(iter(PADDING))}")
    if tokens[1] <= 2 * _PADDED:
        raise NotExaminedError("the inputs are too short")
    given = probe.arguments.get(name)
    if isinstance(given, torch.Tensor) and given.ndim == 2 and given.shape[1] != tokens[1]:
        raise NotExaminedError(f"{name} marks tokens of another input than {probe.vectors}")
    sides = {"right": slice(tokens[1] - _PADDED, None), "left": slice(_PADDED)}
    changing: dict[str, str] = {}
    for side, padded in sides.items():
        is_padded = torch.zeros(tokens, dtype=torch.bool)
        is_padded[-1, padded] = True
        mask = {name: (~is_padded).long() if PADDING[name] else is_padded}
        if _depends_on(probe, is_padded[-1], mask):
            changing[side] = probe.traced(_AttentionTo(is_padded[-1].numpy()), mask).text
    text = f"tokens that {name} marks as padding"
    if not probe.pools:
        for side, where in changing.items():
            yield asks(f"{text} on the {side} change the outputs elsewhere{where}", "pad_tokens")
    # The output of a sequence may be that of its first or last token, which may be padding on one side.
    elif len(changing) == len(sides):
        yield asks(f"{text} change the outputs, on either side{changing['right']}", "pad_tokens")


class _AttentionTo(Trace):
    """Trace that notes in which modules the last sequence attends to the chosen positions, (positions,)."""

    def __init__(self, chosen: BoolArray) -> None:
        self._chosen = chosen
        self._running, self._attending = list[str](), dict[str, bool]()

    def begins(self, name: str, *_: Any) -> None:
        self._running.append(name)

    def ends(self, *_: Any) -> None:
        self._running.pop()

    def softmax(self, scores: FloatArray, axis: int) -> None:
        if axis in (-1, scores.ndim - 1) and scores.shape[-2:] == (len(self._chosen),) * 2:
            rows = scores[-1][..., ~self._chosen, :]
            visible = rows[..., self._chosen] > rows.max(axis=-1, keepdims=True) - _NO_WEIGHT
            name = self._running[-1] if self._running else ""
            self._attending[name] = self._attending.get(name, False) or bool(visible.any())

    @property
    def text(self) -> str:
        """Sentence on the modules that attend to these positions; empty without attention."""
        names = [name for name, attending in self._attending.items() if attending and name]
        if names:
            return f"; they are visible in {names_of(names)}"
        return "; they are hidden in attention" if self._attending else ""


def _depends_on(probe: TorchModel, padded: Any, arguments: Mapping[Any, Any]) -> bool:
    """Return whether the last sequence's outputs depend on its vectors at the padded positions, (positions,).

    Outputs at these positions are left out. `arguments` replaces further inputs.
    """
    if not probe.pools:
        positions, derivatives = probe.influence(arguments, sequence=-1)
        return bool(derivatives[~padded[positions], -1][:, padded].any())
    x = probe.vectors.values.clone().requires_grad_()
    y = probe.with_vectors(x, arguments)[-1]
    derivatives = probe.derivatives((y * noise(y)).sum(), [x])[0][-1]
    if not derivatives.any():
        raise NotExaminedError(f"the outputs have no derivative with respect to {probe.vectors}")
    return bool(derivatives[padded].any())


def _later(positions: list[int], length: int) -> Any:
    return torch.arange(length) > torch.tensor(positions)[:, None]


def effect_of_later(probe: TorchModel) -> float:
    """Return the largest derivative of outputs with respect to later inputs, divided by that for earlier inputs."""
    positions, derivatives = probe.dependence
    rows = derivatives[:, 0]
    earlier = rows * (torch.arange(rows.shape[1]) < torch.tensor(positions)[:, None])
    return float((rows * _later(positions, rows.shape[1])).max() / earlier.max().clamp(min=_SMALLEST))


def _cross_effect(probe: TorchModel, axis: int = 0) -> float:
    """Return how strongly the last outputs along an axis depend on inputs at other indices of that axis.

    The result is the largest derivative with respect to these other inputs, divided by the largest derivative with
    respect to the last inputs. Axis 0 should contain the sequences. Along the positions, in axis 1, the last outputs
    depend on other inputs even in a causal model.
    """
    x = probe.vectors.values.clone().requires_grad_()
    y = probe.with_vectors(x).select(axis, -1)
    derivatives = probe.derivatives((y * noise(y)).sum(), [x])[0].abs().movedim(axis, 0)
    if not derivatives.any():
        raise NotExaminedError(f"the outputs have no derivative with respect to {probe.vectors}")
    return float(derivatives[:-1].max() / derivatives[-1].max().clamp(min=_SMALLEST))


def _hides_later(scores: Any) -> bool:
    """Return whether scores of later positions are far below those of earlier ones, or all the same.

    The column of a sink may be the first or the last one.
    """
    if scores.shape[-1] > scores.shape[-2]:
        return _hides_later(scores[..., 1:]) or _hides_later(scores[..., :-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    highest, earlier = (scores.masked_fill(mask, -torch.inf).amax(-1)[..., :-1] for mask in (~later, later))
    hidden, visible = scores[..., later], scores[..., ~later]
    constant = bool(hidden.isfinite().all()) and hidden.std() < 1e-6 and visible.std() > 1e-3
    return bool((highest < earlier - _HIDDEN).all()) or bool(constant)


def _causal_without_cache(probe: TorchModel) -> bool:
    """Return whether modules get caches as arguments, and outputs are causal if None replaces these caches.

    Objects with a method `update` count as caches.
    """
    removed: list[Any] = []

    def without_cache(value: Any) -> Any:
        if not hasattr(value, "update") or isinstance(value, torch.nn.Module):
            return value
        removed.append(value)
        return None

    def change(module: Any, *arguments: Any) -> Any:
        return tree_map(without_cache, arguments)

    with contextlib.ExitStack() as stack:
        for module in probe.model.modules():
            stack.callback(module.register_forward_pre_hook(change, with_kwargs=True).remove)
        positions, derivatives = probe.influence()
    return bool(removed) and not (derivatives[:, 0] * _later(positions, derivatives.shape[2])).any()
