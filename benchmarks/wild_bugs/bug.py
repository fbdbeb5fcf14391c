"""Fixtures: modules with a public bug, or right ones, and the expected messages."""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Make = Callable[[], Any]
Call = Callable[[Any, Any], Any]

#: The matrices as they may appear in a sentence.
QUERY = r"\bW_?Q\b|quer(y|ies)"
KEY = r"\bW_?K\b|\bkeys?\b"
VALUE = r"\bW_?V\b|\bvalues?\b"
OUTPUT = r"\bW_?O\b|\boutputs?\b"
#: The factor on the scores.
SCALE = r"\bscaled?\b|\bscores?\b"
UNDRAWN = r"same in (every|all|each)|not (re)?drawn|never (re)?drawn|does not (re)?draw|identical in (every|all)"
SAME = r"\b(same|identical|equal)\b"


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A module with a public bug.

    Attributes
    ----------
    name : str
    source : str
        Public report.
    what : str
        The bug, in our words.
    make : callable
        Returns the module, freshly initialised.
    width : int
    call : callable or None
        ``call(module, inputs)`` with inputs of shape (batch, positions, width), an array of the module's framework;
        None for the framework's usual call.
    declared : mapping
        The author's declaration. Sizes are standard deviations times √fan-in; `scale` multiplies the scores.
    sentence : tuple of str
        Regular expressions that must all match within one line of the output, or two consecutive ones.
    other : callable or None
        Makes the module to compare with: its other path, or what it is taken for.
    """

    name: str
    source: str
    what: str
    make: Make
    width: int
    sentence: tuple[str, ...]
    call: Call | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)
    other: Make | None = None


@dataclass(frozen=True, kw_only=True)
class Right:
    """A right module, and its true properties.

    Attributes
    ----------
    name : str
    make : callable
    width : int
    call : callable or None
    declared : mapping
    said : tuple of str
        Regular expressions that must match somewhere in the output.
    unsaid : tuple of str
        Regular expressions that must match nowhere in it.
    """

    name: str
    make: Make
    width: int
    call: Call | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()

    def misstated(self, text: str) -> str:
        """Return what an output fails to say, or says falsely; empty if neither."""
        missing = [f"not said: {each}" for each in self.said if not re.search(each, text, re.IGNORECASE)]
        false = [f"said: {each}" for each in self.unsaid if re.search(each, text, re.IGNORECASE)]
        return "; ".join([*missing, *false])


#: Width and heads of most fixtures.
WIDTH, HEADS = 64, 4


def bug(name: str, source: str, what: str, make: Make, *sentence: str, width: int = WIDTH, **options: Any) -> Bug:
    """Return a bug, of the usual width unless another one is given."""
    return Bug(name=name, source=source, what=what, make=make, sentence=sentence, width=width, **options)


def right(name: str, make: Make, *, width: int = WIDTH, **options: Any) -> Right:
    """Return a right module, of the usual width unless another one is given."""
    return Right(name=name, make=make, width=width, **options)


def installed(names: Iterable[str]) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def line_told(text: str, sentence: tuple[str, ...]) -> str | None:
    r"""Return the first line, or first two consecutive ones, that match all of a sentence.

    Examples
    --------
    >>> line_told("mask: none\nW_O: std 0.577", (OUTPUT, r"0\.577"))
    'W_O: std 0.577'
    >>> line_told("mask: none", (OUTPUT, r"0\.577")) is None
    True
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    pairs = (f"{first} {second}" for first, second in itertools.pairwise(lines))
    for passage in (*lines, *pairs):
        if all(re.search(pattern, passage, re.IGNORECASE) for pattern in sentence):
            return passage
    return None


class Seeds:
    """A sequence of keys for frameworks that need one per module."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __call__(self) -> int:
        return next(self._count)

    def restart(self, seed: int) -> None:
        """Restart from a seed, including Python's own generator, which keras uses."""
        self._count = itertools.count(1_000_000 * seed)
        random.seed(seed)


next_seed = Seeds()
