"""Public names of ``attncheck.checks``, and `register`, for checks in other packages."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_args

from attncheck._lib.errors import InputError, check_choice, check_integer, refuse
from attncheck.checks.check import Alternative, Check, CheckOf, Kind, Setting
from attncheck.checks.claims import Claim
from attncheck.checks.declared import AlternativeOf, Rejected
from attncheck.checks.reference import Reference
from attncheck.checks.registered import Registration, Simulator, add
from attncheck.checks.registry import EVERY_PROPERTY
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Count, Scale, TwoSample, Uniform
from attncheck.evidence.family import Family
from attncheck.layers.requirements import OfLayer

_Measure = TypeVar("_Measure", bound=Callable[..., tuple[Any, ...]])


def register(
    *,
    name: str,
    null: str,
    alternative: Alternative,
    reads: str,
    family: Callable[[Setting], Family],
    fault: Simulator,
    needs: Iterable[str] = ("outputs",),
    claim: str = "",
    source: str = "",
    unseen: str = "",
    **fields: Any,
) -> Callable[[_Measure], _Measure]:
    """Register the decorated function as the measure of a check of layers.

    Parameters
    ----------
    name : str
        ``property.statistic``; checks of one property share draws. attncheck's own properties cannot be used.
    null : str
        Null hypothesis, which holds for every correct simulator.
    alternative : Alternative
        Deviation that determines sample sizes.
    reads : str
        Description of the effect, displayed before its value.
    family : callable Setting -> Family
        Statistical family of the measured data.
    fault : callable (layer, size, rng) -> mapping
        Wrong simulator that the check must reject. The first line of its docstring describes it.
    needs : iterable of str
        Arrays that a simulator must return; see `attncheck.Draws`.
    claim : str
        The tested statement; by default `null`.
    source : str
        Where the statement is proved.
    unseen : str
        What a pass does not show.
    **fields
        Further fields of `Check`, such as ``hint``, ``requires`` and ``kind``.

    Returns
    -------
    callable
        Decorator that returns the function unchanged. The function takes a `Sample` and a `Reference`, and returns
        the arguments of the family's ``test``.

    Raises
    ------
    InputError
        If the name is malformed, taken or attncheck's own, or a field is missing or unknown.

    Examples
    --------
    >>> from attncheck.checks import Count
    >>> register(
    ...     name="scores.mine",
    ...     null="scores are finite",
    ...     alternative=Alternative.of("one is not", 1.0),
    ...     reads="share:",
    ...     family=lambda setting: Count(0.0),
    ...     fault=lambda layer, size, rng: {},
    ... )
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: name='scores.mine': is in the property 'scores' of attncheck; choose another
    property
    """
    if not re.fullmatch(r"[a-z]\w*\.[a-z]\w*", name):
        refuse("name", name, "is not of the form property.statistic", "use lower-case names, e.g. row_sums.mean")
    if (prefix := name.partition(".")[0]) in EVERY_PROPERTY:
        refuse("name", name, f"is in the property {prefix!r} of attncheck", "choose another property")
    if not null.strip():
        refuse("null", null, "is empty", "state what holds for every correct simulator")
    if not isinstance(alternative, AlternativeOf):
        refuse("alternative", alternative, "is not an Alternative", "pass Alternative.of(text, effect)")
    for field, value in (("family", family), ("fault", fault)):
        if not callable(value):
            refuse(field, value, "is not a function", "pass a function; see attncheck.checks.register")
    arrays = frozenset(check_choice("needs", entry, (*EVERY_FIELD, "masked scores")) for entry in needs)

    kind = fields.get("kind", "exact")
    check_choice("kind", kind, get_args(Kind))
    for field in ("calls", "draws_per_unit", "fewest_draws"):
        check_integer(field, fields.get(field, 1), 1, "pass a whole number of at least 1")
    if unknown := sorted(fields.keys() - {entry.name for entry in dataclasses.fields(CheckOf)}):
        refuse(unknown[0], fields[unknown[0]], "is not a field that can be set", "see attncheck.checks.Check")

    def decorate(measure: _Measure) -> _Measure:
        check = Check(
            name=name,
            rejects=Rejected.of(fault),
            claim=name,
            needs=arrays,
            null=null,
            alternative=alternative,
            reads=reads,
            family=family,
            measure=functools.partial(_measured, name, measure),
            **fields,
        )
        add(Registration(check, Claim(name, claim or null, source, unseen), measure))
        return measure

    return decorate


def _measured(name: str, measure: Callable[..., Any], sample: Sample, reference: Reference) -> tuple[Any, ...]:
    """Return the data of another package's measure, or raise an `InputError` that names the check."""
    try:
        data = measure(sample, reference)
    except InputError:
        raise
    except Exception as error:
        refuse("check", name, f"raised {type(error).__name__}: {error}", "fix its measure")
    if not isinstance(data, tuple) or not data:
        refuse("check", name, f"measured {data!r}", "return a tuple, the arguments of the family's test")
    return data


__all__ = [
    "Alternative",
    "Check",
    "Count",
    "Family",
    "OfLayer",
    "Reference",
    "Sample",
    "Scale",
    "Setting",
    "TwoSample",
    "Uniform",
    "register",
]
