"""The table of the paper's statements is complete, correct, and what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attncheck.checks.claims import CLAIMS, STATEMENTS, Claim, StatementRow
from attncheck.checks.registry import PROGRAM_PROPERTIES, PROPERTIES, checks_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "properties").rglob("test_*.py")}
PAGE = ROOT / "docs" / "statements.md"
# Labels of the paper's statements.
STATEMENT = re.compile(r"(?:Fact|Definition|Theorem|Corollary|Example|Assumption|Lemma|Proposition) \d+(?: \([iv]+\))?")


def names(text: str) -> set[str]:
    """Return the statements named by a text; the first part stands for a range."""
    return set(STATEMENT.findall(text))


def modules_of(claim: Claim) -> set[str]:
    """Return the modules that examine a property with a check of this claim."""
    every = (check for each in (*PROPERTIES, *PROGRAM_PROPERTIES) for check in checks_of(each))
    properties = {check.property_name for check in every if check.claim == claim.name}
    return {name for name, text in MODULES.items() for each in properties if f'@examines("{each}"' in text}


def cells(row: StatementRow) -> tuple[str, ...]:
    """Return the cells of a statement's row, with stars and bars escaped for Markdown."""
    texts = (text.replace("*", "\\*").replace("|", "\\|") for text in (row.statement, row.examined, row.not_examined))
    statement, examined, not_examined = texts
    return f"**{row.name}.** {statement}", "<br>".join(f"`{module}`" for module in row.modules), examined, not_examined


def test_the_page_shows_the_table() -> None:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- statements: begin -->\n")
    shown, end, _ = rest.partition("<!-- statements: end -->")
    assert end
    rows = [f"| {' | '.join(cells(row))} |" for row in STATEMENTS]
    expected = "\n".join(["| statement | in `properties/` | examined | not examined |", "|---|---|---|---|", *rows])
    assert shown.strip() == expected, f"write this table between the markers of docs/statements.md:\n{expected}"


def test_modules_and_statements_are_named_once() -> None:
    assert {module for row in STATEMENTS for module in row.modules} == set(MODULES)
    assert all(row.modules and len(set(row.modules)) == len(row.modules) for row in STATEMENTS)
    every = [statement for row in STATEMENTS for statement in names(row.name)]
    assert len(every) == len(set(every))
    assert {f"Lemma {k}" for k in (4, 7, *range(9, 17))} <= set(every)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_claims_are_in_the_rows_of_their_statements(claim: Claim) -> None:
    rows = [row for row in STATEMENTS if names(row.name) & names(claim.source)]
    modules = modules_of(claim)
    assert modules
    assert names(claim.source) <= {name for row in rows for name in names(row.name)}
    assert modules <= {module for row in rows for module in row.modules}
    for row in rows:
        assert modules & set(row.modules), f"{row.name} lists none of {sorted(modules)}"
