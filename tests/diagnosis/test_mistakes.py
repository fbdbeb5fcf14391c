"""The table of mistakes: valid simulators, wrong ones, and patterns that name them."""

from __future__ import annotations

import operator
import re
from pathlib import Path

import pytest

import attncheck as ac
from attncheck.layers import regimes
from benchmarks import mistakes
from benchmarks.first_line import examined
from benchmarks.mistakes import MISTAKES, Attention, Mistake, simulator

NAME = operator.attrgetter("name")
PAGE = Path(mistakes.__file__).with_name("first_line.md").read_text(encoding="utf-8")
#: Mistakes whose first line says something else than was expected, or the same in other words; all properties name one.
UNNAMED = {*re.findall(r"^\| \[(\w+)\].*\| no +\|$", PAGE, re.MULTILINE), "SoftmaxOfHeads"}


@pytest.mark.sampled
@pytest.mark.parametrize("layer", [mistakes.CAUSAL, mistakes.GROUPED, mistakes.NARROW], ids=ac.AttentionLayer.describe)
def test_what_the_mistakes_share_is_right(layer: ac.AttentionLayer) -> None:
    assert ac.check(simulator(Attention), layer, profile="smoke").verdict == "consistent"


def test_patterns_exclude_and_refer_to_others() -> None:
    mistake = Mistake("a", "b", "c", mistakes.PAPER, [["<query>", "!keys"], ["mask"]], simulator(Attention))
    assert mistake.named_in("w_q is too large")
    assert mistake.named_in("no MASK")
    assert not mistake.named_in("queries and keys")
    assert not mistake.named_in("values")


@pytest.mark.sampled(7)
@pytest.mark.usefixtures("verdicts_only")
@pytest.mark.parametrize("name", sorted(UNNAMED))
def test_a_mistake_without_a_name_is_violated(name: str) -> None:
    (index,) = (index for index, mistake in enumerate(MISTAKES) if mistake.name == name)
    assert examined(index).verdict == "violated"


# The tiny page of tests/slow examines the first two, and the page on first lines all of them.
@pytest.mark.sampled(14)
@pytest.mark.parametrize("mistake", [mistake for mistake in MISTAKES[2:] if mistake.name not in UNNAMED], ids=NAME)
def test_the_first_line_names_the_mistake(mistake: Mistake) -> None:
    """The other properties add violations, not causes."""
    report = ac.check(mistake.subject, mistake.layer, properties=("exactness", "structure"), profile="smoke")
    assert report.verdict == "violated"
    assert mistake.named_in(report.causes[0]), report.causes


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(2))
def test_a_fault_with_effects_of_heavy_tails_is_named_on_two_layers(seed: int) -> None:
    """Its largest effect differs by half between looks: 8.2, 18.2 and 17.8."""
    wrong, layers = "attncheck.faults:softmax_over_columns", [regimes.STANDARD, regimes.NARROW]
    report = ac.check(wrong, layers, properties=("exactness", "scores"), profile="smoke", seed=seed)
    assert report.causes == ("softmax normalises the columns of the scores",)
