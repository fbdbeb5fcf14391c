"""Names of parameters and modules that differ only in numbers, and items grouped by a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from attncheck._lib.text import listed

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
# Numbers that are whole words of a name, as in h.2 and Dense_0, but not in linear1.
_NUMBER = re.compile(r"(?<![^\W_])\d+(?![^\W_])")
# Maximum number of names whose numbers `name_of` lists.
_LISTED = 4


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Group items by key, with keys and items in order of appearance.

    Examples
    --------
    >>> grouped(["one", "two", "three"], len)
    {3: ['one', 'two'], 5: ['three']}
    """
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def pattern_of(name: str) -> str:
    """Return a parameter's name with * for each number.

    Examples
    --------
    >>> pattern_of("h.11.mlp.linear1.weight"), pattern_of("Dense_0/kernel")
    ('h.*.mlp.linear1.weight', 'Dense_*/kernel')
    """
    return _NUMBER.sub("*", name)


def name_of(names: Sequence[str], all_names: Sequence[str]) -> str:
    """Return a common name for `names`, which are some of `all_names`.

    All names in `all_names` are equal except for the numbers in them. The common name lists the numbers of `names` if
    there are at most four names and at most half of all; otherwise * replaces the numbers that differ.

    Examples
    --------
    >>> every = [f"h.{i}.w" for i in range(12)]
    >>> name_of(every, every), name_of(every[3:5], every), name_of(every[:1], every), name_of(every[1:], every)
    ('h.*.w', 'h.{3,4}.w', 'h.0.w', 'h.*.w')
    """
    return _filled(names, len(names) <= min(_LISTED, len(all_names) / 2))


def similar_names(name: str, candidates: Sequence[str]) -> list[str]:
    """Return `name` and the candidates that differ from it only in numbers.

    Examples
    --------
    >>> similar_names("h.1.w", ("h.2.w", "head.w"))
    ['h.1.w', 'h.2.w']
    """
    return [candidate for candidate in (name, *candidates) if pattern_of(candidate) == pattern_of(name)]


def part_of(names: Sequence[str], every: Sequence[str]) -> str:
    """Return a common name for `names`, which are some of the names in `every`.

    All names in `every` are equal except for the numbers in them. In the common name, * replaces the numbers that
    differ if `names` are all of `every`; otherwise their numbers are listed.
    """
    return name_of(names, every) if len(names) in (1, len(every)) else _filled(names, listing=True)


def _filled(names: Sequence[str], listing: bool) -> str:
    """Return a common name for `names`, which are equal except for the numbers in them.

    Where the numbers differ, the common name has a list of them in braces if `listing` is True, and * otherwise.
    """
    columns = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    numbers = (list(dict.fromkeys(column)) for column in columns)
    several = "{{{}}}" if listing else "*"
    filled = iter([values[0] if len(values) == 1 else several.format(",".join(values)) for values in numbers])
    return _NUMBER.sub(lambda _: next(filled), names[0])


def names_of(names: Sequence[str]) -> str:
    """Join names as text; names that differ only in numbers become one pattern with a count.

    Examples
    --------
    >>> names_of(["h.0.attn"]), names_of([f"h.{i}.attn" for i in range(12)])
    ('h.0.attn', 'h.*.attn (12)')
    """
    groups = grouped(names, pattern_of).values()
    return listed(name_of(group, group) + f" ({len(group)})" * (len(group) > 1) for group in groups)


def indices(name: str) -> list[int]:
    """Return the numbers in a name."""
    return [int(number) for number in _NUMBER.findall(name)]
