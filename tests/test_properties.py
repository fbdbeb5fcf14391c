"""`pytest properties/` fails for a wrong simulator with clear messages, and passes for the mended one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from attncheck._lib.text import chance
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.records.schema import Closing, Manifest, Result, read

pytest_plugins = ["pytester"]

FOLDER = Path(__file__).resolve().parents[1] / "properties"
# Two fixed smoke cases: n=8 s=4 H=2, and a causal one with grouped heads.
PLAIN, GROUPED = ANCHORS[1].key, ANCHORS[3].key

SUBJECTS = '''
from attncheck.simulators.collapsed import attend


def packed(layer, inputs, rng, fan_out=3):
    """One packed matrix for Q, K and V, initialised with a fan-out of 3n: Xavier's std is √(2/(n + 3n))."""
    stds = dict.fromkeys(("query_std", "key_std", "value_std"), (2 / (1 + fan_out)) ** 0.5)
    return attend(layer.replace(**stds), inputs, 2, rng).as_dict()


def separate(layer, inputs, rng):
    return packed(layer, inputs, rng, fan_out=1)


packed.supports = separate.supports = lambda layer: layer.num_kv_heads is None or "only full heads"
'''


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in ("ATTNCHECK_SUBJECT", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    # Fixed cases are chosen below; no layers are drawn.
    monkeypatch.setitem(PROFILES, "smoke", dataclasses.replace(PROFILES["smoke"], examples=0))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(pytester.path)
    pytester.makepyfile(mine=SUBJECTS)
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


@pytest.mark.usefixtures("no_causes")
def test_a_subtle_bug_is_told_in_numbers_and_mended(place: pytest.Pytester) -> None:
    """Packed Q, K and V wrongly share a fan-out: a public bug of a real library."""
    result, results, verdict = held(place, "mine:packed", "test_scores.py", only=PLAIN, more="-rf")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert verdict == "violated"
    text = "\n".join(result.outlines)
    assert "VIOLATED: Given the inputs, scores are Gaussian given the keys" in text
    assert "VIOLATED: mine:packed" in text
    assert "Flaky" not in text
    assert "Traceback" not in text
    observed = re.search(r"observed: score variance (\S+) \[(\S+), (\S+)\], declared (\S+)", text)
    assert observed
    value, low, high, declared = (float(number) for number in observed.groups())
    assert low < value < high < declared
    assert abs(value / declared - 0.25) < 0.03
    assert re.search(r"observed: key variance 0\.[45]\d+ \[.*\] times the declared", text)
    replay = re.search(r"replay:   attncheck replay record\.jsonl (\S+)", text)
    assert replay
    (worst,) = (line for line in results if line.id == replay[1])
    looks = ", ".join(map(chance, worst.p_values))
    assert f"{worst.text}; p = {looks} on {worst.size:,} draws a look" in text

    result, results, verdict = held(place, "mine:separate", "test_scores.py", only=f"{PLAIN} or {GROUPED}")
    assert result.ret == 0
    assert verdict == "consistent"
    # The unsupported grouped layer neither passes nor fails.
    reasons = {line.reason for line in results if line.case["num_kv_heads"]}
    assert reasons == {"the subject does not support this layer: only full heads"}
