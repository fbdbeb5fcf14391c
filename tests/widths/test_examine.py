"""From models to verdicts: the budget holds, effects are found, and uninformative taps are named."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.streams import stream
from attncheck.commands.cli import main
from attncheck.evidence.looks import Budget
from attncheck.evidence.verdicts import Verdict
from attncheck.report.svg import BAD
from attncheck.scaling.examine import examine
from attncheck.scaling.exponents import exponents, seeds_needed
from attncheck.scaling.predictions import expectation, shares
from attncheck.scaling.taps import MODULE, Model, Tap
from tests.refusals import refused

#: Mean logarithm of a size at a width.
Law = Callable[[float], float]


def power_law(exponent: float, next_order: float = 0.0) -> Law:
    return lambda n: exponent * np.log(n) + next_order / n


@dataclasses.dataclass
class Drawn(Model):
    """A model without computation: taps have drawn sizes."""

    sizes: Mapping[str, float]

    def taps(self) -> Mapping[str, Tap]:
        return {name: Tap(np.array([size]), MODULE, "law") for name, size in self.sizes.items()}

    def step(self) -> None:
        self.sizes = {name: 2.0 * size for name, size in self.sizes.items()}


@dataclasses.dataclass(frozen=True)
class Laws:
    """Makes models with a law per tap; `noise` draws an additive term of the logarithms."""

    laws: Mapping[str, Law]
    noise: Callable[[np.random.Generator, int], FloatArray]

    def make(self, width: int, seed: int) -> Drawn:
        noise = self.noise(stream(seed, "laws", width), len(self.laws))
        return Drawn(
            {name: float(np.exp(law(width) + e)) for (name, law), e in zip(self.laws.items(), noise, strict=True)}
        )


def normal(spread: float) -> Callable[[np.random.Generator, int], FloatArray]:
    return lambda rng, count: spread * rng.standard_normal(count)


WIDTHS = (64, 128, 256, 512, 1024)
ZERO = expectation({"*": 0})


def examined(laws: Laws, expect: Any = None, **options: Any) -> ac.Widths:
    expected = ZERO if expect is None else expectation(expect)
    return examine(laws.make, options.pop("widths", WIDTHS), expected, **options)


# Error rates --------------------------------------------------------------------------------------


def test_violations_of_right_models_keep_the_budget() -> None:
    """With a budget large enough for some violations, and no tolerance; first looks are suspicious as stated."""
    taps, runs, budget = 30, 10, 0.5
    laws = Laws({f"tap{k}": power_law(0.0, 20.0) for k in range(taps)}, normal(0.2))
    found = [examined(laws, seeds=4, seed=k, false_alarm=budget, tolerance=0.0) for k in range(runs)]
    alarms = sum(len(each.violated) for each in found)
    level = Budget(budget).level(taps)
    assert level**3 * taps < budget
    expected = runs * taps * level**3
    assert 1.0 < expected < 5.0
    assert stats.poisson.sf(alarms - 1, expected) > 1e-4
    suspicious = sum(len(row.p_values) > 1 for each in found for row in each.rows)
    assert stats.binomtest(suspicious, taps * runs, found[0].level).pvalue > 1e-4


# Verdicts -----------------------------------------------------------------------------------------

THREE = Laws({"right": power_law(0.0), "wrong": power_law(0.5), "noisy": power_law(0.0)}, normal(0.02))


def test_each_has_its_own() -> None:
    laws = dataclasses.replace(THREE, noise=lambda rng, count: rng.standard_normal(3) * [0.02, 0.02, 1.0])
    found = examined(laws)
    verdicts = {row.name: str(row.verdict) for row in found.rows}
    assert verdicts == {"right": "consistent", "wrong": "violated", "noisy": "inconclusive"}
    assert found.verdict is Verdict.VIOLATED
    assert found.fitting == ""
    assert len(found["wrong"].p_values) == 3
    assert found["wrong"].exponent == pytest.approx(0.5, abs=0.05)
    needed = found["noisy"].seeds_needed
    assert needed is not None
    assert 300 < needed < 100_000
    text = str(found)
    assert text.startswith(
        "VIOLATED: 1 of 3 exponents, widths 64 to 1024, 14 to 28 seeds each\n  first:    wrong (law)"
    )
    assert re.search(r"\n  open: +noisy\n", text)
    with pytest.raises(AssertionError, match=r"wrong \(law\) at initialisation: n\^\+0.5"):
        found.require()


@pytest.mark.parametrize(
    ("expect", "verdicts"),
    [
        ({"right": 0}, ["consistent", "not examined", "not examined"]),
        (
            {"right": "at most 0", "wrong": "at most 0", "noisy": "at most 0.5"},
            ["consistent", "violated", "consistent"],
        ),
    ],
)
def test_only_predicted_exponents_are_examined(expect: Any, verdicts: list[str]) -> None:
    result = examined(THREE, expect)
    assert [str(row.verdict) for row in result.rows] == verdicts
    assert result["wrong"].exponent == pytest.approx(0.5, abs=0.05)
    assert result.verdict is (Verdict.VIOLATED if "violated" in verdicts else Verdict.CONSISTENT)


def test_a_prediction_that_fits_is_named_if_another_one_is_violated() -> None:
    falls = Laws({"tap": power_law(-0.3)}, normal(0.02))
    assert examined(falls).headline.endswith("; sizes at initialisation agree with expect='mup' (--expect mup)")
    assert examined(falls, "mup").fitting == ""


def test_changes_are_those_of_the_same_seed() -> None:
    """Each step doubles all sizes: changes grow like them, with their noise."""
    found = examined(THREE, {"*": {"init": 0, "change": 0}}, steps=2)
    first, one, two = (next(row for row in found.rows if row.name == "wrong" and row.steps == k) for k in range(3))
    assert np.allclose(one.sizes, first.sizes)
    assert np.allclose(two.sizes, 3 * np.array(first.sizes))
    assert {(row.name, row.steps) for row in found.violated} == {("wrong", 0), ("wrong", 1), ("wrong", 2)}


def test_as_built_in_types() -> None:
    laws = Laws({"zero": lambda n: -np.inf, "right": power_law(0.0)}, normal(0.02))
    told = examined(laws).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False))["verdict"] == "consistent"


BETWEEN = (-0.5, 0)


@pytest.mark.parametrize(
    ("squares", "predicted", "verdicts"),
    [
        (lambda n: 1 + 300 / n, BETWEEN, "consistent"),
        (lambda n: 1 + 300 / n, 0, "violated"),  # sizes fall much more than a constant may
        (lambda n: 1.0, BETWEEN, "consistent"),
        (lambda n: 1 / n, BETWEEN, "consistent"),
        (lambda n: 1 + n / 500, BETWEEN, "violated"),
        (lambda n: 1 / n**2, BETWEEN, "violated"),
        # Its square has an order below the fitted ones, which a share of a larger one would hide.
        (lambda n: 0.002 + (3 / n + 0.02 / n**0.5) ** 2 * 100, BETWEEN, "consistent inconclusive not examined"),
    ],
    ids=["both", "both as one", "constant", "decaying", "growing", "vanishing faster", "falling fast"],
)
def test_mixed_orders(squares: Law, predicted: Any, verdicts: str) -> None:
    """Squares of sizes that mix a decaying and a constant part, or should not be taken for such a mixture."""
    laws = Laws({"mixed": lambda n: 0.5 * float(np.log(squares(n)))}, normal(0.02))
    assert str(examined(laws, {"*": predicted})["mixed"].verdict) in verdicts


@dataclasses.dataclass
class Plain:
    width: int
    rng: np.random.Generator

    def taps(self) -> Mapping[str, Any]:
        values = self.rng.standard_normal(64)
        return {
            "zero": np.zeros(4),
            "rounding": Tap(1e-15 * values, summed=1.0),
            "norm": Tap(values / np.sqrt(np.mean(values**2)), "norm"),
            "remark": Tap(values, note="module runs more than once"),
            "seldom": values * (self.rng.random() < 0.5),
        }


@dataclasses.dataclass
class Blocks:
    """Blocks with a fixed standard deviation, or variance 1/width, whose changes grow as the width to `rate`.

    `factor` is the power of 1/width in a factor of every block, and `readout` that in the last matrix.
    """

    width: int
    rng: np.random.Generator
    std: float | None = None
    rate: float = 0.0
    readout: float = 1.0
    factor: float = 0.0
    depth: int = 3
    change: float = 0.0

    def __post_init__(self) -> None:
        std = self.std or self.width**-0.5
        self.matrices = [std * self.rng.standard_normal((self.width, self.width)) for _ in range(self.depth)]
        self.last = self.rng.standard_normal((64, self.width)) / self.width**self.readout
        self.x = self.rng.standard_normal((self.width, 16))

    def taps(self) -> Mapping[str, Any]:
        first = {"embedding": Tap(self.x, "embedding")}
        x = self.x / self.width**self.factor
        blocks = {f"blocks.{k}.fc": Tap(w @ x + self.change, what="Linear") for k, w in enumerate(self.matrices)}
        return first | blocks | {"output": Tap(self.last @ self.x + self.change, "output")}

    def step(self) -> None:
        self.change += 100.0 * self.width**self.rate

    def weights(self) -> Mapping[str, np.ndarray[Any, Any]]:
        return {f"blocks.{k}.fc.weight": matrix for k, matrix in enumerate(self.matrices)}


def blocks(expect: str = "mup", steps: int = 0, **options: Any) -> ac.Widths:
    def make(width: int, seed: int) -> Any:
        return Blocks(width, np.random.default_rng(seed), **options)

    return examine(make, (32, 64, 128, 256), expectation(expect), steps=steps, seeds=24)


def test_matrices_with_one_scale_are_named_first_and_their_rows_are_one() -> None:
    found = blocks("standard", std=0.02, readout=0.5, depth=12)
    assert found.headline.startswith(
        "VIOLATED: 12 hidden matrices have std 0.02 at every width: neither standard parametrisation nor μP; 12 of 14 "
    )
    ((_, (_, *rows)),) = found.tables
    assert [row[0] for row in rows] == ["embedding", "blocks.*.fc (12)", "output"]
    assert rows[1][-1] == "violated"
    low, high = (row for row in zip(*((row.low, row.high) for row in found.rows[1:13]), strict=True))
    assert rows[1][3:5] == (f"{min(low):+.3f}", f"{max(high):+.3f}")
    assert len(found.rows) == 14


def test_matrices_with_right_outputs_are_no_cause() -> None:
    """Their scales fall with the width, or a factor does."""
    for found, verdict in ((blocks(), Verdict.CONSISTENT), (blocks(readout=0.5), Verdict.VIOLATED)):
        assert (found.verdict, found.fixed_scales) == (verdict, ())
    factor = blocks(readout=0.5, std=1.0, factor=0.5)
    assert ([row.name for row in factor.violated], factor.fixed_scales) == (["output"], ())


def test_a_row_with_another_verdict_is_not_merged() -> None:
    laws = Laws({f"blocks.{k}.fc": power_law(0.5 * (k == 2)) for k in range(4)}, normal(0.02))
    found = examined(laws)
    ((_, (_, *rows)),) = found.tables
    assert [(row[0], row[-1]) for row in rows] == [("blocks.*.fc (3)", "consistent"), ("blocks.2.fc", "violated")]


def test_changes_do_not_follow_from_a_size_at_initialisation() -> None:
    """A readout of the standard parametrisation, and a learning rate that is too large in wide models."""
    found = blocks(steps=2, rate=1.0, readout=0.5)
    (one, readout), (two, change), (three, others) = found.findings
    assert (one, two, three) == ("first", "and", "also")
    assert readout.startswith("output at initialisation: n^")
    assert change.startswith("blocks.0.fc (Linear) change after 1 step: n^")
    assert others == "blocks.*.fc: changes in the same steps; check learning rates"
    right = blocks(steps=2, readout=0.5)
    assert {(row.name, row.steps) for row in right.violated} == {("output", 0)}


def test_what_says_nothing_is_named() -> None:
    found = ac.widths(Plain, expect={"*": 0})
    said = {row.name: (str(row.verdict), *row.notes) for row in found.rows}
    assert said["zero"] == said["rounding"] == ("not examined", "zero by design")
    assert said["norm"] == ("consistent", "after a norm: size independent of its input")
    assert said["remark"][1:] == ("module runs more than once",)
    assert said["seldom"][0] == "not examined"
    assert "zero in " in said["seldom"][1]


class Failing(Plain):
    def taps(self) -> Mapping[str, Any]:
        raise ZeroDivisionError("no size")


class Infinite(Plain):
    def taps(self) -> Mapping[str, Any]:
        return {"good": np.ones(3), "broken": np.array([1.0, np.inf if self.width > 128 else 1.0])}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"build": Failing}, r"taps: failed with ZeroDivisionError: no size .*; return arrays by name"),
        ({"build": Infinite}, "build=inf: is the size of broken @0 at width 256: missing or not finite"),
        ({"widths": (64, 128)}, "widths=.64, 128.: must be at least three, all different"),
        ({"widths": (64, 64, 128)}, "widths=.64, 128.: must be at least three, all different"),
        ({"seeds": 1}, "seeds=1: must be at least 2"),
        ({"steps": 1}, "steps=1: needs an optimiser"),
        ({"expect": {"nowhere": 0}}, "expect='nowhere': matches no tap; use an existing name, such as norm"),
        ({"expect": {"*": None}}, "expect='the table': predicts nothing for any tap; name some of: zero"),
        ({"expect": {"*": "small"}}, r"expect\['\*'\]='small': is not an exponent"),
        ({"expect": {"*": (0.5, 0)}}, "is in the wrong order"),
        ({"expect": {"*": {"later": 0}}}, "has keys other than 'init' and 'change'"),
        ({"false_alarm": 0}, "false_alarm=0: must be greater than 0"),
        ({"build": lambda width: 3}, "build=3: is not a module of torch"),
        ({"loss": 3}, "loss=3: is not a function"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    build = arguments.pop("build", Plain)
    refused(lambda: ac.widths(build, **arguments), message)
    refused(lambda: examined(THREE, seeds=2)["rigth"], r"name='rigth': is not a tap; did you mean 'right'\?")


# Statistics of exponents, on simulated sizes ----------------------------------------------------

N = np.array(WIDTHS, dtype=float)[:, None, None]
TAPS = 100_000
# Seeds of `examine` at each width, by default.
SEEDS = (28, 24, 20, 17, 14)
# About that of a look at some 180 numbers.
LEVEL = 1.4e-3

# Logarithms of root mean squares: of many numbers, and of one, four and sixteen normal ones.
NOISE: dict[str, Callable[[np.random.Generator, tuple[int, ...]], FloatArray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "one": lambda rng, shape: 0.5 * np.log(rng.chisquare(1, shape)),
    "four": lambda rng, shape: 0.5 * np.log(rng.chisquare(4, shape)),
    "sixteen": lambda rng, shape: 0.5 * np.log(rng.chisquare(16, shape)),
}


def few_alarms(p_values: FloatArray, most: float = LEVEL) -> int:
    """Assert that p-values are below the level no more often than `most` says; return how often they are."""
    alarms = int((p_values < LEVEL).sum())
    assert stats.binom.sf(alarms - 1, TAPS, most) > 1e-4
    return alarms


@pytest.mark.sampled(4)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("counts", [(2,) * 5, (4,) * 5, (8,) * 5, SEEDS], ids=["2", "4", "8", "of examine"])
def test_no_more_false_alarms_than_the_level_says(noise: str, counts: tuple[int, ...]) -> None:
    """Also for one number per tap, whose logarithm is far from normal."""
    rng = np.random.default_rng(0)
    found = exponents([NOISE[noise](rng, (seeds, TAPS)) for seeds in counts], WIDTHS)
    alarms = few_alarms(found.p_values(0.0, 0.0))
    missed = int((np.abs(found.values) > found.half_widths(LEVEL)).sum())
    assert missed == alarms


@pytest.mark.parametrize("spread", [0.05, 0.15])
def test_seeds_that_are_said_to_be_needed_decide(spread: float) -> None:
    rng = np.random.default_rng(3)
    pilot = exponents(spread * rng.standard_normal((5, 100, 1)), WIDTHS)
    seeds = seeds_needed(0.1, float(pilot.errors[0]), float(pilot.freedom[0]), 100, LEVEL)
    assert seeds is not None
    decided = []
    for number in (seeds, seeds // 3):
        found = exponents(spread * rng.standard_normal((5, number, 4_000)), WIDTHS)
        decided.append(float(np.mean(np.abs(found.values) + found.half_widths(LEVEL) < 0.1)))
    assert decided[0] > 0.95 > 0.5 > decided[1]


def test_no_number_of_seeds_decides_at_the_edge() -> None:
    assert seeds_needed(0.0, 0.1, 20.0, 8, LEVEL) is None
    assert seeds_needed(1e-6, 1.0, 20.0, 8, LEVEL) is None


def test_sizes_that_never_differ_are_no_division_by_zero() -> None:
    found = exponents(np.zeros((5, 4, 1)), WIDTHS)
    assert found.p_values(np.array([-0.1]), np.array([0.1]))[0] == 1.0
    assert found.p_values(np.array([0.4]), np.array([0.6]))[0] < 1e-12


def test_shares_have_no_more_false_alarms_than_the_level_says() -> None:
    """Mixtures with the largest allowed share."""
    rng = np.random.default_rng(4)
    squares = 1 + 100 / N + 0.3 / 0.7 * (1 + 100 / 1024) * N / 1024
    found = shares(0.5 * np.log(squares) + 0.05 * rng.standard_normal((5, 8, TAPS)), WIDTHS)
    few_alarms(found.p_values(high=0.3))


# The command, the table, JSON and the page --------------------------------------------------------


SOURCE = """
import numpy as np


class Layer:
    def __init__(self, width, rng, power=0.5):
        self.x, self.rng, self.power = rng.standard_normal((32, width)), rng, power
        self.w = rng.standard_normal((width, 64)) / width**power

    def taps(self):
        return {"in": self.x, "out": self.x @ self.w}

    def step(self):
        self.w = self.w * 1.5


def wrong(width, rng):
    return Layer(width, rng, power=0.0)


table = {"in": 0, "out": {"init": 0, "change": 0}}
never = {"in": "at most 0", "out": {"change": (-0.5, 0)}}
"""
SMALL = ("--widths", "16, 32,64", "--seeds", "128", "--expect", "over_widths:table")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "over_widths.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "over_widths", raising=False)


def test_right_and_wrong_models_have_their_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "over_widths:Layer", *SMALL]) == ExitCode.CONSISTENT
    said = capsys.readouterr().out
    assert said.startswith(
        "CONSISTENT: 4 exponents examined, widths 16 to 64, 128 to 181 seeds each\n\nat initialisation\ntap"
    )
    assert "change after 2 steps" in said
    assert main(["widths", "over_widths:wrong", *SMALL]) == ExitCode.VIOLATED
    said = capsys.readouterr().out
    assert re.search(
        r"^  first:    out at initialisation: n\^\+0\.[45]\d, from .* to .*; predicted 0$", said, re.MULTILINE
    )
    assert main(["widths", "over_widths:Layer", *SMALL[:2], "--seeds", "2", *SMALL[4:]]) == ExitCode.INCONCLUSIVE
    headline, names = capsys.readouterr().out.splitlines()[:2]
    assert re.search(r"; seeds=(\d+) \(--seeds \1\) would decide (\d) of \2 open exponents, in about \d+ s$", headline)
    assert re.match(r"  open: +(in|out)", names)


def test_json_holds_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "over_widths:wrong", *SMALL, "--steps", "1", "--json"]) == ExitCode.VIOLATED
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "violated"
    assert [(row["name"], row["steps"]) for row in told["rows"]] == [("in", 0), ("out", 0), ("in", 1), ("out", 1)]
    assert told["rows"][1]["verdict"] == "violated"
    assert len(told["rows"][1]["p_values"]) == 3
    assert told["rows"][1]["exponent"] == pytest.approx(0.5, abs=0.1)
    assert told["rows"][2]["verdict"] == "not examined"
    assert told["rows"][2]["notes"] == ["no change beyond rounding"]


def test_the_page_has_pictures_with_what_is_violated_in_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = {}
    for name in ("Layer", "wrong"):
        main(["widths", f"over_widths:{name}", *SMALL, "--report", f"{name}.html"])
        pages[name] = (tmp_path / f"{name}.html").read_text("utf-8")
    plots = {
        name: [base64.b64decode(each).decode() for each in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)]
        for name, page in pages.items()
    }
    assert [len(each) for each in plots.values()] == [3, 3]
    red = f"stroke: ?{BAD}"
    assert not any(re.search(red, each) for each in plots["Layer"])
    assert all(re.search(red, each) for each in plots["wrong"])
    assert "1 of them are violated: out grows as n^+0." in pages["wrong"]
    assert [">out<" in each for each in plots["wrong"]] == [True] * 3  # the name of the red line
    assert 'class="box violated"' in pages["wrong"]
    assert re.search("<h2[^>]*>out at initialisation: n\\^", pages["wrong"])
    assert 'class="chip violated"' not in pages["Layer"]
    capsys.readouterr()
