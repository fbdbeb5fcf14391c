"""`InputError`, which names field, value and remedy, and validators that raise it."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

# pytest shows the caller of a validator.
__tracebackhide__ = True


class InputError(ValueError):
    """Unusable input; the message is one line and ends with the remedy."""


def refuse(field: str, value: Any, problem: str, remedy: str) -> NoReturn:
    """Raise `InputError` with the message ``field=value: problem; remedy``; the value is shown by a shortened repr.

    Examples
    --------
    >>> refuse("width", -3, "must be at least 1", "pass the number of neurons, e.g. width=64")
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: width=-3: must be at least 1; pass the number of neurons, e.g. width=64
    """
    raise InputError(f"{field}={_display(value)}: {problem}; {remedy}")


@contextlib.contextmanager
def naming(source: Any) -> Iterator[None]:
    """Prefix the messages of input errors raised in this context with `source`.

    The prefix is added only if `source` is a path and the message does not contain it.

    Examples
    --------
    >>> from pathlib import Path
    >>> with naming(Path("layer.toml")):
    ...     check_integer("width", 0, 1, "pass width=64")
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: layer.toml: width=0: must be at least 1; pass width=64
    """
    try:
        yield
    except InputError as error:
        if not isinstance(source, os.PathLike) or str(source) in str(error):
            raise
        raise InputError(f"{source}: {error}") from error.__cause__


def _display(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # repr fails, e.g. for an int with more digits than Python prints
        text = f"<{type(value).__name__}>"
    if text.splitlines() != [text]:
        text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."


def _is_boolean(value: Any) -> bool:
    """Return whether a value is a Python or NumPy boolean."""
    return isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b"


# Maximum number of bits: Python does not print the squares of larger integers.
_MOST_BITS = 4_000
#: Largest accepted number of draws; a larger one is a mistake.
MOST_DRAWS = 10**12
# Longest accepted list of whole numbers.
_LONGEST = 10_000
# If there are at most _FEW choices, all are listed. Otherwise, a name whose similarity is at least _CLOSE is suggested;
# that of heads and num_heads is 0.714.
_FEW, _CLOSE = 8, 0.71


def check_integer(field: str, value: Any, minimum: int, remedy: str, maximum: int | None = None) -> int:
    """Return `value` as an int within the bounds, or raise `InputError`; booleans and floats are refused too."""
    import operator

    if _is_boolean(value):
        refuse(field, value, "must be a whole number, not a boolean", remedy)
    try:
        number = operator.index(value)
    except TypeError:
        refuse(field, value, "must be a whole number", remedy)
    if number.bit_length() > _MOST_BITS:
        refuse(field, value, "is too large", remedy)
    if number < minimum:
        refuse(field, value, f"must be at least {minimum}", remedy)
    if maximum is not None and number > maximum:
        refuse(field, value, f"must be at most {maximum}", remedy)
    return number


def check_draws(field: str, value: Any, minimum: int, remedy: str) -> int:
    """Return `value`, a number of draws, as an int from `minimum` to `MOST_DRAWS`, or raise `InputError`."""
    return check_integer(field, value, minimum, remedy, MOST_DRAWS)


def check_position(field: str, value: Any, seq_len: int) -> int:
    """Return `value`, a position, as an int from 0 to ``seq_len - 1``, or raise `InputError`."""
    last = seq_len - 1
    position = check_integer(field, value, 0, f"pass a position from 0 to {last}")
    if position > last:
        refuse(field, value, f"exceeds the last position {last}", f"pass 0 to {last}")
    return position


def check_integers(field: str, values: Any, minimum: int, remedy: str) -> list[int]:
    """Return distinct whole numbers of at least `minimum`, sorted, or raise `InputError`."""
    from itertools import islice

    try:
        listed = None if isinstance(values, str | bytes) else list(islice(values, _LONGEST + 1))
    except TypeError:
        listed = None
    if listed is None:
        refuse(field, values, "is not a list of whole numbers", remedy)
    if len(listed) > _LONGEST:
        refuse(field, values, f"has more than {_LONGEST} numbers", remedy)
    return sorted({check_integer(field, value, minimum, remedy) for value in listed})


def _as_float(field: str, value: Any, remedy: str) -> float:
    if _is_boolean(value) or isinstance(value, str | bytes) or bool(getattr(value, "ndim", 0)):
        refuse(field, value, "must be a number", remedy)
    try:
        return float(value)
    except OverflowError:
        refuse(field, value, "is larger than any float", remedy)
    except (TypeError, ValueError):
        refuse(field, value, "must be a number", remedy)


def check_number(
    field: str,
    value: Any,
    remedy: str,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> float:
    """Return `value` as a finite float within the bounds, or raise `InputError`.

    The value must be greater than `above`, at least `minimum` and at most `maximum`; None is no bound.
    """
    import math

    # Skip the conversion of floats for speed: nearly all values are floats, and some runs check millions of them.
    number = value if type(value) is float else _as_float(field, value, remedy)
    if not math.isfinite(number):
        refuse(field, value, "must be finite", remedy)
    if above is not None and not number > above:
        refuse(field, value, f"must be greater than {above:g}", remedy)
    if minimum is not None and number < minimum:
        refuse(field, value, f"must be at least {minimum:g}", remedy)
    if maximum is not None and number > maximum:
        refuse(field, value, f"must be at most {maximum:g}", remedy)
    return number


def suggestion(name: Any, known: Iterable[str], otherwise: str = "") -> str:
    """Return a remedy for a name that is not known: the closest known name, or else `otherwise`.

    Without `otherwise`, all known names are listed.

    Examples
    --------
    >>> suggestion("widht", ["width", "seq_len"]), suggestion("depth", ["width", "seq_len"])
    ("did you mean 'width'?", "use one of 'width', 'seq_len'")
    """
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=_CLOSE)
    return f"did you mean {close[0]!r}?" if close else otherwise or "use one of " + ", ".join(map(repr, names))


def check_choice(field: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of `choices`, or raise `InputError` listing them."""
    if not isinstance(value, str) or value not in choices:
        few = len(choices) <= _FEW
        refuse(field, value, "is not known", suggestion("" if few else value, choices))
    return str(value)


def check_boolean(field: str, value: Any, remedy: str) -> bool:
    """Return `value` as a bool if it is a boolean, or raise `InputError`."""
    if not _is_boolean(value):
        refuse(field, value, "must be a boolean", remedy)
    return bool(value)


def validate(instance: Any, field: str, check: Callable[..., Any], *arguments: Any, **limits: Any) -> None:
    """Replace the value of a field of a frozen dataclass by the result of a check.

    The check is called as ``check(field, value, *arguments, **limits)``, where `field` is the name of the field.
    """
    object.__setattr__(instance, field, check(field, getattr(instance, field), *arguments, **limits))


def refuse_unknown(where: str, fields: Mapping[str, Any], described: Any) -> None:
    """Raise `InputError` for the first name in `fields` that is not a field of the dataclass `described`.

    The message shows this name with the prefix `where`, as ``where.name``.
    """
    known = [field.name for field in dataclasses.fields(described)]
    for name in fields:
        if name not in known:
            refuse(f"{where}.{name}", fields[name], f"is not a field of {described.__name__}", suggestion(name, known))


def foreign_traceback(error: BaseException) -> str:
    """Return the traceback of an error's cause without attncheck's own frames.

    The result is empty if the error has no cause.
    """
    cause = error.__cause__
    if cause is None:
        return ""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if not frame.filename.startswith(package)]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    return "".join([*lines, *traceback.format_exception_only(cause)]).rstrip()
