"""`attncheck explain`: what is claimed, what examines it, and what that cannot see."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Sequence

from attncheck.checks.check import AnyCheck
from attncheck.checks.claims import CLAIMS, Claim
from attncheck.checks.registry import EVERY_CHECK, EVERY_PROPERTY, checks_of
from attncheck.errors import refuse
from attncheck.exit_codes import ExitCode
from attncheck.words import counted

_WIDTH = 100
_KINDS = {
    "exact": "exactly true at finite width",
    "limit": "about the limit; what finite width leaves is computed or extrapolated",
}


def explain_name(name: str | None) -> int:
    """Print what a claim, a property or a check says, or all claims; see `attncheck explain`.

    Raises
    ------
    InputError
        If there is nothing of that name; some names are both a claim and a property, and both are shown.
    """
    print("\n".join(_overview() if name is None else explanation(name)))
    return ExitCode.CONSISTENT


def explanation(name: str) -> list[str]:
    """Return the lines that explain a claim, a property or a check.

    Raises
    ------
    InputError
        If there is nothing of that name.

    Examples
    --------
    >>> explanation("heads")[0]
    'Claim heads'
    """
    lines: list[str] = []
    if name in CLAIMS:
        lines += _claim(CLAIMS[name], [check for check in EVERY_CHECK if check.claim == name])
    if name in EVERY_PROPERTY:
        lines += ["", *_property(name)] if lines else _property(name)
    found = [check for check in EVERY_CHECK if check.name == name.partition("@")[0]]
    for check in found:
        lines += [*_check(check), *_field("says", CLAIMS[check.claim].statement), *_unseen(CLAIMS[check.claim])]
    if not lines:
        known = dict.fromkeys([*CLAIMS, *EVERY_PROPERTY, *(check.name for check in EVERY_CHECK)])
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        refuse("name", name, "is no claim, property or check", "try " + ", ".join(close or list(CLAIMS)[:3]))
    return lines


def _overview() -> Iterator[str]:
    yield "Claims; attncheck explain NAME says more, of a property or a check too."
    for claim in CLAIMS.values():
        checks = [check for check in EVERY_CHECK if check.claim == claim.name]
        yield ""
        yield f"{claim.name} ({claim.source}; {len(checks)} checks)"
        yield from _wrapped(claim.statement, "  ")


def _claim(claim: Claim, checks: Sequence[AnyCheck]) -> Iterator[str]:
    yield f"Claim {claim.name}"
    yield from _field("says", claim.statement)
    yield from _field("source", claim.source)
    yield from _unseen(claim)
    yield f"  {counted(len(checks), 'check')} on it:"
    for check in checks:
        yield ""
        yield from _check(check, "  ")


def _property(name: str) -> Iterator[str]:
    yield f"Property {name}: its checks share the draws of a layer"
    for check in checks_of(name):
        yield from _wrapped(f"{check.name} (claim {check.claim}): {check.null}", "  ")


def _check(check: AnyCheck, indent: str = "") -> Iterator[str]:
    yield f"{indent}Check {check.name}"
    fields = {
        "claim": check.claim,
        "null": f"{check.null} ({_KINDS[check.kind]})",
        "departure": check.departure.text,
        "needs": ", ".join(sorted(check.needs)) or "outputs",
        "effect": check.reads.rstrip(":"),
        "hint": check.hint,
    }
    for name, text in fields.items():
        if text:
            yield from _field(name, text, indent)


def _unseen(claim: Claim) -> Iterator[str]:
    return _field("unseen", claim.unseen)


def _field(name: str, text: str, indent: str = "") -> Iterator[str]:
    first = f"{indent}  {name + ':':11}"
    yield from textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def _wrapped(text: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
