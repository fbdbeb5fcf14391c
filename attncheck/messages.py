"""What a person reads when something is violated: claim, layer, numbers, likely causes, and how to replay it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from attncheck.checks.claims import CLAIMS
from attncheck.diagnosis import OUTPUT_VARIANCE
from attncheck.records import Result
from attncheck.unit import violated
from attncheck.words import chance, counted, layer_name

# Violated checks of one unit that a message shows, and likely causes.
_SHOWN = 6
_CAUSES = 2
# The claim on the outputs' shape, and what its violation points at where their variance is another one.
_SHAPE = "non_gaussianity"
_SCALE = "the scale of the outputs differs from the declared one, whatever their shape"


def explain(results: Sequence[Result], record: Path | None, call: str = "", after: str = "") -> str:
    """Return what a person needs to know of a unit's violated results, the most telling first; empty if none is.

    `record`, or where there is none the Python `call` that gave the results, is what repeats them. `after` is the claim
    of another unit that tells more, if there is one: all that is computed later shows a fault too.
    """
    bad = violated(results)
    if not bad:
        return ""
    worst = bad[0]
    claim = CLAIMS[worst.claim]
    shown = bad[:_SHOWN]
    width = max(len(result.check) for result in shown)
    examined = sum(bool(result.p_values) for result in results)
    lines = [
        f"VIOLATED: {claim.said_of(worst.layer)} ({claim.source})",
        f"  layer:    {layer_name(worst.layer)}",
        *(f"  observed: {sentence}" for sentence in worst.diagnosis),
        *([f"  note:     may follow from what is wrong first: {CLAIMS[after].said_of(worst.layer)}"] if after else []),
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
        lines.append(f"  replay:   attncheck replay {shlex.quote(str(record))} {worst.id}")
    elif call:
        lines.append(f"  replay:   {call}")
    return "\n".join(lines)


def likely(bad: Sequence[Result], diagnosis: Sequence[str]) -> list[str]:
    """Return the likely causes of violated results that are in the order of `violated`.

    Outputs of another variance than the declared one say nothing of whether they are Gaussian.
    """
    scale = any(sentence.startswith(f"{OUTPUT_VARIANCE} ") for sentence in diagnosis)
    hints = (_SCALE if scale and result.claim == _SHAPE else result.hint for result in bad[:_SHOWN])
    return [hint for hint in dict.fromkeys(hints) if hint][:_CAUSES]


def _holds_expected(result: Result) -> bool:
    if result.low is None or result.high is None or result.null_effect is None:
        return False
    return result.low <= result.null_effect <= result.high


def _looks(result: Result) -> str:
    looks = ", ".join(map(chance, result.p_values))
    return f"p = {looks} on {result.size:,} draws a look"
