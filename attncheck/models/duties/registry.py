"""All properties, and their measurement on a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.imports import find
from attncheck.frameworks.framework import framework_of
from attncheck.models.calls import ModuleCall
from attncheck.models.duties.duty import Duty, DutyResult
from attncheck.models.factory import ModelFactory

_HERE = __name__.rpartition(".")[0]
#: Properties in the order of their notes.
DUTIES = (
    Duty("registration", "every tensor that computes is registered", f"{_HERE}.gradients:registration"),
    Duty("state", "buffers and tables are initialised, and equal tensors are tied", f"{_HERE}.state:state"),
    Duty("causality", "outputs of causal attention do not depend on later inputs", f"{_HERE}.positions:causality"),
    Duty("sequences", "outputs of a sequence do not depend on the others", f"{_HERE}.positions:sequences"),
    Duty("residual", "a block whose branches return 0 is the identity", f"{_HERE}.blocks:residual"),
    Duty("norms", "a norm of queries reaches keys, and none is on values alone", f"{_HERE}.blocks:norms"),
    Duty("dropout", "dropout acts in training, and not on scores", f"{_HERE}.blocks:dropout"),
    Duty("reach", "every parameter has a gradient", f"{_HERE}.gradients:reached"),
    Duty("permutation", "permuted tokens do more than permute outputs", f"{_HERE}.positions:permutation"),
    Duty("pad_tokens", "padding changes nothing at other tokens", f"{_HERE}.positions:pad_tokens"),
    Duty("cache", "a cache returns the outputs of one call", f"{_HERE}.calls:cache"),
    Duty("precision", "bfloat16 differs from float32 by roundoff only", f"{_HERE}.calls:precision"),
)
NAMES = tuple(duty.name for duty in DUTIES)
# Processor time after which no other property is measured.
_SECONDS = 2.0


def measured(factory: ModelFactory, model: Any, calls: Sequence[ModuleCall], steady: bool) -> tuple[DutyResult, ...]:
    """Measure all properties of a model with attention modules `calls`; it is restored afterwards."""
    if framework_of(model) != "torch":
        return tuple(DutyResult(name, reason="measured in PyTorch models only") for name in NAMES)
    from attncheck.models.duties.probe import TorchModel

    probe, end = TorchModel(factory, model, calls, steady), time.process_time() + _SECONDS
    with probe.ready():
        return tuple(_result(duty, probe, end) for duty in DUTIES)


def _result(duty: Duty, probe: Any, end: float) -> DutyResult:
    """Measure a property, unless the earlier ones took too long."""
    if time.process_time() > end:
        return DutyResult(duty.name, reason="the model is too slow")
    measure = find(duty.measure)  # whose absence is no property of the model
    try:
        return DutyResult(duty.name, tuple(dict.fromkeys(measure(probe))))
    except Exception as error:  # of the measurement, of the model for changed inputs, or of its backward pass
        reason = str(error).partition("; ")[0] or type(error).__name__
        return DutyResult(duty.name, reason=reason.partition("\n")[0])


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
