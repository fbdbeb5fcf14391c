"""Real models: inspected public ones, public bugs and random modules, and exponents over widths."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import re
import signal
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.measured import spread, table
from attncheck.evidence.family import smallest_integer
from attncheck.evidence.looks import Budget
from attncheck.scaling.exponents import exponents
from benchmarks import wild_bugs, zoo_models
from benchmarks.pages import WORKERS, cell, over
from benchmarks.width_models import WRONG, Recipe
from benchmarks.wild_bugs import inspection, variants
from benchmarks.wild_bugs.inspection import BugRow, MutantRow, RightRow, Row, VariantRow

PACKAGES = ("torch", "transformers", "timm", "x-transformers", "jax", "flax", "keras", "equinox")
_ZOO = tomllib.loads(Path(__file__).with_name("zoo.toml").read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class Scale:
    """Size of the page: models of the zoo (None: all), fixtures of a kind, draws, seeds, and models over widths."""

    zoo: tuple[str, ...] | None = None
    fixtures: int | None = None
    draws: int = 8
    seeds: int = 1
    taps: int = 100_000
    right: int = 20
    wrong: int | None = None
    widths: tuple[int, ...] = (64, 128, 256, 512)
    workers: int = WORKERS


FULL = Scale()
TINY = Scale(("gpt2", "mobilevit"), 2, 2, 1, 10_000, 1, 1, (16, 32, 64), 0)


def at_most(count: int, total: int) -> str:
    """Return an upper bound on a rate, from a count."""
    upper = stats.beta.ppf(0.95, count + 1, total - count) if count < total else 1.0
    return f"at most {upper:.3g} of them (95%)"


# Public models

SECONDS = 120
# Characters of a cell.
_WIDEST = 110


@dataclasses.dataclass
class ZooRow:
    """Result for one model: why it is of no use, or attention modules, statements and seconds."""

    name: str
    skipped: str = ""
    modules: int = 0
    parameters: int = 0
    groups: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    refused: int = 0
    failure: str = ""
    seconds: float = 0.0


def inspected(name: str) -> ZooRow:
    """Return the row of a model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = zoo_models.named(name)
    row = ZooRow(name, skipped=zoo_models.reason(model) or "")
    if row.skipped:
        return row
    inputs = model.inputs(model.make())
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    begin = time.perf_counter()
    try:
        found = ac.inspect(model.make, inputs=inputs)
    except Exception as error:  # whatever is raised is a row of the page
        row.failure = f"{type(error).__name__}: {error}"
    else:
        row.modules, row.parameters = len(found.modules), len(found.parameters)
        forwards = ((group.title, str(group.inspection.forward)) for group in found.attention)
        row.groups = tuple(f"{title}: {forward.partition('; equal')[0]}" for title, forward in forwards)
        row.wrong = tuple(found.blamed)
        row.refused = sum("not inspected: " in str(note) for note in found.all_notes if note.level != "wrong")
    finally:
        signal.alarm(0)
    row.seconds = time.perf_counter() - begin
    return row


def _late(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def judged(name: str, text: str) -> tuple[str, str]:
    """Return what examination gave for a statement on a model, and why."""
    model = name.partition(": ")[2]
    for entry in _ZOO["judged"]:
        if re.match(entry["models"], model) and re.search(entry["pattern"], text):
            return entry["verdict"], entry["why"]
    return "not examined", ""


def reproductions() -> Iterator[str]:
    """Yield the mistakes in releases, each run anew."""
    for entry in _ZOO["reproductions"]:
        if version := version_of(entry["package"]):
            names: dict[str, float] = {}
            torch.manual_seed(0)
            exec(entry["code"], names)
            what = f"{entry['package']} {version}: {entry['what']}"
            yield f"{what} is {float(names['seen']):.3g}, not {entry['expected']}."
            yield f"```python\n{entry['code'].strip()}\n```"


def version_of(package: str) -> str:
    """Return the installed version, empty if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def zoo(scale: Scale) -> list[str]:
    """Inspect a small model of each type in public packages."""
    names = zoo_models.names() if scale.zoo is None else [f"transformers: {name}" for name in scale.zoo]
    rows = list(over(inspected, names, scale.workers))
    usable = [row for row in rows if not row.skipped]
    whole = [row for row in usable if not row.failure]
    wrong = [(row.name, cell(text), *judged(row.name, text)) for row in whole for text in row.wrong]
    counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(line[2] for line in wrong).items())
    lines = [
        (
            row.name,
            *(str(count) for count in (row.modules, row.refused, row.parameters)),
            cell("; ".join(row.groups))[:_WIDEST],
            str(len(row.wrong)),
            f"{row.seconds:.1f}",
        )
        for row in whole
    ]
    failed = [(row.name, cell(row.failure[:120])) for row in usable if row.failure]
    return [
        "## Public models",
        (
            "One small model of each type, with random weights, "
            f"`initializer_range={zoo_models.INITIALIZER_RANGE}` where there is one, inspected with 8 draws."
        ),
        (
            f"{len(whole)} of {len(usable)} models inspected, {sum(row.modules for row in whole)} attention modules; "
            f"{len(rows) - len(usable)} more cannot be made small. {sum(not row.wrong for row in whole)} have nothing "
            f"wrong. Statements that something is wrong: {len(wrong)} ({counts}). Seconds per model: "
            f"{spread(np.array([row.seconds for row in whole]), ' s', '.1f')}."
        ),
        "### Said to be wrong",
        table(("model", "what is said", "examined", "why"), wrong) if wrong else "Nothing.",
        "### Mistakes in releases",
        *reproductions(),
        "### All models",
        "*Refused*: groups of attention modules that cannot be inspected, such as attention to pooled keys.",
        table(("model", "attention modules", "refused", "parameters", "attention", "wrong", "s"), lines),
        *([table(("not inspected", "why"), failed)] if failed else []),
    ]


# Public bugs and random modules


def wild_rows(part: tuple[str, int], scale: Scale) -> list[Row]:
    """Inspect the bugs, the right layers, or the random right modules or mutants of a seed."""
    kind, seed = part
    rows: list[Row] = []
    if kind == "bugs":
        rows += [inspection.on_bug(bug, scale.draws) for bug in wild_bugs.bugs()[: scale.fixtures]]
    elif kind == "right":
        rows += [inspection.on_right(layer, scale.draws, seed) for layer in wild_bugs.right()[: scale.fixtures]]
    elif kind == "variants":
        made = variants.variants(seed)[: scale.fixtures]
        rows += [inspection.on_variant(variant, scale.draws, seed) for variant in made]
    else:
        mutants = variants.mutants(seed)[: scale.fixtures]
        rows += [inspection.on_mutant(mutant, scale.draws, seed) for mutant in mutants]
    return rows


def bug_section(rows: Sequence[BugRow]) -> list[str]:
    lines = [
        (
            cell(row.name),
            row.source,
            f"yes, {row.where}" if row.where else "no",
            cell(row.told if row.where else f"not found: {row.told}"),
        )
        for row in rows
    ]
    return [
        "### Public bugs",
        (
            f"Found: {sum(bool(row.where) for row in rows)} of {len(rows)}: a line of output states the bug. *Text* is "
            "the inspection itself, *require* its check of the author's declaration, *compare* its comparison with "
            "the fixture's other path. Fixtures predate the inspection."
        ),
        table(("bug", "source", "found", "what the user reads"), lines),
    ]


def right_section(rows: Sequence[RightRow]) -> list[str]:
    """Show the right layers that are called wrong, or whose true properties are refused."""
    alarms = [row for row in rows if not is_green(row)]
    lines = [
        (cell(row.name), str(row.seed), cell("; ".join(filter(None, (*row.blames, row.refused))))) for row in alarms
    ]
    return [
        "### Right layers",
        (
            f"False alarms: {len(alarms)} of {len(rows)} inspections, {at_most(len(alarms), len(rows))}. An inspection "
            "is right if no note reports an error and no true property is refused."
        ),
        *([table(("layer", "seed", "what the user reads"), lines)] if lines else []),
    ]


def is_green(row: RightRow) -> bool:
    return not row.blames and not row.refused


def variant_section(rows: Sequence[VariantRow]) -> list[str]:
    """Show how many random right layers are called wrong, and how many cannot be inspected."""
    wrong, failed = [row for row in rows if row.wrong], [row for row in rows if row.failed]
    lines = [(cell(row.name), str(row.seed), cell(row.failed or "; ".join(row.wrong))) for row in (*wrong, *failed)]
    return [
        "### Random right layers",
        (
            f"{len(rows)} random right modules. Called wrong: {len(wrong)}, {at_most(len(wrong), len(rows))}. Not "
            f"inspected: {len(failed)}."
        ),
        *([table(("layer", "seed", "what the user reads"), lines)] if lines else []),
    ]


def mutant_section(rows: Sequence[MutantRow]) -> list[str]:
    """Show which kinds of mutations are named in the first line."""
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mutants = [row for row in rows if row.kind == kind]
        first, anywhere = sum(row.named_first for row in mutants), sum(row.named for row in mutants)
        example = next((f"{row.name}: {row.first}" for row in mutants if not row.named_first), "")
        lines.append((kind, str(len(mutants)), str(first), str(anywhere), cell(example)))
    return [
        "### Mutations",
        (
            f"Named in the first line: {sum(row.named_first for row in rows)} of {len(rows)}; in any line: "
            f"{sum(row.named for row in rows)}."
        ),
        table(("kind", "mutants", "named first", "named anywhere", "first line of one not named first"), lines),
    ]


def wild(scale: Scale) -> list[str]:
    """Inspect public bugs, right layers, random right modules and mutations of them."""
    parts = [(kind, seed) for kind in ("variants", "mutants") for seed in range(scale.seeds)]
    parts += [("bugs", 0), ("right", 0)]
    results = over(functools.partial(wild_rows, scale=scale), parts, scale.workers)
    rows = [row for part in results for row in part]
    return [
        "## Bugs and right modules",
        f"{scale.draws} draws of each module; {scale.seeds} seed of random modules and mutations.",
        *bug_section([row for row in rows if isinstance(row, BugRow)]),
        *right_section([row for row in rows if isinstance(row, RightRow)]),
        *variant_section([row for row in rows if isinstance(row, VariantRow)]),
        *mutant_section([row for row in rows if isinstance(row, MutantRow)]),
    ]


# Exponents over widths

_TAPS = 180
_LEVEL = Budget().level(_TAPS)
WIDTHS = (64, 128, 256, 512, 1024)
_WIDTHS = np.array(WIDTHS, dtype=float)[:, None, None]
_NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], FloatArray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "of 4 normal numbers": lambda rng, shape: 0.5 * np.log(rng.chisquare(4, shape)),
    "of one normal number": lambda rng, shape: 0.5 * np.log(rng.chisquare(1, shape)),
    "normal, falling as 1/√n": lambda rng, shape: rng.standard_normal(shape) / np.sqrt(_WIDTHS),
    "normal, growing as √n": lambda rng, shape: rng.standard_normal(shape) * np.sqrt(_WIDTHS),
}


@dataclasses.dataclass(frozen=True)
class Examined:
    """Result for a model over widths: verdicts of its exponents, and those that are violated, the first first."""

    name: str
    verdicts: Counter[str]
    violated: tuple[str, ...]
    seconds: float


def examined(part: tuple[str, Recipe], widths: Sequence[int]) -> Examined:
    """Examine one model, in μP after two training steps too."""
    name, recipe = part
    begun = time.perf_counter()
    optimizer = recipe.optimizer if recipe.mup else None
    found = ac.widths(recipe.build, widths, "mup" if recipe.mup else "standard", optimizer=optimizer, seed=0)
    violated = tuple(f"{row.name} @{row.steps}" for row in found.violated)
    return Examined(name, Counter(str(row.verdict) for row in found.rows), violated, time.perf_counter() - begun)


def random_recipe(seed: int) -> Recipe:
    """Return a random right model with random depth, heads and norms; every other one is in μP."""
    rng = np.random.default_rng([26, seed])
    return Recipe(
        mup=bool(seed % 2),
        depth=int(rng.integers(1, 5)),
        heads=int(rng.choice([1, 2, 4, 8])),
        head_dim=[None, None, 8, 16][rng.integers(4)],
        norm=str(rng.choice(["layer", "rms", "none"])),
        after=bool(rng.integers(3) == 0),
        by_hand=bool(rng.integers(2)),
        zero_readout=bool(rng.integers(3) == 0),
    )


def false_alarms(taps: int) -> str:
    """Return the table of suspicious looks at exactly right exponents."""
    rows = []
    for name, noise in _NOISE.items():
        cells = []
        for seeds in (4, 8, 16):
            rng, alarms, zero = np.random.default_rng([26, seeds]), 0, np.zeros(10_000)
            for _ in range(taps // 10_000):
                found = exponents(noise(rng, (len(_WIDTHS), seeds, 10_000)), WIDTHS)
                alarms += int((found.p_values(zero, zero) < _LEVEL).sum())
            cells.append(f"{alarms / taps / _LEVEL:.2f}")
        rows.append((name, *cells))
    return table(("logarithms of sizes", "4 seeds", "8 seeds", "16 seeds"), rows)


def powers(taps: int) -> str:
    """Return the table of seeds needed to reject an exponent off by 1/2 with 99%, and to decide."""
    rows = []
    for deviation in (0.02, 0.05, 0.1, 0.15, 0.3, 0.5):

        def simulated(seeds: int, order: float, deviation: float = deviation) -> tuple[float, float]:
            """Return the simulated shares of intervals beyond and within the tolerance."""
            noise = np.random.default_rng([26, seeds]).standard_normal((len(_WIDTHS), seeds, taps // max(seeds, 20)))
            found = exponents(order * np.log(_WIDTHS) + deviation * noise, WIDTHS)
            half = found.half_widths(_LEVEL)
            return float(np.mean(found.values - half > 0.1)), float(np.mean(np.abs(found.values) + half < 0.1))

        sees = smallest_integer(lambda seeds: seeds > 1 and simulated(seeds, 0.5)[0] ** 3 >= 0.99, 10_000)
        decides = smallest_integer(lambda seeds: seeds > 1 and simulated(seeds, 0.0)[1] >= 0.9, 10_000)
        rows.append((f"{deviation:g}", str(sees), str(decides)))
    return table(("standard deviation over seeds", "seeds to tell 1/2 apart", "seeds to decide"), rows)


def widths(scale: Scale) -> list[str]:
    """Examine right and wrong models over widths, and the statistics of exponents."""
    wrong = dict(list(WRONG.items())[: scale.wrong])
    parts = [(name, recipe) for name, (recipe, _, _) in wrong.items()]
    parts += [("right", random_recipe(seed)) for seed in range(scale.right)]
    rows = list(over(functools.partial(examined, widths=scale.widths), parts, scale.workers))
    right = [row for row in rows if row.name == "right"]
    bad = sum(bool(row.violated) for row in right)
    verdicts = sum((row.verdicts for row in right), Counter[str]())
    lines = []
    for row, (name, (_, tap, steps)) in zip(rows, wrong.items(), strict=False):
        moment = f"change after {steps} step" if steps else "at initialisation"
        first = "yes" if row.violated[:1] == (f"{tap} @{steps}",) else "no"
        lines.append((name, f"`{tap}`, {moment}", first, f"{row.seconds:.0f} s"))
    return [
        "## Exponents over widths",
        (
            f"{len(right)} random right models: violated in {bad}, {at_most(bad, len(right))}. Exponents: "
            f"{', '.join(f'{count:,} {verdict}' for verdict, count in verdicts.most_common())}. Widths "
            f"{scale.widths[0]} to {scale.widths[-1]}, at initialisation, in μP also after one and two steps of Adam; "
            "depth 1 to 4, heads 1 to 8 or head_dim 8 or 16, any norm and place, hand-written attention or not, zero "
            "readout or not."
        ),
        table(("wrong model", "what is wrong", "violated, and first", "time"), lines),
        (
            f"Chance of a suspicious look at a right exponent, over the level of {_LEVEL:.2g} (for {_TAPS} exponents); "
            f"widths 64 to 1,024, no tolerance; {scale.taps:,} exponents, seed 26, so that the standard error at 1 is "
            f"{(_LEVEL * scale.taps) ** -0.5:.2f}. A violation takes three."
        ),
        false_alarms(scale.taps),
        (
            "Seeds per width and look, at tolerance 0.1, for three looks to reject an exponent off by 1/2 with 99%, "
            "and for the interval to lie within the tolerance with 90%."
        ),
        powers(scale.taps),
    ]


def page(tiny: bool) -> list[str]:
    """Measure everything, and return the page."""
    scale = TINY if tiny else FULL
    versions = ", ".join(f"{name} {version_of(name)}" for name in PACKAGES if version_of(name))
    return ["# Models", f"{versions}.", *zoo(scale), *wild(scale), *widths(scale)]
