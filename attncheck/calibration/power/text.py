"""The power table as Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from scipy.special import betainccinv, betaincinv

from attncheck.calibration.power import PowerEntry, PowerRow
from attncheck.evidence.text import allowed
from attncheck.faults.pairs import fault_named
from attncheck.layers.case import Case
from attncheck.looks.profiles import profile_named

# Two-sided error of the interval of suspicious looks.
_ERROR = 0.01


def render(entries: Sequence[PowerEntry]) -> str:
    """Return the tables of entries with equal profiles as Markdown."""
    profiles = list(entries[0].rows)
    return "\n".join([*_main(entries, profiles), "", *_layers(entries, profiles[-1]), "", *_unseen(entries, profiles)])


def to_json(entries: Sequence[PowerEntry], profile: str) -> bytes:
    """Return the chances of detection for `attncheck report`."""
    cells = []
    for entry in entries:
        row = entry.best(profile)
        seen = row is not None and row.chance > 0.0
        check = row.sight.check.name if row is not None and seen else ""
        cells.append({"fault": entry.fault, "exposure": entry.exposure, "power": entry.chance(profile), "check": check})
    return msgspec.json.format(msgspec.json.encode({"profile": profile, "cells": cells}), indent=1)


def _main(entries: Iterable[PowerEntry], profiles: Sequence[str]) -> list[str]:
    """Return one line per fault and exposure."""
    titles = ["fault", "exposed", "detected first by", "layer", "effect (expected)", "draws", *profiles, "verified"]
    lines = _head(titles)
    for entry in entries:
        row = entry.best(profiles[-1])
        chances = [percent(entry.chance(name)) for name in profiles]
        if row is None or not row.sight.told_apart:
            lines.append(_line([entry.fault, entry.exposure, "not seen", "", "", "", *chances, ""]))
            continue
        needed = "" if row.needed is None else f"{row.needed:,}"
        cells = [f"`{row.sight.check.name}`", row.layer.describe(), _effect(row), needed]
        lines.append(_line([entry.fault, entry.exposure, *cells, *chances, _verified(row)]))
    return lines


def _layers(entries: Iterable[PowerEntry], profile: str) -> list[str]:
    """Return the chances in each fixed case with everything exposed."""
    fixed_cases = profile_named(profile).layers
    lines = [f"Chance of a violated verdict in each fixed case, Grams exposed, profile {profile}:", ""]
    lines += _head(["fault", *[layer.describe() for layer in fixed_cases]])
    for entry in entries:
        if entry.exposure == "grams":
            chances: dict[Case, float] = {}
            for row in entry.rows[profile]:
                chances[row.layer] = max(row.chance, chances.get(row.layer, 0.0))
            fault = fault_named(entry.fault)
            hidden = ["hidden" if fault.reason_hidden(layer) else _chance(chances, layer) for layer in fixed_cases]
            lines.append(_line([entry.fault, *hidden]))
    return lines


def _chance(chances: Mapping[Case, float], case: Case) -> str:
    return percent(chances[case]) if case in chances else "–"


def _unseen(entries: Iterable[PowerEntry], profiles: Sequence[str]) -> list[str]:
    """Return the faults that the last profile misses, and the draws needed."""
    profile = profile_named(profiles[-1])
    lines = [f"Not detected with a chance of {percent(profile.power)} at profile {profile.name}:", ""]
    for entry in entries:
        if entry.chance(profile.name) < profile.power:
            lines.append(f"- {entry.fault}, {entry.exposure} exposed: {_what_it_takes(entry.rows[profile.name])}.")
    return lines


def _what_it_takes(rows: Sequence[PowerRow]) -> str:
    if not rows:
        return "it changes none of the fixed cases"
    told = [row for row in rows if row.needed is not None]
    if told:
        row = min(told, key=lambda row: row.needed or 0)
        return f"{row.needed:,} draws per look would detect it in {row.layer.describe()} by `{row.sight.check.name}`"
    most = max((row.sight.size for row in rows), default=0)
    return f"not significant for any check in {most:,} draws" if most else "no check applies"


def _effect(row: PowerRow) -> str:
    outcome = row.sight.outcome
    return f"{outcome.effect:.3g} [{outcome.low:.3g}, {outcome.high:.3g}] ({allowed(outcome)})"


def _verified(row: PowerRow) -> str:
    """Return the counts of verifying looks with a 99% interval."""
    if not row.looks:
        return ""
    low = float(betaincinv(row.seen, row.looks - row.seen + 1, _ERROR / 2)) if row.seen else 0.0
    high = float(betainccinv(row.seen + 1, row.looks - row.seen, _ERROR / 2)) if row.seen < row.looks else 1.0
    return f"{row.seen}/{row.looks} at {row.look_draws:,} [{percent(low)}, {percent(high)}]"


def percent(chance: float) -> str:
    """Return a chance in percent, never rounded up to 100.

    Examples
    --------
    >>> percent(0.99951), percent(1.0), percent(0.0421)
    ('> 99.9%', '> 99.9%', '4.2%')
    """
    return "> 99.9%" if chance > 0.999 else f"{100 * chance:.1f}%"


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line(["---"] * len(titles))]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
