"""Measure what the first line of a red run says about mistakes that nobody had in mind.

``python benchmarks/first_line.py --write`` examines the third set of reported bugs with the profile smoke, with and
without scores (ten minutes on one core), and updates benchmarks/first_line.md.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attncheck as ac
from attncheck.faults import EXPOSURES
from attncheck.subject import Subject
from benchmarks.diagnosis import LAYERS, says
from benchmarks.diagnosis_bugs_3 import BUGS, STAGE, Reported
from benchmarks.rows import Rows

_MOST = 3
_EXPOSED = ("scores", "outputs")


class Row(NamedTuple):
    """A red run: the bug, the exposed fields, and the causes that it names."""

    bug: Reported
    exposure: str
    causes: tuple[str, ...]

    def named(self, place: int) -> bool:
        """Return whether a line up to this one matches what the writer of the bug expected."""
        return any(says(self.bug.words, said) for said in self.causes[: place + 1])


def rows(names: Sequence[str], resume: Path | None = None) -> Iterator[Row]:
    """Yield a row per bug and exposure, with no causes if the run is not red."""
    kept = Rows(resume)
    for bug in BUGS:
        for exposure in _EXPOSED if bug.name in names else ():
            make = functools.partial(_causes, bug, exposure)
            yield Row(bug, exposure, kept.get(f"{bug.name}, {exposure}", tuple[str, ...], make))


def _causes(bug: Reported, exposure: str) -> tuple[str, ...]:
    layers = [layer for layer in LAYERS if not Subject.of(bug.subject).reason_unsupported(layer)]
    report = ac.check(_showing(bug, EXPOSURES[exposure]), layers[:_MOST], profile="smoke")
    return tuple(report.causes) if report.verdict == "violated" else ()


def _showing(bug: Reported, fields: Sequence[str]) -> Any:
    def shown(layer: ac.AttentionLayer, inputs: Any, rng: Any) -> dict[str, Any]:
        return {name: values for name, values in bug.subject(layer, inputs, rng).items() if name in fields}

    return shown


def page(found: Sequence[Row]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# The first line",
        "",
        "`python benchmarks/first_line.py --write` makes this page.",
        "",
        "Bugs of public reports, written by somebody who knew neither faults nor diagnosis, and never changed since. "
        "*Matched* counts lines that match the patterns written with the bugs, which expect certain words; lines that "
        "say the same in others are not counted. Runs that are not red at the profile smoke with seed 0 are left out.",
        "",
        "| exposed | red | first line matched | among three |",
        "| --- | --- | --- | --- |",
    ]
    for exposure in _EXPOSED:
        red = [row for row in found if row.exposure == exposure and row.causes]
        count = sum(row.exposure == exposure for row in found)
        first, three = (sum(row.named(place) for row in red) for place in (0, 2))
        lines.append(f"| {exposure} | {len(red)} of {count} | {first} | {three} |")
    lines += ["", "| bug | stage | exposed | first line |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {row.bug.what} | {STAGE[row.bug.name]} | {row.exposure} | {row.causes[0] if row.causes else 'not red'} |"
        for row in found
    ]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure what the first line of a red run says.")
    names = [bug.name for bug in BUGS]
    parser.add_argument("--only", action="append", choices=names, help="only these")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done there, and go on from it")
    parser.add_argument("--write", action="store_true", help="write benchmarks/first_line.md")
    options = parser.parse_args(arguments)
    text = page(list(rows(options.only or names, options.resume)))
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
