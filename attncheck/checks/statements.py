"""The paper's numbered statements and its open problem, with the properties that examine them."""

from __future__ import annotations

import dataclasses

from attncheck.checks.claims import rows


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

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the statement's row in the table.

        Examples
        --------
        >>> StatementRow("Lemma 0", "0 = 0.", ("test_zero.py",), "Formula (*).", "Nothing.").cells()[:2]
        ('**Lemma 0.** 0 = 0.', '`test_zero.py`')
        """
        files = "<br>".join(f"`{module}`" for module in self.modules)
        return (f"**{self.name}.** {_plain(self.statement)}", files, _plain(self.examined), _plain(self.not_examined))


#: Statements in the order of the paper, its open problem and extensions last.
STATEMENTS = rows("statements", StatementRow)

_HEADER = ("statement", "in `properties/`", "examined", "not examined")


def render() -> str:
    """Return the table of statements in Markdown.

    Examples
    --------
    >>> render().splitlines()[0]
    '| statement | in `properties/` | examined | not examined |'
    """
    lines = [f"| {' | '.join(cells)} |" for cells in (_HEADER, *(row.cells() for row in STATEMENTS))]
    return "\n".join([lines[0], "|" + "---|" * len(_HEADER), *lines[1:]])


def _plain(text: str) -> str:
    """Escape stars and bars for Markdown."""
    return text.replace("*", "\\*").replace("|", "\\|")
