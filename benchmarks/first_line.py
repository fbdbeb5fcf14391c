"""What the first line of a red run says about mistakes of public code."""

from __future__ import annotations

from typing import NamedTuple

import attncheck as ac
from attncheck._lib.measured import table
from benchmarks.mistakes import MISTAKES
from benchmarks.pages import WORKERS, cell, over


class Row(NamedTuple):
    """The verdict on a mistake, and the causes that a run names, the first line first."""

    name: str
    verdict: str
    causes: tuple[str, ...]


def examined(index: int) -> Row:
    """Examine a mistake on its layer."""
    mistake = MISTAKES[index]
    report = ac.check(mistake.subject, mistake.layer, profile="smoke")
    return Row(mistake.name, report.verdict, tuple(report.causes) if report.verdict == "violated" else ())


def page(tiny: bool) -> list[str]:
    """Examine all mistakes, and return the page."""
    rows = list(over(examined, range(1 if tiny else len(MISTAKES)), 0 if tiny else WORKERS))
    lines, named, among = [], 0, 0
    for row, mistake in zip(rows, MISTAKES, strict=False):
        said = [mistake.named_in(line) for line in row.causes]
        named, among = named + any(said[:1]), among + any(said)
        link = f"[{mistake.name}](https://github.com/{mistake.source})"
        first = row.causes[0] if row.causes else f"not red: {row.verdict}"
        lines.append((link, mistake.what, mistake.layer.describe(), first, "yes" if any(said[:1]) else "no"))
    red = sum(bool(row.causes) for row in rows)
    return [
        "# The first line",
        (
            "Mistakes of public code, each a small change of one literal simulator (mistakes.py), on one layer with "
            "the profile smoke and seed 0. *Named*: the first line matches the words that were written with the "
            "mistake, by somebody who knew neither faults nor diagnosis (mistakes.toml); lines that say the same "
            "in other words are not counted."
        ),
        f"{red} of {len(rows)} are red; the first line names {named} of them, one of three lines {among}.",
        table(("mistake", "what is wrong", "layer", "first line", "named"), [tuple(map(cell, x)) for x in lines]),
    ]
