"""The registry of checks."""

from __future__ import annotations

import functools

from attncheck._lib.errors import refuse
from attncheck.checks import (
    comparison,
    conditional,
    draws,
    extremes,
    heads,
    independence,
    inputs,
    outputs,
    scores,
    sharing,
    trends,
)
from attncheck.checks.check import AnyCheck, Check, by_weights
from attncheck.checks.exclusions import for_parts
from attncheck.checks.literal import for_any_law
from attncheck.checks.programs import PROGRAM_CHECKS

#: Checks of layers.
CHECKS: tuple[Check, ...] = tuple(
    for_any_law(for_parts(by_weights(check)))
    for module in (
        comparison,
        inputs,
        scores,
        outputs,
        conditional,
        independence,
        sharing,
        draws,
        extremes,
        trends,
        heads,
    )
    for check in module.CHECKS
)

#: Properties of layers: groups of checks that share a sample.
PROPERTIES: tuple[str, ...] = tuple(dict.fromkeys(check.property_name for check in CHECKS))
#: Checks of layers and of programs.
EVERY_CHECK: tuple[AnyCheck, ...] = (*CHECKS, *PROGRAM_CHECKS)
#: Properties of programs.
PROGRAM_PROPERTIES: tuple[str, ...] = tuple(dict.fromkeys(check.property_name for check in PROGRAM_CHECKS))
#: Properties of layers and of programs.
EVERY_PROPERTY = (*PROPERTIES, *PROGRAM_PROPERTIES)


def property_key(name: str) -> str:
    """Return the permanent identifier of a property in streams and records: the prefix of its checks' keys.

    Raises
    ------
    InputError
        If there is no such property.

    Examples
    --------
    >>> property_key("scores")
    'scores'
    """
    return checks_of(name)[0].key.partition(".")[0]


def check_named(name: str) -> AnyCheck:
    """Return a check by its name.

    Raises
    ------
    InputError
        If there is no such check or property.

    Examples
    --------
    >>> check_named("scores.scale").claim
    'scores'
    """
    found = next((check for check in checks_of(name.partition(".")[0]) if check.name == name), None)
    if found is None:
        refuse("check", name, "is not known", "use the version of attncheck that knows it")
    return found


@functools.cache
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
    found = tuple(check for check in EVERY_CHECK if check.property_name == name)
    if not found:
        refuse("property", name, "is not known", "use one of " + ", ".join(EVERY_PROPERTY))
    return found
