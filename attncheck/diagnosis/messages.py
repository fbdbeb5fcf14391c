"""Violation messages: claim, layer, estimates, likely causes and replay command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from attncheck._lib.text import chance, counted
from attncheck.checks.registered import claim_named, modules_with
from attncheck.diagnosis.estimates import OUTPUTS, OUTPUTS_GIVEN, SCORES
from attncheck.layers.names import layer_name
from attncheck.looks.result import violated
from attncheck.records.schema import Result, case_label
from attncheck.records.text import replay_command

# Maximum number of violated checks, and of likely causes, in the message on a test item.
_MOST_LINES = 6
_CAUSES = 2
# Checks that test the shape of a law and assume its scale, with the name of the estimate of this scale, and the name of
# the quantity in the message.
_SHAPES = {
    "non_gaussianity.output_energy": (OUTPUTS, "the outputs"),
    "outputs.limit": (OUTPUTS, "the outputs"),
    "conditional.joint": (OUTPUTS_GIVEN, "the outputs given scores and values"),
    "scores.kurtosis": (SCORES, "the scores"),
}


def explain(results: Sequence[Result], record: Path | None, subject: str = "") -> str:
    """Return a message on the violated results of a test item, or "" if there are none.

    If there is a `record`, the message ends with a replay command for it and for the name `subject`.
    """
    bad = violated(results)
    if not bad:
        return ""
    worst = bad[0]
    claim = claim_named(worst.claim)
    displayed = bad[:_MOST_LINES]
    width = max(len(result.check) for result in displayed)
    examined = sum(bool(result.p_values) for result in results)
    lines = [
        f"VIOLATED: {claim.text_of(worst.case)}" + (f" ({claim.source})" if claim.source else ""),
        f"  {case_label(worst) + ':':9} {layer_name(worst.case)}",
        *(f"  observed: {sentence}" for sentence in worst.diagnosis),
        *(f"  likely:   {cause}" for cause in likely(displayed, worst.diagnosis)),
        f"  violated at level {worst.level:.2g}: {len(bad)} of {counted(examined, 'check')}",
        *(f"    {result.check:{width}}  {result.text}; {_looks(result)}" for result in displayed),
    ]
    if any(_holds_expected(result) for result in displayed):
        lines.append("    (intervals are valid for any law of the draws, p-values for the declared law only)")
    if len(bad) > len(displayed):
        lines.append(f"    and {len(bad) - len(displayed)} more")
    if record is not None:
        lines.append(f"  replay:   {replay_command(record, worst.id, subject, modules_with([worst.property]))}")
    return "\n".join(lines)


def likely(bad: Sequence[Result], diagnosis: Sequence[str]) -> list[str]:
    """Return likely causes of the violated results `bad`, which are in the order of `violated`.

    Only results with the claim of the first result count, because a fault that violates this claim affects later claims
    too. Some checks test the shape of a law and assume its scale. If the `diagnosis` finds this scale wrong, such a
    check suggests no other cause.
    """
    hints = (_cause(result, diagnosis) for result in bad[:_MOST_LINES] if result.claim == bad[0].claim)
    return [cause for cause in dict.fromkeys(hints) if cause][:_CAUSES]


def _cause(result: Result, diagnosis: Sequence[str]) -> str:
    """Return the usual cause of a violated result, or the text that a scale is wrong.

    The latter is returned if the check assumes a scale that is wrong according to the `diagnosis`.
    """
    estimate, whose = _SHAPES.get(result.check, ("", ""))
    # A sentence on the estimate gives a number after the estimate's name.
    if estimate and any(re.match(rf"{estimate} [\d.-]", sentence) for sentence in diagnosis):
        return f"the scale of {whose} differs from the declared one"
    return result.hint


def _holds_expected(result: Result) -> bool:
    if result.low is None or result.high is None or result.null_effect is None:
        return False
    return result.low <= result.null_effect <= result.high


def _looks(result: Result) -> str:
    looks = ", ".join(map(chance, result.p_values))
    return f"p = {looks} on {result.size:,} draws a look"
