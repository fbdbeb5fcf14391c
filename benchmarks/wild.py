"""Test whether inspection finds bugs from public code unaided, and accepts right layers.

``python benchmarks/wild.py`` inspects every module of benchmarks/wild_bugs whose framework is installed and prints
the user's messages; bugs of earlier versions are named, and not inspected. ``--right N`` inspects each right layer N
times; ``--variants N`` inspects random right layers and mutations of N seeds. ``--write`` updates benchmarks/wild.md;
``--resume FILE`` continues an interrupted call.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: the fixtures are here, the package may be installed elsewhere

from attncheck._lib.measured import installed, spread, table  # noqa: E402  # found by the path above
from benchmarks import wild_bugs  # noqa: E402  # found by the path above
from benchmarks.rows import Rows  # noqa: E402  # found by the path above
from benchmarks.wild_bugs import inspection, variants  # noqa: E402  # found by the path above
from benchmarks.wild_bugs.inspection import (  # noqa: E402  # found by the path above
    ZOO_HEADER,
    BugRow,
    MutantRow,
    RightRow,
    Row,
    VariantRow,
    ZooRow,
)

FRAMEWORKS = ("torch", "jax", "flax", "keras", "transformers", "equinox")
# Bugs, right layers and layers of the zoo in a quick run, which also draws less.
_QUICK, _QUICK_DRAWS = 2, 2

Asked = tuple[type[Row], str, int, Callable[[], Row]]


def asked(options: argparse.Namespace) -> list[Asked]:
    """Return the inspections: kind, name, seed and a callable."""
    most, draws = _QUICK if options.quick else None, options.draws
    bugs = [bug for bug in wild_bugs.bugs() if bug.environment == "new"][:most]
    asked: list[Asked] = [(BugRow, bug.name, 0, partial(inspection.on_bug, bug, draws)) for bug in bugs]
    for layer in wild_bugs.right()[:most]:
        for seed in range(options.right):
            asked.append((RightRow, layer.name, seed, partial(inspection.on_right, layer, draws, seed)))
    for layer in wild_bugs.zoo()[:most]:
        asked.append((ZooRow, layer.name, 0, partial(inspection.on_zoo, layer, draws)))
    for seed in range(options.variants):
        asked.extend(asked_at(seed, most, draws))
    return asked


def asked_at(seed: int, most: int | None, draws: int) -> Iterator[Asked]:
    """Yield the inspections of the generator's modules at a seed."""
    for variant in variants.variants(seed)[:most]:
        yield VariantRow, variant.name, seed, partial(inspection.on_variant, variant, draws, seed)
    for mutant in variants.mutants(seed)[:most]:
        yield MutantRow, mutant.name, seed, partial(inspection.on_mutant, mutant, draws, seed)


def inspected(options: argparse.Namespace) -> Iterator[Row]:
    """Yield all rows, reusing those of an interrupted call."""
    rows = Rows(options.resume)
    for kind, name, seed, inspect in asked(options):
        yield rows.get(f"{kind.__name__} {name}, seed {seed}", kind, inspect)


def cell(text: str) -> str:
    """Escape a text for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def bug_section(rows: Sequence[BugRow]) -> str:
    found = sum(bool(row.where) for row in rows)
    lines = [
        (
            cell(row.name),
            row.source,
            f"yes, {row.where}" if row.where else "no",
            cell(row.told if row.where else f"not found: {row.told}"),
            f"{row.seconds:.1f}",
        )
        for row in rows
    ]
    words = (
        f"Found: {found} of {len(rows)}. *Text* is the inspection itself, *require* its check of the author's "
        "declaration, *compare* its comparison with the fixture's other path."
    )
    earlier = [f"{bug.name} ({bug.source})" for bug in wild_bugs.bugs() if bug.environment == "old"]
    words += f" Bugs of earlier versions, not inspected: {', '.join(earlier)}." if earlier else ""
    return f"## Bugs\n\n{words}\n\n{table(('bug', 'source', 'found', 'what the user reads', 's'), lines)}"


def right_section(rows: Sequence[RightRow]) -> str:
    lines = []
    for name in dict.fromkeys(row.name for row in rows):
        those = [row for row in rows if row.name == name]
        said = next((text for row in those for text in (*row.blames, row.refused) if text), "")
        green = sum(is_green(row) for row in those)
        seconds = spread(np.array([row.seconds for row in those]), " s", ".1f")
        blames, refused = sum(len(row.blames) for row in those), sum(bool(row.refused) for row in those)
        lines.append((cell(name), f"{green} of {len(those)}", str(blames), str(refused), cell(said), seconds))
    alarms = sum(not is_green(row) for row in rows)
    upper = stats.beta.ppf(0.95, alarms + 1, len(rows) - alarms) if alarms < len(rows) else 1.0
    words = (
        f"False alarms: {alarms} of {len(rows)} inspections, at most {upper:.3g} of them (95%). An inspection "
        "is right if no note reports an error and no true property is refused."
    )
    header = ("layer", "green", "notes that blame", "refused", "said first", "seconds")
    return f"## Right layers\n\n{words}\n\n{table(header, lines)}"


def is_green(row: RightRow) -> bool:
    return not row.blames and not row.refused


def zoo_section(rows: Sequence[ZooRow]) -> str:
    lines = [(cell(row.name), *map(cell, row.cells), f"{row.seconds:.1f}") for row in rows]
    words = "Standard deviations times √fan-in, with intervals."
    return f"## Well-known layers\n\n{words}\n\n{table(ZOO_HEADER, lines)}"


def variant_section(rows: Sequence[VariantRow]) -> str:
    """Show how many random right layers are called wrong, and how many cannot be inspected."""
    wrong = [row for row in rows if row.wrong]
    failed = [row for row in rows if row.failed]
    upper = stats.beta.ppf(0.95, len(wrong) + 1, len(rows) - len(wrong)) if len(wrong) < len(rows) else 1.0
    words = (
        f"{len(rows)} random right modules. Called wrong: {len(wrong)}, at most {upper:.3g} of them (95%). "
        f"Not inspected: {len(failed)}."
    )
    lines = [(cell(row.name), str(row.seed), cell(row.failed or "; ".join(row.wrong))) for row in (*wrong, *failed)]
    shown = f"\n\n{table(('layer', 'seed', 'what the user reads'), lines)}" if lines else ""
    return f"## Random right layers\n\n{words}{shown}"


def mutant_section(rows: Sequence[MutantRow]) -> str:
    """Show which kinds of mutations are named in the first line."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        those = [row for row in rows if row.kind == kind]
        first, anywhere = sum(row.named_first for row in those), sum(row.named for row in those)
        example = next((f"{row.name}: {row.first}" for row in those if not row.named_first), "")
        lines.append((kind, str(len(those)), str(first), str(anywhere), cell(example)))
    words = (
        f"Named in the first line: {sum(row.named_first for row in rows)} of {len(rows)}; in any line: "
        f"{sum(row.named for row in rows)}."
    )
    header = ("kind", "mutants", "named first", "named anywhere", "first line of one not named first")
    return f"## Mutations\n\n{words}\n\n{table(header, lines)}"


def versions(names: Iterable[str]) -> str:
    here = [name for name in names if importlib.util.find_spec(name) is not None]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in here)


def page(rows: Sequence[Row], options: argparse.Namespace) -> str:
    bugs = [row for row in rows if isinstance(row, BugRow)]
    right = [row for row in rows if isinstance(row, RightRow)]
    zoo = [row for row in rows if isinstance(row, ZooRow)]
    made = [row for row in rows if isinstance(row, VariantRow)]
    mutated = [row for row in rows if isinstance(row, MutantRow)]
    parts = [
        "# Public bugs",
        (
            "`python benchmarks/wild.py --write` makes this page. Fixtures, one public bug each, predate the "
            f"inspection. A bug counts as found if a line of output states it. Seeds: {options.right} per right "
            f"layer, {options.variants} of random layers and mutations."
        ),
        bug_section(bugs),
        right_section(right),
        zoo_section(zoo),
        *([variant_section(made)] if made else []),
        *([mutant_section(mutated)] if mutated else []),
        f"{options.draws} draws of each module. {versions(FRAMEWORKS)}. {installed()}.",
    ]
    if options.quick:
        parts.insert(2, "A quick run: it shows that everything runs; its figures mean nothing.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Inspect public bugs and right layers.")
    parser.add_argument("--draws", type=int, default=8, help="modules that are made for an inspection (default: 8)")
    parser.add_argument(
        "--right", type=int, default=1, metavar="N", help="inspections of each right layer (default: 1)"
    )
    parser.add_argument(
        "--variants", type=int, default=3, metavar="N", help="seeds of random right layers and mutations (default: 3)"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep rows there as they come, and go on from it")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK} fixtures of each kind, {_QUICK_DRAWS} draws")
    parser.add_argument("--write", action="store_true", help="write benchmarks/wild.md too")
    options = parser.parse_args(arguments)
    if options.quick and options.write:
        parser.error("--write: a quick run measures nothing worth keeping; leave --quick out")
    if options.quick:
        options.draws = _QUICK_DRAWS
    text = page(list(inspected(options)), options)
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
