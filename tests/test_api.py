"""`attncheck.check`: the properties as a function call, with structured results."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attncheck as ac
from attncheck.checks.answers import projected
from attncheck.checks.registry import PROPERTIES
from attncheck.records.schema import run_digest
from attncheck.simulators.literal import LiteralSimulator
from tests.refusals import refused

LAYER = ac.AttentionLayer(width=8, seq_len=2, num_heads=2)
OTHER = LAYER.replace(num_heads=1, attention_map="linear")
RIGHT = "attncheck.subject:collapsed"


def small(subject: Any = RIGHT, layer: Any = LAYER, properties: Any = ("draws", "scores"), **options: Any) -> Any:
    return ac.check(subject, layer, properties=properties, **{"profile": "smoke", **options})


def tied(layer: ac.AttentionLayer, inputs: NDArray[np.float64], rng: np.random.Generator) -> dict[str, Any]:
    made = projected(layer, inputs, rng)
    return LiteralSimulator().after(layer, dataclasses.replace(made, keys=made.queries), rng)


STRICT = """
import numpy as np
from attncheck.subject import collapsed
np.seterr(all="raise")

def simulate(layer, size, rng):
    np.seterr(all="raise")
    return collapsed(layer, size, rng)
"""


# Settings of NumPy --------------------------------------------------------------------------------


def test_settings_of_the_subject_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api_strict.py").write_text(STRICT)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = np.geterr()
    assert small("api_strict:simulate", LAYER.replace(mask="causal"), "exactness").verdict == "consistent"
    assert np.geterr() == before


def test_settings_of_the_caller_stay() -> None:
    with np.errstate(all="raise"):
        report = small(layer=ac.AttentionLayer(width=4, seq_len=2, num_heads=2), properties=PROPERTIES)
        assert str(report)
        assert set(np.geterr().values()) == {"raise"}
    assert report.verdict == "consistent"


# Results ------------------------------------------------------------------------------------------


def test_results_are_one_per_check_and_layer_in_their_order() -> None:
    """Whatever comes twice is examined once; layers may come from a generator; the seed tells the digits."""
    report = small(layer=(layer for layer in (LAYER, OTHER, LAYER)), properties=iter(["draws", "scores", "draws"]))
    assert report.verdict == "consistent"
    planned = [planned.id for planned in report.run.planned]
    assert [result.id for result in report.results] == sorted(planned, key=lambda id: not id.endswith(LAYER.key))
    assert {str(result.case) for result in report.results} == {str(each.to_dict()) for each in (LAYER, OTHER)}
    assert report.violated == ()
    report.require()
    text = str(report)
    assert text.startswith("CONSISTENT: attncheck.subject:collapsed, ")
    assert "Digest of all digits: " in text
    assert "Record" not in text
    again = report.run.examine(report.run.items_on("draws", [LAYER, OTHER]))
    digits = {result.id: result.p_values for result in report.results}
    assert all(result.p_values == digits[result.id] for result in again)
    other = small(seed=1, properties="draws").results
    assert [result.p_values for result in other] != [digits[result.id] for result in other]


def test_violations_come_with_a_cause_and_a_call(request: pytest.FixtureRequest) -> None:
    report = small(tied, [LAYER, OTHER])
    assert report.verdict == "violated"
    assert report.violated
    assert all(result.verdict == "violated" for result in report.violated)
    assert report.call in str(report)
    # Digests hold no causes, which take most of the time.
    request.getfixturevalue("verdicts_only")
    again = eval(report.call, {"attncheck": ac, "tied": tied})
    assert run_digest(again.results) == run_digest(report.results)
    assert report.causes[0].startswith("W_Q and W_K are the same matrix")
    assert f"  cause:    {report.causes[0]}\n" in str(report)
    with pytest.raises(AssertionError) as caught:
        report.require()
    assert report.call in str(caught.value)
    assert f"cause:    {report.causes[0]}" in str(caught.value)
    assert caught.traceback[-1].frame.code.name == "require"
    assert "results are violated" in str(caught.value)


# Input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 16}, "layer=16: is not an AttentionLayer or a Program; pass attncheck.AttentionLayer(wid"),
        ({"layer": [LAYER, "wide"]}, "layer='wide': is not an AttentionLayer"),
        ({"layer": []}, "layer=[]: leaves nothing to examine; pass at least one layer and one property"),
        ({"properties": []}, "properties=[]: leaves nothing to examine; pass at least one layer and one property"),
        ({"properties": "score"}, "property='score': is not known; use one of exactness"),
        ({"properties": 5}, "property=5: is not known; use one of exactness"),
    ],
)
def test_unusable_argument_is_named(options: dict[str, Any], words: str) -> None:
    refused(lambda: small(**options), re.escape(words))


def test_subject_that_returns_nonsense_is_named_with_its_layer() -> None:
    def nonsense(layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        return {"outputs": np.full((size, layer.seq_len, 1), np.nan)}

    refused(lambda: small(nonsense), r"=nan: is not finite; mend the simulator \(subject .*on n=8 s=2 H=2\)")
