"""`attncheck explain`: claims, properties, checks and faults."""

from __future__ import annotations

import difflib
import functools
import textwrap
from collections.abc import Iterator, Sequence

from attncheck._lib.errors import refuse
from attncheck._lib.text import counted
from attncheck.checks.check import AnyCheck
from attncheck.checks.claims import CLAIMS, STATEMENTS, Claim
from attncheck.checks.registered import claim_named, registrations
from attncheck.checks.registry import EVERY_CHECK, EVERY_PROPERTY, all_checks, all_properties, checks_of
from attncheck.faults import Fault, all_faults
from attncheck.faults.pairs import paired, rejecting
from attncheck.faults.programs import PROGRAM_FAULTS
from attncheck.looks.profiles import PROFILES

_wrap = functools.partial(textwrap.wrap, width=100, break_on_hyphens=False)
_KINDS = {
    "exact": "exactly true at finite width",
    "limit": "about the limit; finite-width deviations are computed or extrapolated",
}
# Minimum similarity of a suggested name.
_CLOSE = 0.6
_FAULTS = "faults"
_KINDS_OF_NAMES = (
    f"pass a claim ({', '.join(list(CLAIMS)[:3])}, …), a property ({', '.join(EVERY_PROPERTY[:3])}, …) or a check "
    f"({EVERY_CHECK[0].name}, …); attncheck explain lists the claims, attncheck explain {_FAULTS} the faults"
)


def explanation(name: str) -> list[str]:
    """Return the lines that explain a name; raise `InputError` if unknown.

    Examples
    --------
    >>> explanation("heads")[0]
    'Claim heads'
    """
    lines: list[str] = []
    if name in CLAIMS:
        lines += _claim(CLAIMS[name], [check for check in EVERY_CHECK if check.claim == name])
    if name in all_properties():
        lines += ["", *_property(name)] if lines else _property(name)
    matches = [check for check in all_checks() if check.name == name.partition("@")[0]]
    for check in matches:
        lines += [*_check(check), *_texts(claim_named(check.claim))]
    for faults in (all_faults(), PROGRAM_FAULTS):
        if name in faults:
            lines += _fault(faults[name], of_programs=faults is PROGRAM_FAULTS)
    if name == _FAULTS:
        lines += _faults()
    if not lines:
        checks = (check.name for check in all_checks())
        known = dict.fromkeys([*CLAIMS, *all_properties(), *checks, *all_faults(), *PROGRAM_FAULTS, _FAULTS])
        close = difflib.get_close_matches(name, known, n=3, cutoff=_CLOSE)
        remedy = f"try {', '.join(close)}" if close else _KINDS_OF_NAMES
        refuse("name", name, "is not a claim, property, check or fault", remedy)
    return lines


def overview() -> Iterator[str]:
    """Yield lines that list all claims."""
    yield "Claims; attncheck explain NAME explains one of them, or a property or check."
    for claim in CLAIMS.values():
        checks = [check for check in EVERY_CHECK if check.claim == claim.name]
        yield ""
        yield f"{claim.name} ({claim.source}; {counted(len(checks), 'check')})"
        yield from _wrapped(claim.statement, "  ")
    for registration in registrations():
        yield ""
        yield f"{registration.claim.name} (registered by {registration.module})"
        yield from _wrapped(registration.claim.statement, "  ")


def _faults() -> Iterator[str]:
    yield "Known-wrong simulators; attncheck explain NAME explains one, attncheck power NAME measures its detection."
    for kind, faults in (("layers", all_faults()), ("programs", PROGRAM_FAULTS)):
        yield f"Of {kind}:"
        for fault in faults.values():
            yield from _wrapped(f"{fault.name}: {fault.what}", "  ")


def _fault(fault: Fault, of_programs: bool) -> Iterator[str]:
    yield f"Known-wrong simulator {'of programs ' * of_programs}{fault.name}"
    yield from _field("what", fault.what)
    yield from _field("where", str(fault.requires))
    subject = f"attncheck.faults{'.programs' * of_programs}:{fault.name}"
    command = "pytest -n auto properties/ --attncheck-subject " + (fault.name if ":" in fault.name else subject)
    if not of_programs:
        layers = PROFILES["default"].layers
        names = [layer.describe() for layer in layers if not fault.reason_hidden(layer)]
        yield from _field("shows in", f"{len(names)} of the {len(layers)} fixed layers: {'; '.join(names) or 'none'}")
        command = command if names else f"attncheck power {fault.name} --quick"
    yield from _field("seen by", ", ".join(rejecting(fault)))
    yield f"  try:       {command}"


def _claim(claim: Claim, checks: Sequence[AnyCheck]) -> Iterator[str]:
    yield f"Claim {claim.name}"
    yield from _texts(claim)
    yield f"  {counted(len(checks), 'check')} on it:"
    for check in checks:
        yield ""
        yield from _check(check, "  ")


def _property(name: str) -> Iterator[str]:
    yield f"Property {name}: its checks share draws"
    for check in checks_of(name):
        yield from _wrapped(f"{check.name} (claim {check.claim}): {check.null}", "  ")


def _check(check: AnyCheck, indent: str = "") -> Iterator[str]:
    yield f"{indent}Check {check.name}"
    fields = {
        "claim": check.claim,
        "null": f"{check.null} ({_KINDS[check.kind]})",
        "alternative": check.alternative.text,
        "needs": _needed(check),
        "where": str(check.requires),
        "effect": check.reads.rstrip(":"),
        "hint": check.hint,
        "rejects": "; ".join(f"{fault.name} ({fault.what})" for fault in paired(check)),
    }
    for name, text in fields.items():
        if text:
            yield from _field(name, text, indent)


def _needed(check: AnyCheck) -> str:
    """Return, as text, the fields that a check needs.

    If it needs masked scores, scores are not listed separately.
    """
    texts = {
        "masked scores": "scores (masked scores too: numbers where the mask hides them, not -inf)",
        "attention": "scores or attention",
    }
    fields = check.needs - ({"scores"} if "masked scores" in check.needs else set())
    return ", ".join(texts.get(name, name) for name in sorted(fields)) or "outputs"


def _texts(claim: Claim) -> Iterator[str]:
    """Yield a claim, its limitations and the paper's statements behind it."""
    yield from _field("says", claim.statement)
    yield from _field("source", claim.source)
    for row in STATEMENTS:
        if _about(claim.source, row.name):
            yield from _field("paper", f"{row.name}: {row.statement}")
    yield from _field("unseen", claim.unseen)


def _about(source: str, names: str) -> bool:
    """Return whether the comma-separated list `source` cites one of the comma-separated statements `names`.

    Examples
    --------
    >>> _about("Assumption 1 (a), (b)", "Assumption 1"), _about("Lemma 10", "Lemma 1, Lemma 2")
    (True, False)
    """
    return any(f"{part} ".startswith(f"{name} ") for part in source.split(", ") for name in names.split(", "))


def _field(name: str, text: str, indent: str = "") -> Iterator[str]:
    first = f"{indent}  {name + ': ':11}"
    yield from _wrap(text, initial_indent=first, subsequent_indent=" " * len(first))


def _wrapped(text: str, indent: str) -> Iterator[str]:
    yield from _wrap(text, initial_indent=indent, subsequent_indent=indent + "  ")
