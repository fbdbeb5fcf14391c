"""All properties, and their measurement on a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.imports import find
from attncheck.frameworks.framework import framework_of
from attncheck.models.calls import ModuleCall
from attncheck.models.duties.duty import Duty, DutyResult, NotExaminedError
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
    Duty("reach", "every parameter has a gradient", f"{_HERE}.gradients:reach"),
    Duty("permutation", "permuted tokens do more than permute outputs", f"{_HERE}.positions:permutation"),
    Duty("pad_tokens", "padding changes nothing at other tokens", f"{_HERE}.positions:pad_tokens"),
    Duty("cache", "a cache returns the outputs of one call", f"{_HERE}.calls:cache"),
    Duty("precision", "bfloat16 differs from float32 by roundoff only", f"{_HERE}.calls:precision"),
)
NAMES = tuple(duty.name for duty in DUTIES)
_OTHER = "measured in PyTorch models only"
_MOST = 2**33


def measured(factory: ModelFactory, model: Any, calls: Sequence[ModuleCall], steady: bool) -> tuple[DutyResult, ...]:
    """Measure all properties of a model with attention modules `calls`; it is restored afterwards."""
    if framework_of(model) != "torch":
        return tuple(DutyResult(name, reason=_OTHER) for name in NAMES)
    from attncheck.models.duties.probe import TorchModel

    probe = TorchModel(factory, model, calls, steady)
    if probe.work > _MOST:
        reason = "the model is too large"
        return tuple(DutyResult(name, reason=reason) for name in NAMES)
    with probe.ready():
        return tuple(_result(duty, probe) for duty in DUTIES)


def _result(duty: Duty, probe: Any) -> DutyResult:
    try:
        return DutyResult(duty.name, tuple(dict.fromkeys(find(duty.measure)(probe))))
    except NotExaminedError as reason:
        return DutyResult(duty.name, reason=str(reason))
    except InputError as error:  # of the model, for changed inputs
        return DutyResult(duty.name, reason=str(error).partition("; ")[0])
    except Exception as error:  # a backward pass may fail in any way
        return DutyResult(duty.name, reason=f"{type(error).__name__}: {error}".partition("\n")[0])


def expectation(text: str) -> tuple[str, bool] | None:
    """Return the name and value of an expectation on a property, or None for any other text.

    Examples
    --------
    >>> expectation("causality"), expectation("state=false"), expectation("causal")
    (('causality', True), ('state', False), None)
    """
    name, equals, value = text.partition("=")
    if name not in NAMES:
        return None
    if equals and value not in ("true", "false"):
        refuse("expect", text, "is neither true nor false", f"write {name} or {name}=false")
    return name, value != "false"
