"""What a person reads when something is violated: claim, layer, numbers, likely causes, and how to replay it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from attncheck._lib.words import chance, counted
from attncheck.checks.claims import CLAIMS
from attncheck.diagnosis.estimates import OUTPUTS, OUTPUTS_GIVEN, SCORES
from attncheck.layers.names import layer_name
from attncheck.looks.result import violated
from attncheck.records.schema import Result, of_pool
from attncheck.records.words import replay_command

# Violated checks of one unit that a message shows, and likely causes.
_SHOWN = 6
_CAUSES = 2
# Checks of a shape, the estimate of the scale that must be right for it, and whose scale differs where that is not.
_SHAPES = {
    "non_gaussianity.output_energy": (OUTPUTS, "the outputs"),
    "outputs.limit": (OUTPUTS, "the outputs"),
    "conditional.joint": (OUTPUTS_GIVEN, "the outputs given scores and values"),
    "scores.kurtosis": (SCORES, "the scores"),
}


def explain(results: Sequence[Result], record: Path | None, call: str = "", after: str = "", subject: str = "") -> str:
    """Return what a person needs to know of a unit's violated results, the most telling first; empty if none is.

    `record`, with the name of the `subject`, or where there is none the Python `call` that gave the results, is what
    repeats them. `after` is the claim of another unit that tells more, if there is one: all that is computed later
    shows a fault too.
    """
    bad = violated(results)
    if not bad:
        return ""
    worst = bad[0]
    claim = CLAIMS[worst.claim]
    shown = bad[:_SHOWN]
    width = max(len(result.check) for result in shown)
    examined = sum(bool(result.p_values) for result in results)
    first = [f"may follow from what is wrong first, against: {CLAIMS[after].said_of(worst.case)}"] if after else []
    lines = [
        f"VIOLATED: {claim.said_of(worst.case)} ({claim.source})",
        f"  {'cases' if of_pool(worst) else 'layer'}:    {layer_name(worst.case)}",
        *(f"  observed: {sentence}" for sentence in worst.diagnosis),
        *(f"  note:     {sentence}" for sentence in first),
        *(f"  likely:   {hint}" for hint in likely(shown, worst.diagnosis)),
        f"  violated at level {worst.level:.2g}: {len(bad)} of {counted(examined, 'check')}",
        *(f"    {result.check:{width}}  {result.text}; {_looks(result)}" for result in shown),
    ]
    if any(_holds_expected(result) for result in shown):
        lines.append(
            "    (an interval that holds what is expected allows for any law of the draws, p for the declared one)"
        )
    if len(bad) > len(shown):
        lines.append(f"    and {len(bad) - len(shown)} more")
    if worst.illustration:
        lines.append(
            f"  smaller:  the fault shows too on {worst.illustration} (an illustration on fresh draws, not a verdict)"
        )
    if record is not None:
        lines.append(f"  replay:   {replay_command(record, worst.id, subject)}")
    elif call:
        lines.append(f"  replay:   {call}")
    return "\n".join(lines)


def likely(bad: Sequence[Result], diagnosis: Sequence[str]) -> list[str]:
    """Return the likely causes of violated results that are in the order of `violated`.

    They are those of the first claim: what is computed later shows its fault too. Numbers of another variance than the
    declared one say nothing of their shape.
    """
    hints = (_hint(result, diagnosis) for result in bad[:_SHOWN] if result.claim == bad[0].claim)
    return [hint for hint in dict.fromkeys(hints) if hint][:_CAUSES]


def _hint(result: Result, diagnosis: Sequence[str]) -> str:
    """Return the hint of a violated result, or that a scale differs where this is what its check sees."""
    estimate, whose = _SHAPES.get(result.check, ("", ""))
    # An estimate's name is followed by a number.
    if estimate and any(re.match(rf"{estimate} [\d.-]", sentence) for sentence in diagnosis):
        return f"the scale of {whose} differs from the declared one, whatever their shape"
    return result.hint


def _holds_expected(result: Result) -> bool:
    if result.low is None or result.high is None or result.null_effect is None:
        return False
    return result.low <= result.null_effect <= result.high


def _looks(result: Result) -> str:
    looks = ", ".join(map(chance, result.p_values))
    return f"p = {looks} on {result.size:,} draws a look"
