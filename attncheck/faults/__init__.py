"""Known-wrong simulators, for measuring the power of the checks.

Every fault is a subject: ``pytest -n auto properties/ --attncheck-subject attncheck.faults:tied_query_key``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attncheck._lib.errors import check_choice
from attncheck._lib.imports import short_name
from attncheck.checks.check import AnyCheck
from attncheck.checks.registered import registrations
from attncheck.checks.returned import FIELDS
from attncheck.faults import misread, wrong_laws, wrong_regimes, wrong_scales, wrong_wirings
from attncheck.faults.fault import Fault, ReducedExposure, Simulator

__all__ = ["EXPOSURES", "FAULTS", "Fault", "ReducedExposure", "Simulator", "all_faults", "exposing", "fault_of"]

#: Faults by name.
FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for module in (wrong_scales, wrong_wirings, wrong_laws, wrong_regimes, misread)
    for fault in module.FAULTS
}

#: Named sets of fields that a simulator may return, the largest set first.
EXPOSURES: Mapping[str, tuple[str, ...]] = {"grams": FIELDS, "scores": ("outputs", "scores"), "outputs": ("outputs",)}


def all_faults() -> dict[str, Fault]:
    """Return attncheck's faults and those of registered checks, by name.

    Examples
    --------
    >>> "tied_query_key" in all_faults()
    True
    """
    registered = [fault_of(fault, entry.check) for entry in registrations() for fault in entry.check.rejects.faults]
    return {**FAULTS, **{fault.name: fault for fault in registered}}


def fault_of(subject: Any, check: AnyCheck) -> Fault:
    """Return a `Fault` named ``module:function`` for `subject`, a function that simulates wrongly.

    `check` is the check that must reject the function.
    """
    name = f"{subject.__module__}:{short_name(subject)}"
    description = (subject.__doc__ or "a wrong simulator").strip().splitlines()[0].rstrip(".")
    return Fault(name, description, check.requires, subject)


def exposing(simulator: Fault | Simulator, fields: Iterable[str]) -> ReducedExposure:
    """Return a simulator that exposes only some of its fields.

    Parameters
    ----------
    simulator : Fault or callable (layer, size, rng) -> mapping
    fields : iterable of str
        Names of returned arrays, e.g. a value of `EXPOSURES`.

    Examples
    --------
    >>> from attncheck.subject import Subject
    >>> blind = exposing(FAULTS["tied_query_key"], EXPOSURES["scores"])
    >>> sorted(blind.fields), Subject.of(blind).form
    (['outputs', 'scores'], 'size')
    """
    selection = frozenset(check_choice("fields", name, FIELDS) for name in fields)
    return ReducedExposure(simulator.subject if isinstance(simulator, Fault) else simulator, selection)


def __getattr__(name: str) -> Any:
    if name not in FAULTS:
        raise AttributeError(f"module 'attncheck.faults' has no attribute {name!r}")
    return FAULTS[name].subject
