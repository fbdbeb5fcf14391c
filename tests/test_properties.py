"""`pytest properties/` passes for right simulators, and fails for wrong ones with clear messages."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from attncheck._lib.text import chance
from attncheck.checks.registry import PROPERTIES
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.records.schema import Closing, Manifest, Result, read

pytest_plugins = ["pytester"]

FOLDER = Path(__file__).resolve().parents[1] / "properties"
# Files of layer properties: the others do not apply to the fixed cases below.
OF_LAYERS = [
    path.name
    for path in sorted(FOLDER.glob("test_*.py"))
    if any(f'@examines("{name}"' in path.read_text(encoding="utf-8") for name in PROPERTIES)
]
# Two fixed smoke cases: n=8 s=4 H=2, and a causal one with grouped heads.
PLAIN, GROUPED = ANCHORS[1].key, ANCHORS[3].key


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("ATTNCHECK_SUBJECT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    # Fixed cases are chosen below; no layers are drawn.
    monkeypatch.setitem(PROFILES, "smoke", dataclasses.replace(PROFILES["smoke"], examples=0))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(pytester.path)
    return pytester


def held(
    place: pytest.Pytester, subject: str, *files: str, only: str, more: str = "--color=no"
) -> tuple[pytest.RunResult, list[Result], str]:
    """Test a subject at the smoke profile; return the run, its results and its verdict."""
    paths = [str(FOLDER / file) for file in files]
    options = ["--attncheck-profile=smoke", "--attncheck-record=record.jsonl", f"--attncheck-subject={subject}"]
    result = place.runpytest_inprocess(*paths, *options, more, "-k", only, "-p", "no:cacheprovider", "--tb=short")
    manifest, *results, closing = read(place.path / "record.jsonl")
    assert isinstance(manifest, Manifest)
    assert isinstance(closing, Closing)
    assert f"attncheck: subject {subject}, seed 0, profile smoke, false-alarm budget 1e-06" in result.outlines
    return result, [line for line in results if isinstance(line, Result)], closing.verdict


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["direct", "matrix_free", "collapsed"])
def test_right_readings_pass(place: pytest.Pytester, method: str) -> None:
    """On one layer: the main job tests the first on all of them, and tests/slow the last."""
    result, results, verdict = held(place, f"attncheck.subject:{method}", *OF_LAYERS, only=GROUPED)
    assert result.ret == 0, "\n".join(result.outlines)
    assert verdict == "consistent"
    assert {each.property for each in results} == set(PROPERTIES)
    assert all(each.verdict in ("consistent", "not examined") for each in results)
    assert sum(each.verdict == "consistent" for each in results) > 60


@pytest.mark.usefixtures("no_causes")
@pytest.mark.parametrize(
    ("fault", "file", "said"),
    [
        (
            "scores_over_n",
            "test_scores.py",
            [
                r"VIOLATED: Given the inputs, scores are Gaussian given the keys",
                r"observed: score variance 0\.1\d+ \[0\.1\d+, 0\.1\d+\], declared 1\.\d+",
            ],
        ),
        (
            "missing_head_scaling",
            "test_conditional_gaussianity.py",
            [
                r"observed: output variance given scores and values [12]\.\d+ \[.*\] times the declared",
                r"likely:   W_O, H\^\{-1/2\}",
            ],
        ),
    ],
)
def test_wrong_ones_fail_and_are_told_why(place: pytest.Pytester, fault: str, file: str, said: list[str]) -> None:
    result, results, verdict = held(place, f"attncheck.faults:{fault}", file, only=PLAIN, more="-rf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdict == "violated"
    text = "\n".join(result.outlines)
    assert "VIOLATED: attncheck.faults:" in text
    assert "Flaky" not in text
    assert "Traceback" not in text
    for words in said:
        assert re.search(words, text), f"{words}\n{text}"
    replay = re.search(r"replay:   attncheck replay record\.jsonl (\S+)", text)
    assert replay
    violated = {each.id: each for each in results if each.verdict == "violated"}
    worst = violated[replay[1]]
    looks = ", ".join(map(chance, worst.p_values))
    assert f"{worst.text}; p = {looks} on {worst.size:,} draws a look" in text
