"""Claims: the statements that checks test, and what a pass does not show."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

_Row = TypeVar("_Row")
#: Start of the reason for not examining a check whose arrays the subject does not return.
NOT_EXPOSED = "the subject does not expose "
#: Start of the reason for not examining a layer that the subject does not support.
UNSUPPORTED = "the subject does not support this layer"
#: Reason for not examining a check that needs two neurons.
ONE_NEURON = "the subject returns one neuron only"
#: Reason for not examining checks that count repeated numbers.
TWO_VALUES = "two-valued weights may repeat numbers by chance"
#: Reason for not examining a check that passes inputs to the subject.
NO_INPUTS = "attncheck does not provide the inputs"
#: End of the reason for not examining a check with too few draws.
LARGER = "a larger profile affords more"


def rows(table: str, row: type[_Row]) -> tuple[_Row, ...]:
    """Return the rows of one table in ``paper.toml``, converted to the class `row`."""
    tables = tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))
    return tuple(msgspec.convert(entry, row) for entry in tables[table])


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper, or an exact finite-width statement that it rests on.

    Attributes
    ----------
    name : str
        Key in `CLAIMS`.
    statement : str
        The claim.
    source : str
        Place in the paper.
    unseen : str
        What a consistent verdict does not show.
    variants : tuple of (str, object, str)
        Entries (field, value, statement): the statement for layers whose field has this value. The first match
        applies.
    """

    name: str
    statement: str
    source: str
    unseen: str
    variants: tuple[tuple[str, Any, str], ...] = ()

    def text_of(self, layer: Mapping[str, Any]) -> str:
        """Return the statement for a layer or program, given its fields; defaults may be omitted.

        Examples
        --------
        >>> CLAIMS["assumption"].text_of({"width": 8, "tied_query_key": True})
        'W_V differs from W_K; W_Q is W_K in this layer.'
        """
        for field, value, statement in self.variants:
            actual = layer.get(field)
            if bool(actual) if value is True else actual == value:
                return statement
        return self.statement


@dataclasses.dataclass(frozen=True)
class StatementRow:
    """A statement of the paper, or several examined together.

    Attributes
    ----------
    name : str
        Name in the paper; several are separated by commas.
    statement : str
        The statement.
    modules : tuple of str
        Files in `properties/` that examine it, the most direct first.
    examined : str
        What is tested, exactly at finite width or in the limit with its rate.
    not_examined : str
        What is not tested, and why.
    """

    name: str
    statement: str
    modules: tuple[str, ...]
    examined: str
    not_examined: str


#: Claims in the order of a layer's computation: a fault violates the claim on the step where it occurs, and later
#: claims.
CLAIMS = {claim.name: claim for claim in rows("claims", Claim)}
#: The paper's statements in its order, then its open problem and extensions, with the properties that examine them.
STATEMENTS = rows("statements", StatementRow)
