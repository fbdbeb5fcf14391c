"""What comes from the command line as text: so that 1.5 is refused and not cut, and "" is not the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import Parameter

from attncheck._lib.errors import check_whole, refuse

ProfileName = Literal["smoke", "default", "thorough"]
Beginning = Literal["numpy", "torch"]
PublishedFigure = Literal["all", "fig1", "fig2", "fig3", "fig5", "tangent", "norms", "weights", "long", "boundaries"]
#: An option that ``-o`` stands for too.
Out = Parameter(name=["--out", "-o"])
#: A switch that ``-v`` stands for too.
Verbose = Parameter(name=["--verbose", "-v"], negative="")


def seed_of(text: str) -> int:
    """Return the seed of a run.

    Raises
    ------
    InputError
        If it is no whole number of at least 0.

    Examples
    --------
    >>> seed_of("7")
    7
    """
    return check_whole("seed", _number(text), 0, "pass a whole number")


def whole_of(field: str, text: str) -> int:
    """Return a whole number of at least 1.

    Raises
    ------
    InputError
        If it is none.

    Examples
    --------
    >>> whole_of("width", "64")
    64
    """
    return check_whole(field, _number(text), 1, f"pass a whole number, e.g. --{field} 64")


def folder_of(text: str, field: str = "out") -> Path:
    """Return a folder to write into; the current one has a name too, ``.``.

    Raises
    ------
    InputError
        If the text is empty, as where a variable of a shell was not set.

    Examples
    --------
    >>> folder_of("paper").name
    'paper'
    """
    if not text.strip():
        refuse(field, text, "names no folder", "pass one, or . for the current one")
    return Path(text)


def _number(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text
