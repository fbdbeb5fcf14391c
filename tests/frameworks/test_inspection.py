"""Inspection results: table, description, requirements, paths and entry points."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck.frameworks import effective
from attncheck.frameworks.trace import Trace
from tests.refusals import refused

from .numpy_layers import CAUSAL, Array, Plain, softmax
from .rows import inspected

STDS = {"query": 0.6, "key": 0.9, "value": 1.5, "output": 2.0}
STD = STDS["query"] / 64**0.5


@pytest.fixture(scope="module")
def result() -> ac.Inspection:
    return ac.inspect(Plain(stds=STDS, kv=2, masked=CAUSAL, bias=0.3), width=64)


# The result ---------------------------------------------------------------------------------------


def test_the_table_says_all(result: ac.Inspection) -> None:
    text = str(result)
    assert text.startswith(
        "Attention of width 64: 4 heads of 16 neurons, 2 of keys and values; 8 draws: nothing wrong was found\n"
    )
    assert "forward: softmax, causal mask, scores times 1/sqrt(head_dim); equal to the formula to " in text
    assert "note: queries, keys, values and outputs have biases of standard deviation 0." in text
    for name, std in zip(("W_Q", "W_K", "W_V", "W_O"), STDS.values(), strict=True):
        row = next(line.split() for line in text.splitlines() if line.startswith(name))
        assert row[1] == "normal"
        assert float(row[3]) < std < float(row[4])
    wide = dataclasses.replace(result.weights["query"], std=6.25e-06, low=6e-06, high=6.5e-06)
    single = dataclasses.replace(result, weights={"query": wide}, num_heads=1, kv_heads=1, draws=1)
    assert single.tables["Matrices"][1][2:5] == ("6.25e-06", "6e-06", "6.5e-06")
    assert single.headline.endswith("1 head of 16 neurons; 1 draw")


def test_standard_deviations_whose_intervals_overlap_are_averaged(result: ac.Inspection) -> None:
    stds = {"query": 0.7, "key": 0.8, "output": 2.0}
    weights = {
        role: dataclasses.replace(result.weights[role], std=std, low=std - 0.08, high=std + 0.08)
        for role, std in stds.items()
    }
    averages = dataclasses.replace(result, weights=weights).stds
    assert averages == pytest.approx({"query": 0.75, "key": 0.75, "output": 2.0})


def test_the_description_is_that_layer(result: ac.Inspection) -> None:
    layer = result.layer(seq_len=8)
    assert (layer.width, layer.seq_len, layer.num_heads, layer.head_dim, layer.kv_heads) == (64, 8, 4, 16, 2)
    assert (layer.mask, layer.attention_map, layer.score_scaling) == ("causal", "softmax", "1/sqrt(n)")
    for name, std in STDS.items():
        assert getattr(layer, f"{name}_std") == pytest.approx(std, rel=0.05)
    assert result.layer(mask="none", query_std=1.0).query_std == 1.0


@pytest.mark.parametrize(
    ("factor", "scaling", "std"), [(1 / 16, "1/n", 1.0), (0.5, "1/sqrt(n)", 2.0), (-0.25, "1/sqrt(n)", 1.0)]
)
def test_the_scale_of_scores_is_described(factor: float, scaling: str, std: float) -> None:
    layer = ac.inspect(Plain(factor=factor), width=64).layer()
    assert layer.score_scaling == scaling
    assert layer.query_std == pytest.approx(std, rel=0.05)


def test_an_unknown_formula_has_no_description() -> None:
    unknown = inspected(Plain(mapped=lambda p: np.tril(softmax(p, -1))))
    assert "\nforward: weights are not those of a known formula: " in str(unknown)
    assert unknown.verdict.startswith("WRONG: rows of the attention weights sum to ")
    assert "and not to 1; divided by these, they are softmax, causal mask, " in unknown.verdict
    refused(unknown.layer, "forward='no known formula': cannot be described by an AttentionLayer; ")


def test_as_built_in_types(result: ac.Inspection) -> None:
    fields = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert fields["weights"]["query"]["law"] == "normal"
    assert fields["forward"]["mask"] == "causal"
    assert fields["notes"][0]["level"] == "note"
    unknown = inspected(Plain(mapped=lambda p: np.full_like(p, np.nan)))
    assert not np.isfinite(unknown.forward.factor)
    assert json.loads(json.dumps(unknown.to_dict(), allow_nan=False))["forward"]["factor"] is None


def test_matrices_are_the_same_if_read_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> effective.Effective:
        adapter = Plain(width=32, heads=2, kv=2)
        state = adapter.fresh(0)
        return effective.ModuleReader(adapter, state, 32, "").read(state)

    whole = read()
    monkeypatch.setattr(effective, "_CALL", 5 * 32)  # five rows of one position
    parts = read()
    for role in (*effective.ROLES, "output", "past"):
        np.testing.assert_allclose(parts[role], whole[role], rtol=1e-6, atol=1e-7)


# Requirements -------------------------------------------------------------------------------------


def test_what_holds_may_be_required(result: ac.Inspection) -> None:
    result.require(**{f"{name}_std": std for name, std in STDS.items()})
    result.require(mask="causal", map="softmax", scale="1/sqrt(head_dim)", bias=True, query_bias=True, blamed=False)
    result.require(scale=0.25, num_heads=4, kv_heads=2, head_dim=16, query_law="normal")
    result.require(query_law="gaussian", positions="none", rotary_base=None)
    result.require("causal", "query_law=normal", f"key_std={STDS['key']}", "num_heads=4", f"query=normal({STD})")


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"query_std": 1.0}, r"W_Q: std·√fan-in is 0\.\d+, from 0\.\d+ to 0\.\d+, not 1"),
        ({"output_law": "uniform"}, "W_O: the law is normal, not uniform"),
        ({"key_bias": False}, r"W_K: the bias is 0\.\d+/sqrt\(fan_in\)"),
        ({"bias": False}, "biases: W_Q, W_K, W_V, W_O have one"),
        ({"mask": "none"}, "mask is 'causal', not 'none'"),
        ({"mask": "window of 4096"}, "mask is 'causal', not 'window of 4096'"),  # longer than an inspection sees
        ({"scale": 1.0}, "scores are multiplied by 0.25, not 1"),
        ({"kv_heads": 4}, "kv_heads is 2, not 4"),
        ("num_heads=2", "num_heads is 4, not 2$"),
        ("unmasked", "mask is 'causal', not 'none'"),
        ("mup", "scale is '1/sqrt"),
        ("unbiased", "biases: "),
        ("rotary", "positions is 'none', not 'rotary'"),
        (f"query=uniform({STD})", "W_Q: the law is normal, not uniform"),
        (f"query=normal({2 * STD})", "W_Q: std"),
        ({"query_std": 9.0, "mask": "none", "key_std": 0.9}, r"^[^\n]*W_Q[^\n]*\n[^\n]*mask[^\n]*$"),
    ],
)
def test_what_does_not_hold_is_reported_with_its_number(result: ac.Inspection, expected: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        result.require(expected) if isinstance(expected, str) else result.require(**expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("qeury_std", 1.0, "did you mean 'query_std'"),
        ("query_law", "gausian", "query_law=.*'gaussian'"),
        ("mask", "triangular", "mask=.*'window of 4'"),
        ("scale", "1/sqrt(n)", "scale=.*'1/sqrt.head_dim.'"),
        ("map", "softmax1", "map=.*'softmax over the heads'"),
        ("positions", "rope", "positions=.*'rotary'"),
        ("rotary_base", "10000", "rotary_base=.*pass the base"),
        ("", "mask=casual", "mask='casual'"),
    ],
)
def test_expectations_that_are_refused(result: ac.Inspection, name: str, value: Any, message: str) -> None:
    refused(lambda: result.require(**{name: value}) if name else result.require(value), message)


def test_an_error_or_a_question_may_be_forbidden_declared_or_allowed() -> None:
    with pytest.raises(AssertionError, match=r"scores times 1, not 1/sqrt\(head_dim\)"):
        inspected(Plain(factor=1.0)).require(blamed=False)
    mup = inspected(Plain(factor=1 / 16))
    assert (len(mup.blamed), len(mup.asked)) == (0, 1)
    mup.require(scale="1/head_dim", asked=False)
    mup.require(asked="maximal-update")
    assert not mup.expecting("mup").asked
    for asked in (False, ["tiled", "share"]):
        with pytest.raises(AssertionError, match="scores times 1/head_dim"):
            mup.require(asked=asked)


# Paths --------------------------------------------------------------------------------------------


class TwoPaths(Plain):
    """A module with two paths, the second a different layer; attention is visible on some."""

    paths: tuple[str, ...] = ("sdpa", "eager")
    visible: tuple[str, ...] = paths

    def __init__(self, other: Plain) -> None:
        super().__init__()
        self.other = other

    def run(self, state: Any, x: Array, trace: Trace, path: str = "sdpa") -> Array:
        trace = trace if path in self.visible else Trace()
        return super().run(state, x, trace) if path == "sdpa" else self.other.run(state, x, trace)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Plain(), ()),
        (Plain(masked=CAUSAL), ("mask: sdpa: no mask; eager: causal",)),
        (Plain(factor=1 / 16), ("scale: sdpa: 1/sqrt(head_dim); eager: 1/head_dim",)),
    ],
)
def test_paths_of_one_module(other: Plain, difference: tuple[str, ...]) -> None:
    inspection = inspected(TwoPaths(other))
    assert inspection.blamed == tuple(f"two paths of this module differ in {text}" for text in difference)
    assert list(inspection.paths) == ["sdpa", "eager"]


def test_a_path_without_visible_attention_is_compared_with_one_that_has_it() -> None:
    layer = TwoPaths(Plain(masked=CAUSAL))
    layer.paths, layer.visible = ("eager", "sdpa"), ("sdpa",)
    inspection = inspected(layer)
    assert inspection.paths["eager"].error == np.inf
    assert inspection.forward.mask == "none"


def test_the_fixture_inspects(attncheck_layer: Any) -> None:
    assert attncheck_layer is ac.inspect
