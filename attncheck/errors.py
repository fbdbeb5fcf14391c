"""The one error that bad input raises: it names the field, the value and the remedy."""

from __future__ import annotations

from typing import Any, NoReturn


class InputError(ValueError):
    """Input that attncheck cannot use; the message is one line and ends with the remedy."""


def refuse(field: str, value: Any, problem: str, remedy: str) -> NoReturn:
    """Raise `InputError` as ``field=value: problem; remedy``.

    Parameters
    ----------
    field : str
        Name of the offending field, argument, column or file.
    value : Any
        What was given; shown by its repr, shortened.
    problem : str
        Why it cannot be used.
    remedy : str
        What to pass instead.

    Raises
    ------
    InputError
        Always.

    Examples
    --------
    >>> refuse("width", -3, "must be at least 1", "pass the number of neurons, e.g. width=64")
    Traceback (most recent call last):
    ...
    attncheck.errors.InputError: width=-3: must be at least 1; pass the number of neurons, e.g. width=64
    """
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    raise InputError(f"{field}={shown}: {problem}; {remedy}")


def check_whole(field: str, value: Any, minimum: int, remedy: str) -> int:
    """Return `value` as an int of at least `minimum`, or raise `InputError`.

    NumPy integers are accepted, booleans and floats are not.
    """
    import operator

    if isinstance(value, bool):
        refuse(field, value, "must be a whole number, not a boolean", remedy)
    try:
        whole = operator.index(value)
    except TypeError:
        refuse(field, value, "must be a whole number", remedy)
    if whole < minimum:
        refuse(field, value, f"must be at least {minimum}", remedy)
    return whole


def check_number(
    field: str,
    value: Any,
    remedy: str,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> float:
    """Return `value` as a finite float within the stated bounds, or raise `InputError`."""
    import math

    if isinstance(value, bool | str | bytes) or bool(getattr(value, "ndim", 0)):
        refuse(field, value, "must be a number", remedy)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        refuse(field, value, "must be a number", remedy)
    if not math.isfinite(number):
        refuse(field, value, "must be finite", remedy)
    if above is not None and not number > above:
        refuse(field, value, f"must be greater than {above:g}", remedy)
    if minimum is not None and number < minimum:
        refuse(field, value, f"must be at least {minimum:g}", remedy)
    if maximum is not None and number > maximum:
        refuse(field, value, f"must be at most {maximum:g}", remedy)
    return number


def check_choice(field: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`, or raise `InputError` that lists them."""
    if not isinstance(value, str) or value not in choices:
        refuse(field, value, "is not known", "use one of " + ", ".join(repr(c) for c in choices))
    return str(value)
