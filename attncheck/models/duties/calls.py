"""Calls of one model that must agree: with a cache, and in other precision."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attncheck.frameworks.notes import Note, asks
from attncheck.models.duties.duty import NotExaminedError
from attncheck.models.duties.positions import effect_of_later
from attncheck.models.duties.probe import TorchModel, same

_CACHE = re.compile(r"past|(past_)?key_values?|caches?|(past|kv)_caches?|layer_past")
# Numbers of tokens in the calls after the first one, to which the cache is passed.
_CALLS = {"single tokens": (1, 1), "two tokens": (2, 1)}
# _TOLERANCE is the relative tolerance of outputs with a cache. In bfloat16, the error of outputs may be _ROUNDOFFS
# times the error that rounded weights cause in float32.
_TOLERANCE, _ROUNDOFFS = 1e-3, 16


def cache(probe: TorchModel) -> Iterator[Note]:
    """Report a key-value cache if calls that use it, on a few tokens at a time, differ from one call on all tokens."""
    accepted = inspect.signature(probe.model.forward).parameters
    name = next((name for name in accepted if _CACHE.fullmatch(name)), None)
    if name is None:
        raise NotExaminedError("no argument is a cache")
    probe.require_steady()
    if sum(isinstance(value, torch.Tensor) for value in probe.arguments.values()) > 1:
        raise NotExaminedError("the model has further inputs")
    if effect_of_later(probe):
        raise NotExaminedError("attention is not causal")
    options = {"use_cache": True} if "use_cache" in accepted else {}
    with torch.no_grad():
        expected = probe.first()
        for text, lengths in _CALLS.items():
            outputs = _step_by_step(probe, name, options, lengths)
            if outputs.shape[:2] != expected.shape[:2]:
                raise NotExaminedError("the outputs are not one vector per position")
            if not same(expected, outputs, _TOLERANCE):
                sizes = (expected - outputs).abs().flatten(2).amax(2).amax(0) / expected.abs().max()
                position = int((sizes > _TOLERANCE).int().argmax())
                where = f"at position {position} first, by {float(sizes.max()):.2g} of the largest output"
                begins = expected.shape[1] - sum(lengths)
                problem = f"calls on {text} from position {begins} on, with a cache, differ from one call on all tokens"
                yield asks(f"{problem}: {where}", "cache")
                return


def _step_by_step(probe: TorchModel, name: str, options: Mapping[str, Any], lengths: Sequence[int]) -> Any:
    """Return the outputs of successive calls with a cache, joined along the positions.

    The first call gets all tokens but the last ones, which later calls get in parts. `lengths` are the numbers of
    tokens in these parts, `name` is the name of the cache argument, and `options` are passed to every call.
    """
    main, tokens = next(iter(probe.arguments.items()))
    first = tokens.shape[1] - sum(lengths)
    if first < 1:
        raise NotExaminedError("the inputs are too short")
    parts, values = [], dict(options)
    for part in tokens.split([first, *lengths], 1):
        outputs = probe.outputs({main: part, **values})
        parts.append(probe.factory.adapter.first(outputs))
        values = {**options, name: _cache_of(outputs, name)}
    return torch.cat(parts, 1)


def _cache_of(outputs: Any, name: str) -> Any:
    """Return the cache among the outputs of a call."""
    if isinstance(outputs, tuple | list):
        value = outputs[1] if len(outputs) > 1 else None
    else:
        value = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if value is None:
        raise NotExaminedError("no output is a cache")
    return value


def precision(probe: TorchModel) -> Iterator[Note]:
    """Report outputs in bfloat16 that differ from those in float32 by more than the rounding of weights explains.

    Errors are medians over the entries, as experts and other discrete choices may change at some tokens.
    """
    parameters = [p for p in probe.model.parameters() if p.is_floating_point()]
    probe.require_steady()
    if any(p.dtype != torch.float32 for p in parameters):
        raise NotExaminedError("the model is not in float32")
    copied = dataclasses.replace(probe, model=copy.deepcopy(probe.model).bfloat16())
    with torch.no_grad():
        exact = probe.for_vectors(probe.vectors.values)
        half = _error(exact, copied.first())
        rounded = _error(exact, dataclasses.replace(probe, model=copied.model.float()).first())
    if half > _ROUNDOFFS * max(rounded, 2.0**-9):
        yield asks(
            f"outputs differ by {half:.2g} in bfloat16, but by {rounded:.2g} in float32 with rounded weights",
            "precision",
        )


def _error(exact: Any, approximate: Any) -> float:
    return float((approximate.float() - exact).abs().median() / exact.abs().median())
