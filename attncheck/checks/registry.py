"""Registry of checks: constants list attncheck's own checks; functions also cover those of other packages."""

from __future__ import annotations

from attncheck._lib.errors import refuse, suggestion
from attncheck.checks import (
    comparison,
    conditional,
    draws,
    independence,
    inputs,
    matrices,
    outputs,
    scores,
    structure,
)
from attncheck.checks.check import AnyCheck, Check
from attncheck.checks.programs import PROGRAM_CHECKS
from attncheck.checks.registered import registrations

#: Checks of layers.
CHECKS: tuple[Check, ...] = (
    *comparison.CHECKS,
    *inputs.CHECKS,
    *scores.CHECKS,
    *outputs.CHECKS,
    *conditional.CHECKS,
    *independence.CHECKS,
    *draws.CHECKS,
    *matrices.CHECKS,
    *structure.CHECKS,
)

#: Properties of layers: groups of checks that share a sample.
PROPERTIES: tuple[str, ...] = tuple(dict.fromkeys(check.property_name for check in CHECKS))
#: attncheck's own checks, of layers and of programs.
EVERY_CHECK: tuple[AnyCheck, ...] = (*CHECKS, *PROGRAM_CHECKS)
#: Properties of programs.
PROGRAM_PROPERTIES: tuple[str, ...] = tuple(dict.fromkeys(check.property_name for check in PROGRAM_CHECKS))
#: attncheck's own properties, of layers and of programs.
EVERY_PROPERTY = (*PROPERTIES, *PROGRAM_PROPERTIES)
_OWN = {name: tuple(check for check in EVERY_CHECK if check.property_name == name) for name in EVERY_PROPERTY}


def all_checks() -> tuple[AnyCheck, ...]:
    """Return attncheck's own checks and the registered ones.

    Examples
    --------
    >>> all_checks()[0].name
    'exactness.score'
    """
    return (*EVERY_CHECK, *(registration.check for registration in registrations()))


def all_properties() -> tuple[str, ...]:
    """Return attncheck's own properties and the registered ones.

    Examples
    --------
    >>> "scores" in all_properties()
    True
    """
    return tuple(dict.fromkeys((*EVERY_PROPERTY, *(entry.check.property_name for entry in registrations()))))


def check_named(name: str) -> AnyCheck:
    """Return a check by its name.

    Raises
    ------
    InputError
        If there is no such check.

    Examples
    --------
    >>> check_named("scores.scale").claim
    'scores'
    """
    check = find_check(name)
    if check is None:
        remedy = "install its package, or load its module with --checks"
        refuse("check", name, "is not known", suggestion(name, [check.name for check in all_checks()], remedy))
    return check


def find_check(name: str) -> AnyCheck | None:
    """Return a check by its name, or None."""
    builtin = _OWN.get(name.partition(".")[0])
    checks = (registration.check for registration in registrations()) if builtin is None else builtin
    return next((check for check in checks if check.name == name), None)


def checks_of(name: str) -> tuple[AnyCheck, ...]:
    """Return the checks of one property.

    Raises
    ------
    InputError
        If there is no such property.

    Examples
    --------
    >>> [check.name for check in checks_of("non_gaussianity")]
    ['non_gaussianity.output_energy']
    """
    if name in _OWN:
        return _OWN[name]
    checks = tuple(registration.check for registration in registrations() if registration.check.property_name == name)
    if not checks:
        names = ", ".join(all_properties())
        refuse("property", name, "is not known", f"use one of {names}, or load a module with --checks")
    return checks
