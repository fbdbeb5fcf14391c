"""Types of command-line arguments, with names for the help text and errors that name option, value and remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from attncheck._lib.errors import check_integer, check_number, refuse
from attncheck.runs.options import count, drawn_seed, typed

ProfileName = Literal["smoke", "default", "thorough"]
Template = Literal["numpy", "torch", "flax", "keras"]
PublishedFigure = Literal["all", "fig1", "fig2", "fig3", "fig5"]
#: An option with the short form ``-o``.
Out = Parameter(name=["--out", "-o"])
#: A flag with the short form ``-v``.
Verbose = Parameter(name=["--verbose", "-v"], negative="")
#: A flag without a negative form.
Flag = Annotated[bool, Parameter(negative="")]


def _option(read: Callable[[str, str], Any]) -> Parameter:
    """Return a parameter type whose values are parsed by ``read(name, text)``, given an option's name and text."""

    def convert(kind: Any, tokens: Sequence[Token]) -> Any:
        return read((tokens[0].keyword or "").lstrip("-").replace("-", "_"), tokens[0].value)

    return Parameter(converter=convert)


def integer_of(field: str, text: str) -> int:
    """Parse a positive whole number.

    Raises
    ------
    InputError
        If the text is not a positive whole number.

    Examples
    --------
    >>> integer_of("width", "64")
    64
    """
    return check_integer(field, typed(text, int), 1, f"pass a whole number, e.g. --{field.replace('_', '-')} 64")


def _seed_of(field: str, text: str) -> int:
    return check_integer(field, typed(drawn_seed(text), int), 0, "pass a whole number, or random")


def _positive(remedy: str) -> Callable[[str, str], float]:
    return lambda field, text: check_number(field, typed(text, float), remedy, above=0.0)


#: A positive whole number.
Integer = Annotated[int, _option(integer_of)]
#: A whole number, possibly 0.
Natural = Annotated[int, _option(lambda field, text: check_integer(field, typed(text, int), 0, "pass a whole number"))]
#: A number of draws, which may be written as 1e6.
Draws = Annotated[int, _option(lambda field, text: check_integer(field, typed(text, count), 1, "pass e.g. 1e6"))]
#: The seed of a run, also "random".
Seed = Annotated[int, _option(_seed_of)]
#: A probability.
Chance = Annotated[float, _option(_positive("pass a chance such as 1e-6"))]
#: A time limit, in seconds.
Seconds = Annotated[float, _option(_positive("pass seconds"))]


def folder_of(text: str, field: str = "out") -> Path:
    """Return the path of a folder to write into.

    Raises
    ------
    InputError
        If the text is empty, for example from an unset shell variable.

    Examples
    --------
    >>> folder_of("paper").name
    'paper'
    """
    if not text.strip():
        refuse(field, text, "names no folder", "pass a folder, or . for the current one")
    return Path(text)
