"""Numbers of draws per look, for the alternative or the coarsest within the budget; and the table of statements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attncheck.checks.check import Check, Setting
from attncheck.checks.claims import CLAIMS, STATEMENTS, Claim, StatementRow
from attncheck.checks.registry import CHECKS, PROGRAM_PROPERTIES, PROPERTIES, checks_of
from attncheck.checks.returned import FIELDS
from attncheck.looks.profiles import ANCHORS

SETTING = Setting(ANCHORS[0], frozenset({*FIELDS, "masked scores"}), 2)
LEVEL, POWER, ANY = 1e-3, 0.9, 10**9
COARSE = [
    check for check in CHECKS if check.alternative.coarsest is not None and not check.reason_not_examined(SETTING)
]
# Without counts, whose power is not monotonic in the draws.
SMOOTH = [check for check in COARSE if check.family_on(SETTING).continuous]


@pytest.mark.parametrize("check", SMOOTH, ids=lambda check: check.name)
def test_a_look_takes_what_the_coarsest_departure_asks_for_at_least(check: Check) -> None:
    assert check.alternative.coarsest is not None
    item, family = check.draws_per_unit, check.family_on(SETTING)
    fine = check.look_size(SETTING, LEVEL, POWER, ANY)
    coarse = family.size(check.alternative.coarsest(SETTING), LEVEL, POWER, ANY)
    assert fine is not None
    assert coarse is not None
    assert fine == check.size(SETTING, LEVEL, POWER, ANY)
    assert coarse * item < fine
    # With fewer, a look takes all available draws if they reveal the coarsest alternative.
    assert check.look_size(SETTING, LEVEL, POWER, fine) == fine
    assert check.look_size(SETTING, LEVEL, POWER, fine - 1) == (fine - 1) // item * item
    assert check.look_size(SETTING, LEVEL, POWER, coarse * item) == coarse * item
    assert check.look_size(SETTING, LEVEL, POWER, coarse * item - 1) is None


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("outputs.tail_4", (0, 1000), "allowed up to"),
        ("outputs.law", ([0.01 * k for k in range(100)],), "allowed up to"),
        ("outputs.symmetry", (500, 1000), "expected"),
    ],
)
def test_a_check_says_what_is_allowed_or_expected(name: str, data: tuple[object, ...], text: str) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    bound = check.family_on(SETTING).null_effect
    assert bound > 0.0
    assert check.describe(check.test(SETTING, data)).endswith(f", {text} {bound:.4g}")


# The table of the paper's statements is complete, correct, and what the page shows ----------------


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
