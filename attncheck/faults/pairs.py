"""The wrong simulators that a check must reject, and the checks that must reject a wrong simulator."""

from __future__ import annotations

from attncheck.checks.check import AnyCheck
from attncheck.checks.registry import PROGRAM_PROPERTIES, all_checks
from attncheck.faults import Fault, all_faults, fault_of
from attncheck.faults.programs import PROGRAM_FAULTS
from attncheck.faults.tampered import CORRUPTIONS


def fault_named(name: str) -> Fault:
    """Return the wrong simulator of layers with this name.

    Examples
    --------
    >>> fault_named("copied_draws").what
    'the second half of every call repeats the first'
    """
    return {**all_faults(), **CORRUPTIONS}[name]


def paired(check: AnyCheck) -> tuple[Fault, ...]:
    """Return the wrong simulators that a check must reject, which its field `rejects` lists.

    Examples
    --------
    >>> from attncheck.checks.registry import check_named
    >>> [fault.what for fault in paired(check_named("independence.output_inputs"))]
    ['the inputs are added to the outputs, as a residual stream would be']
    """
    named = PROGRAM_FAULTS.__getitem__ if check.property_name in PROGRAM_PROPERTIES else fault_named
    return tuple(named(fault) if isinstance(fault, str) else fault_of(fault, check) for fault in check.rejects.faults)


def rejecting(fault: Fault) -> list[str]:
    """Return the names of the checks that must reject a fault, because their field `rejects` lists the fault.

    Examples
    --------
    >>> rejecting(PROGRAM_FAULTS["shifted_initials"])
    ['netsor.initials', 'netsor.moments']
    """
    return [check.name for check in all_checks() if fault in paired(check)]
