"""Registry of the properties of attention models, and their measurement on one model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.imports import find
from attncheck.frameworks.framework import framework_of
from attncheck.models.duties.duty import DutyResult
from attncheck.models.factory import ModelFactory
from attncheck.models.replay import ModuleCall

_HERE = __name__.rpartition(".")[0]
#: Functions that measure the properties, in the order of their notes. For a `duties.probe.TorchModel`, each yields
#: notes on violations, or raises `NotExaminedError`.
DUTIES = {
    # Every tensor with a gradient is a registered parameter.
    "registration": f"{_HERE}.gradients:registration",
    # Buffers and tables are initialised, and equal tensors are tied.
    "state": f"{_HERE}.state:state",
    # Outputs of causal attention do not depend on later inputs.
    "causality": f"{_HERE}.positions:causality",
    # Outputs of causal attention do not depend on the number of later inputs.
    "prefix": f"{_HERE}.positions:prefix",
    # Outputs of a sequence do not depend on other sequences.
    "sequences": f"{_HERE}.positions:sequences",
    # A block whose branches return 0 is the identity.
    "residual": f"{_HERE}.blocks:residual",
    # A norm acts on both queries and keys, and never on values alone.
    "norms": f"{_HERE}.blocks:norms",
    # Dropout acts in training, and not on scores.
    "dropout": f"{_HERE}.blocks:dropout",
    # Every parameter has a gradient.
    "reach": f"{_HERE}.gradients:reached",
    # A permutation of the tokens does not merely permute the outputs.
    "permutation": f"{_HERE}.positions:permutation",
    # Padding does not change the outputs at other tokens.
    "pad_tokens": f"{_HERE}.positions:pad_tokens",
    # Calls with a cache return the outputs of one call on all tokens.
    "cache": f"{_HERE}.calls:cache",
    # bfloat16 differs from float32 by roundoff only.
    "precision": f"{_HERE}.calls:precision",
}
NAMES = tuple(DUTIES)
# Processor time, in seconds, after which no further property is measured.
_SECONDS = 2.0


def measured(factory: ModelFactory, model: Any, calls: Sequence[ModuleCall], steady: bool) -> tuple[DutyResult, ...]:
    """Measure all properties of a model, and restore it; `calls` are the calls of its attention modules."""
    if framework_of(model) != "torch":
        return tuple(DutyResult(name, reason="measured in PyTorch models only") for name in NAMES)
    from attncheck.models.duties.probe import TorchModel

    probe, end = TorchModel(factory, model, calls, steady), time.process_time() + _SECONDS
    with probe.ready():
        return tuple(_result(name, probe, end) for name in DUTIES)


def _result(name: str, probe: Any, end: float) -> DutyResult:
    """Measure the property `name`, unless the processor time has reached `end` because earlier ones took too long."""
    if time.process_time() > end:
        return DutyResult(name, reason="the model is too slow")
    measure = find(DUTIES[name])  # outside of `try`, because a failed import says nothing about the model
    try:
        return DutyResult(name, tuple(dict.fromkeys(measure(probe))))
    except Exception as error:  # raised by the measurement, by the model for changed inputs, or in its backward pass
        reason = str(error).partition("; ")[0] or type(error).__name__
        return DutyResult(name, reason=reason.partition("\n")[0])


def expectations(texts: Sequence[str]) -> dict[str, bool]:
    """Return the expected values of properties by name, and ignore all other expectations.

    Examples
    --------
    >>> expectations(["causality", "state=false", "causal"])
    {'causality': True, 'state': False}
    """
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if name in NAMES and equals and value not in ("true", "false"):
            refuse("expect", f"{name}={value}", "is neither true nor false", f"write {name} or {name}=false")
    return {name: value != "false" for name, _, value in pairs if name in NAMES}
