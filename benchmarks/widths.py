"""Measure how often right exponents are rejected, and how reliably wrong ones are found.

``python benchmarks/widths.py`` simulates the statistics, examines random right PyTorch transformers and each wrong
one of benchmarks/width_models.py, and runs mup's coord_check on the same models if installed (``pip install --no-deps
mup==1.0.0``, pandas, seaborn and pyyaml). ``--right N`` and ``--wrong N`` set the number of models, ``--write``
updates benchmarks/widths.md, and ``--resume FILE`` continues an interrupted call.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: the models are here, the package may be installed elsewhere

import attncheck as ac  # noqa: E402  # found by the path above
from attncheck._lib.measured import installed, spread, table  # noqa: E402  # found by the path above
from attncheck.evidence.budget import Budget  # noqa: E402  # found by the path above
from attncheck.evidence.family import smallest_whole  # noqa: E402  # found by the path above
from attncheck.scaling.exponents import exponents  # noqa: E402  # found by the path above
from benchmarks.rows import Rows  # noqa: E402  # found by the path above

FloatArray = NDArray[np.float64]

WIDTHS = (64, 128, 256, 512, 1024)
#: For right models: there are many, and the widest takes longest.
RIGHT_WIDTHS = (64, 128, 256, 512)
QUICK_WIDTHS = (16, 32, 64)
_TAPS = 180
_LEVEL = Budget().level(_TAPS)
_NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], FloatArray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "of 16 normal numbers": lambda rng, shape: 0.5 * np.log(rng.chisquare(16, shape)),
    "of 4 normal numbers": lambda rng, shape: 0.5 * np.log(rng.chisquare(4, shape)),
    "of one normal number": lambda rng, shape: 0.5 * np.log(rng.chisquare(1, shape)),
    "normal, falling as 1/√n": lambda rng, shape: rng.standard_normal(shape) / np.sqrt(np.array(WIDTHS))[:, None, None],
    "normal, growing as √n": lambda rng, shape: rng.standard_normal(shape) * np.sqrt(np.array(WIDTHS))[:, None, None],
}


class Examined(msgspec.Struct, frozen=True):
    kind: str
    name: str
    seed: int
    seconds: float
    verdicts: dict[str, int]
    looks: int
    violated: list[str]


def examined(kind: str, name: str, recipe: object, seed: int, widths: Sequence[int]) -> Examined:
    """Examine one model, in μP after two training steps too."""
    from benchmarks.width_models import Recipe

    assert isinstance(recipe, Recipe)
    begun = time.perf_counter()
    optimizer = recipe.optimizer if recipe.mup else None
    found = ac.widths(recipe.build, widths, "mup" if recipe.mup else "standard", optimizer=optimizer, seed=seed)
    return Examined(
        kind=kind,
        name=name,
        seed=seed,
        seconds=time.perf_counter() - begun,
        verdicts=dict(Counter(str(row.verdict) for row in found.rows)),
        looks=max(len(row.p_values) for row in found.rows),
        violated=[f"{row.name} @{row.steps}" for row in found.violated],
    )


def random_recipe(seed: int) -> object:
    """Return a random right model with random depth, heads and norms; every other one is in μP."""
    from benchmarks.width_models import Recipe

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


def models(options: argparse.Namespace) -> Iterator[tuple[str, str, object, int, Sequence[int]]]:
    from benchmarks.width_models import WRONG, Recipe

    widths = QUICK_WIDTHS if options.quick else WIDTHS
    for seed in range(options.wrong):
        for name, (recipe, _, _) in WRONG.items():
            yield "wrong", name, recipe, seed, widths
        yield "right at all widths", "μP", Recipe(), seed, widths
    for seed in range(options.right):
        yield "right", "random", random_recipe(seed), seed, QUICK_WIDTHS if options.quick else RIGHT_WIDTHS


def all_examined(options: argparse.Namespace) -> list[Examined]:
    """Examine all models that are not yet in the file."""
    rows = Rows(options.resume)
    return [
        rows.get(f"{kind}, {name}, seed {seed}", Examined, partial(examined, kind, name, recipe, seed, widths))
        for kind, name, recipe, seed, widths in models(options)
    ]


def false_alarms(taps: int) -> str:
    """Return the table of suspicious looks at exactly right exponents."""
    rows = []
    for name, noise in _NOISE.items():
        cells = []
        for seeds in (4, 8, 16):
            rng, alarms, zero = np.random.default_rng([26, seeds]), 0, np.zeros(10_000)
            for _ in range(-(-taps // 10_000)):
                found = exponents(noise(rng, (len(WIDTHS), seeds, 10_000)), WIDTHS)
                alarms += int((found.p_values(zero, zero) < _LEVEL).sum())
            cells.append(f"{alarms / (-(-taps // 10_000) * 10_000) / _LEVEL:.2f}")
        rows.append((name, *cells))
    return table(("logarithms of sizes", "4 seeds", "8 seeds", "16 seeds"), rows)


def powers(taps: int) -> str:
    """Return the table of seeds needed to reject an exponent off by 1/2 with 99%, and to decide."""
    rows = []
    for deviation in (0.02, 0.05, 0.1, 0.15, 0.3, 0.5):
        n = np.array(WIDTHS, dtype=float)[:, None, None]

        def simulated(seeds: int, order: float, deviation: float = deviation, n: FloatArray = n) -> tuple[float, float]:
            """Return the simulated shares of intervals beyond and within the tolerance."""
            rng = np.random.default_rng([26, seeds])
            logs = order * np.log(n) + deviation * rng.standard_normal((len(WIDTHS), seeds, taps // max(seeds, 20)))
            found = exponents(logs, WIDTHS)
            half = found.half_widths(_LEVEL)
            return float(np.mean(found.values - half > 0.1)), float(np.mean(np.abs(found.values) + half < 0.1))

        sees = smallest_whole(lambda seeds: seeds > 1 and simulated(seeds, 0.5)[0] ** 3 >= 0.99, 10_000)
        decides = smallest_whole(lambda seeds: seeds > 1 and simulated(seeds, 0.0)[1] >= 0.9, 10_000)
        rows.append((f"{deviation:g}", str(sees), str(decides)))
    return table(("standard deviation over seeds", "seeds to tell 1/2 apart", "seeds to decide"), rows)


def found_table(rows: Sequence[Examined]) -> str:
    from benchmarks.width_models import WRONG

    lines = []
    for name, (_, tap, steps) in WRONG.items():
        mine = [row for row in rows if row.kind == "wrong" and row.name == name]
        first = sum(row.violated[:1] == [f"{tap} @{steps}"] for row in mine)
        seconds = spread(np.array([row.seconds for row in mine]), " s", ".0f")
        lines.append((name, f"`{tap}`, {_moment(steps)}", f"{first} of {len(mine)}", seconds))
    return table(("model", "what is wrong", "violated, and first", "time"), lines)


def _moment(steps: int) -> str:
    return f"change after {steps} step" if steps else "at initialisation"


def right_lines(rows: Sequence[Examined]) -> list[str]:
    lines = []
    for kind in ("right", "right at all widths"):
        mine = [row for row in rows if row.kind == kind]
        if not mine:
            continue
        bad = sum(bool(row.violated) for row in mine)
        bound = stats.beta.ppf(0.95, bad + 1, len(mine) - bad)
        verdicts = sum((Counter(row.verdicts) for row in mine), Counter[str]())
        told = ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts.most_common())
        seconds = spread(np.array([row.seconds for row in mine]), " s", ".0f")
        again = sum(row.looks > 1 for row in mine)
        what = "random right models" if kind == "right" else "runs of the right transformer of two blocks in μP"
        lines.append(
            f"{len(mine)} {what}: violated in {bad}, at most {bound:.3g} of them (95%); {again} took more than "
            f"one look. Exponents: {told}. Time: {seconds}.\n"
        )
    return lines


def coordinate_check(quick: bool) -> str:
    """Return the table of coord_check on the same models; empty if mup is not installed."""
    try:
        from benchmarks.coordinates import rows
    except ImportError:
        return ""
    return table(("model", "time", "slope of the wrong module", "steepest slope of a right one"), rows(quick))


def page(options: argparse.Namespace) -> str:
    rows = all_examined(options)
    other = coordinate_check(options.quick)
    lines = [
        "# Exponents over widths: error rates\n",
        "`python benchmarks/widths.py --write` makes this page.\n",
        f"{installed()}; one thread.\n",
        "## The statistics\n",
        (
            f"Chance of a suspicious look at a right exponent, over the level of {_LEVEL:.2g} (for {_TAPS} "
            f"exponents); widths {WIDTHS[0]} to {WIDTHS[-1]}, no tolerance; {options.taps:,} exponents, seed 26, so "
            f"that the standard error at 1 is {(_LEVEL * options.taps) ** -0.5:.2f}. A violation takes three.\n"
        ),
        false_alarms(options.taps),
        (
            "\nSeeds per width and look, at tolerance 0.1, for three looks to reject an exponent off by 1/2 with "
            "99%, and for the interval to lie within the tolerance with 90%.\n"
        ),
        powers(options.taps),
        "\n## Right models\n",
        *right_lines(rows),
        (
            "Random models have widths 64 to 512, at initialisation, in μP also after one and two steps of Adam; "
            "depth 1 to 4, heads 1 to 8 or head_dim 8 or 16, any norm and place, hand-written attention or not, "
            "zero readout or not.\n"
        ),
        "## Wrong models\n",
        "Two blocks, widths 64 to 1,024, eight seeds; μP after two steps too.\n",
        found_table(rows),
        *(["\n## coord_check of mup 1.0.0 on the same models\n", _COORDINATES, other] if other else []),
    ]
    return "\n".join(lines) + "\n"


_COORDINATES = (
    "It plots means of |x| of each module's outputs over five seeds, in the first three forwards, for a person "
    "to judge. Here are log-log slopes in the first and third forward: of the wrong module, and the steepest "
    "of the right model. Scores are no module's output, so it has no line for them.\n"
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure the error rates of exponents over widths.")
    parser.add_argument("--right", type=int, default=60, help="random right models")
    parser.add_argument("--wrong", type=int, default=2, help="runs of each wrong model")
    parser.add_argument("--taps", type=int, default=200_000, help="exponents that are simulated")
    parser.add_argument("--resume", type=Path, help="file that keeps what was examined")
    parser.add_argument("--quick", action="store_true", help="a tiny version, which is not written")
    parser.add_argument("--write", action="store_true", help="write benchmarks/widths.md too")
    given = parser.parse_args(arguments)
    if given.quick and given.write:
        parser.error("a run with --quick is not written")
    if given.quick:
        given.right, given.wrong, given.taps = 2, 1, 10_000
    text = page(given)
    print(text, end="")
    if given.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
