"""Smallest effects that a run could have detected, and checks that it did not examine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attncheck._lib.text import counted, mde_text
from attncheck.checks.registry import all_checks
from attncheck.looks.domains import domain_of
from attncheck.looks.pools import ALL
from attncheck.records.schema import Result, case_key
from attncheck.records.tallies import tallied
from attncheck.records.text import label_of, most_informative

#: Main checks. For each claim, a summary shows the minimum detectable effect of the first one that was examined.
MAIN_CHECKS = (
    "scores.scale",
    "exactness.score_energy",
    "conditional.scale",
    "outputs.law",
    "exactness.output_energy",
    "exactness.output_given_scores",
    "non_gaussianity.output_energy",
    "outputs.limit",
    "program_scores.scale",
    "theorem1.order",
    "corollary2.output_size",
)


def of_cases(count: int, check: str) -> str:
    """Return a count as text, such as "3 layers", or "3 programs" if the check or property is one of programs."""
    return counted(count, domain_of(check.partition(".")[0]).kind)


def mdes(results: Sequence[Result], pools: Sequence[Result]) -> list[str]:
    """Return a line on the minimum detectable effect of each main check.

    The effect is that of the median case and, if it is smaller, that of the pool of all cases.
    """
    common, lines = of_all(pools), []
    for group in _main(results).values():
        middle = _middle(group)
        label = label_of(middle)
        of = label.removesuffix(", observed over declared")
        show = mde_text if of == label else _percent
        pool = common.get(middle.check)
        # Pools of checks that compare laws by draws measure shifts, not ratios of variances.
        common_mde = pool.mde if pool is not None and label_of(pool) == label else None
        sharper = common_mde is not None and common_mde < (middle.mde or math.inf)
        pooled = f"{show(common_mde)} pooled, " if sharper else ""
        case = of_cases(1, middle.check).partition(" ")[2]
        text = label if of == label else f"error in {of}"
        lines.append(f"Smallest detectable {text}: {pooled}{show(middle.mde)} on the median {case}")
    return lines


def _percent(ratio: float | None) -> str:
    """Return the distance of a variance ratio from 1, in percent.

    Examples
    --------
    >>> _percent(1.0213), _percent(None)
    ('2.1%', 'nothing')
    """
    return mde_text(ratio) if ratio is None or not math.isfinite(ratio) else f"{100.0 * (ratio - 1.0):.2g}%"


def _main(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Map each claim to the examined results of one check: the first of its main checks that was examined."""
    groups: dict[str, list[Result]] = {}
    for check in MAIN_CHECKS:
        group = [r for r in results if r.check == check and r.p_values and r.mde is not None]
        if group:
            groups.setdefault(group[0].claim, group)
    return groups


def of_all(pools: Sequence[Result]) -> dict[str, Result]:
    """Return the results that are pooled over all cases, by name of the check."""
    return {pool.check: pool for pool in pools if pool.p_values and case_key(pool) == ALL}


def _middle(group: Sequence[Result]) -> Result:
    """Return the result with the median minimum detectable effect."""
    return sorted(group, key=lambda result: result.mde or 0.0)[(len(group) - 1) // 2]


def not_detected(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return the names of the checks that were examined on no case, grouped by their most informative reason."""
    by_reason: dict[str, list[str]] = {}
    for name, tally in sorted(tallied(results).items()):
        if not tally.examined:
            by_reason.setdefault(most_informative(tally.reasons), []).append(name)
    return {reason: _in_short(names) for reason, names in sorted(by_reason.items())}


def _in_short(checks: Sequence[str]) -> list[str]:
    """Return the names of checks as a short list.

    If all checks of a property are listed, the property's name and the number of its checks replace them.

    Examples
    --------
    >>> _in_short(["fact1.order", "inputs.law", "inputs.lengths", "inputs.tail_4"])
    ['fact1.order', 'inputs (3 checks)']
    """
    names: list[str] = []
    for name in dict.fromkeys(check.partition(".")[0] for check in checks):
        members = [check for check in checks if check.startswith(f"{name}.")]
        is_complete = len(members) > 1 and len(members) == sum(check.property_name == name for check in all_checks())
        names += [f"{name} ({counted(len(members), 'check')})"] if is_complete else members
    return names
