"""Inspection results: table, description, requirements, comparisons and entry points."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.frameworks import effective
from attncheck.frameworks.adapter import Adapter
from attncheck.frameworks.framework import adapter_of
from attncheck.frameworks.initialiser import same_layers
from attncheck.frameworks.result import Inspection
from attncheck.frameworks.trace import Trace

from .plain import CAUSAL, Array, Plain, softmax

STDS = {"query": 0.5, "key": 0.7, "value": 1.5, "output": 2.0}


@pytest.fixture(scope="module")
def found() -> Inspection:
    return ac.inspect(Plain(stds=STDS, kv=2, masked=CAUSAL, bias=0.3), width=64)


def _length(a: Array) -> Array:
    return np.asarray(np.linalg.norm(a, axis=-1, keepdims=True))


# The result ---------------------------------------------------------------------------------------


def test_the_table_says_all(found: Inspection) -> None:
    said = str(found)
    assert said.startswith(
        "Attention of width 64: 4 heads of 16 neurons, 2 of keys and values; 8 draws: nothing wrong was found\n"
    )
    assert "forward: softmax, causal mask, scores times 1/sqrt(head_dim); equal to the formula to " in said
    assert "note: queries, keys, values and outputs have biases of standard deviation 0." in said
    for name, std in zip(("W_Q", "W_K", "W_V", "W_O"), STDS.values(), strict=True):
        row = next(line.split() for line in said.splitlines() if line.startswith(name))
        assert row[1] == "normal"
        assert float(row[3]) < std < float(row[4])


def test_the_description_is_that_layer(found: Inspection) -> None:
    layer = found.layer(seq_len=8)
    assert (layer.width, layer.seq_len, layer.num_heads, layer.head_dim, layer.kv_heads) == (64, 8, 4, 16, 2)
    assert (layer.mask, layer.attention_map, layer.score_scaling) == ("causal", "softmax", "1/sqrt(n)")
    for name, std in STDS.items():
        assert getattr(layer, f"{name}_std") == pytest.approx(std, rel=0.05)
    assert found.layer(mask="none", query_std=1.0).query_std == 1.0


@pytest.mark.parametrize(("factor", "scaling", "times"), [(1 / 16, "1/n", 1.0), (0.5, "1/sqrt(n)", 2.0)])
def test_the_scale_of_scores_is_described(factor: float, scaling: str, times: float) -> None:
    layer = ac.inspect(Plain(factor=factor), width=64).layer()
    assert layer.score_scaling == scaling
    assert layer.query_std == pytest.approx(times, rel=0.05)


def test_what_is_no_attention_layer_has_no_description() -> None:
    unread = ac.inspect(Plain(before=lambda q, k, v: (q / (_length(q) + 1e-9), k, v)), width=64)
    with pytest.raises(ac.InputError, match="query_std=None: is unknown"):
        unread.layer()
    assert unread.layer(query_std=1.0).query_std == 1.0
    wrong = ac.inspect(Plain(mapped=lambda p: softmax(p, -2)), width=64)
    with pytest.raises(ac.InputError, match="cannot be described by an AttentionLayer"):
        wrong.layer()
    unknown = ac.inspect(Plain(mapped=lambda p: np.tril(softmax(p, -1))), width=64)
    assert "\nforward: weights are not those of a known formula: " in str(unknown)
    assert unknown.verdict.startswith("WRONG: rows of the attention weights sum to ")
    assert "and not to 1; divided by these, they are softmax, causal mask, " in unknown.verdict
    with pytest.raises(ac.InputError, match="forward='no known formula': cannot be described by an AttentionLayer; "):
        unknown.layer()


def test_as_built_in_types(found: Inspection) -> None:
    held = json.loads(json.dumps(found.to_dict()))
    assert held["weights"]["query"]["law"] == "normal"
    assert held["forward"]["mask"] == "causal"
    assert held["notes"][0]["level"] == "note"


# Requirements -------------------------------------------------------------------------------------


def test_what_holds_may_be_required(found: Inspection) -> None:
    found.require(**{f"{name}_std": std for name, std in STDS.items()})
    found.require(mask="causal", map="softmax", scale="1/sqrt(head_dim)", bias=True, query_bias=True, blamed=False)
    found.require(scale=0.25, num_heads=4, kv_heads=2, head_dim=16, query_law="normal")


UNMET: dict[str, tuple[Any, str]] = {
    "query_std": (1.0, r"W_Q: std·√fan-in is 0\.\d+, from 0\.\d+ to 0\.\d+, not 1"),
    "output_law": ("uniform", "W_O: the law is normal, not uniform"),
    "key_bias": (False, r"W_K: the bias is 0\.\d+/sqrt\(fan_in\)"),
    "bias": (False, "biases: W_Q, W_K, W_V, W_O have one"),
    "mask": ("none", "mask is 'causal', not 'none'"),
    "scale": (1.0, "scores are multiplied by 0.25, not 1"),
    "kv_heads": (4, "kv_heads is 2, not 4"),
}


@pytest.mark.parametrize(("name", "value", "said"), [(k, *v) for k, v in UNMET.items()], ids=list(UNMET))
def test_what_does_not_hold_is_told_with_its_number(found: Inspection, name: str, value: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        found.require(**{name: value})


def test_all_that_does_not_hold_is_told(found: Inspection) -> None:
    with pytest.raises(AssertionError) as error:
        found.require(query_std=9.0, mask="none", key_std=0.7)
    assert str(error.value).count("\n") == 1


def test_a_note_that_blames_may_be_forbidden() -> None:
    wrong = ac.inspect(Plain(factor=1.0), width=64, draws=2)
    with pytest.raises(AssertionError, match=r"scores times 1, not 1/sqrt\(head_dim\)"):
        wrong.require(blamed=False)


def test_a_question_may_be_forbidden_declared_or_allowed() -> None:
    mup = ac.inspect(Plain(factor=1 / 16), width=64, draws=2)
    assert not mup.blamed
    assert len(mup.asked) == 1
    with pytest.raises(AssertionError, match="scores times 1/head_dim"):
        mup.require(asked=False)
    mup.require(scale="1/head_dim", asked=False)
    mup.require(asked="maximal-update")
    with pytest.raises(AssertionError, match="scores times 1/head_dim"):
        mup.require(asked=["tiled", "share"])


def test_what_is_declared_as_text(found: Inspection) -> None:
    found.require("causal", "query_law=normal", f"key_std={STDS['key']}", "num_heads=4")
    std = STDS["query"] / 64**0.5
    found.require(f"query=normal({std})")
    for text, said in (
        ("unmasked", "mask is 'causal', not 'none'"),
        ("mup", "scale is '1/sqrt"),
        (f"query=uniform({std})", "W_Q: the law is normal, not uniform"),
        (f"query=normal({2 * std})", "W_Q: std"),
        ("unbiased", "biases: "),
        ("rotary", "positions is 'none', not 'rotary'"),
    ):
        with pytest.raises(AssertionError, match=said):
            found.require(text)
    for wrong in ("casual", "query=normal()", "mask=casual"):
        with pytest.raises(ac.InputError):
            found.require(wrong)


def test_an_unknown_requirement_is_refused(found: Inspection) -> None:
    with pytest.raises(ac.InputError, match="did you mean 'query_std'"):
        found.require(qeury_std=1.0)


@pytest.mark.parametrize(
    ("name", "value", "listed"),
    [
        ("query_law", "gausian", "'gaussian'"),
        ("output_law", "student5", "'truncated normal'"),
        ("mask", "triangular", "'window of 4'"),
        ("mask", None, "'causal'"),
        ("scale", "1/sqrt(n)", "'1/sqrt.head_dim.'"),
        ("map", "softmax1", "'softmax over the heads'"),
        ("positions", "rope", "'rotary'"),
        ("rotary_base", "10000", "pass the base"),
    ],
)
def test_words_that_no_inspection_says_are_refused(found: Inspection, name: str, value: Any, listed: str) -> None:
    with pytest.raises(ac.InputError, match=f"{name}=.*{listed}"):
        found.require(**{name: value})


def test_laws_have_the_names_that_subjects_give_them(found: Inspection) -> None:
    found.require(query_law="gaussian", positions="none", rotary_base=None)
    with pytest.raises(AssertionError, match="the law is normal, not uniform"):
        found.require(query_law="uniform")
    for size in (3, 4096):  # the second one is longer than an inspection sees
        with pytest.raises(AssertionError, match=f"mask is 'causal', not 'window of {size}'"):
            found.require(mask=f"window of {size}")


def test_what_is_kept_of_an_unknown_formula_is_json() -> None:
    unknown = ac.inspect(Plain(mapped=lambda p: np.full_like(p, np.nan)), width=64, draws=2)
    assert not np.isfinite(unknown.forward.factor)
    text = json.dumps(unknown.to_dict(), allow_nan=False)
    assert json.loads(text)["forward"]["factor"] is None


def test_numbers_of_any_size_are_shown(found: Inspection) -> None:
    wide = dataclasses.replace(found.weights["query"], std=6.25e-06, low=6e-06, high=6.5e-06)
    shown = dataclasses.replace(found, weights={"query": wide}, num_heads=1, kv_heads=1, draws=1)
    assert shown.tables["Matrices"][1][2:5] == ("6.25e-06", "6e-06", "6.5e-06")
    assert shown.headline.endswith("1 head of 16 neurons; 1 draw")


def test_a_negative_scale_has_the_law_of_a_positive_one() -> None:
    found = ac.inspect(Plain(factor=-0.25), width=64, draws=2)
    assert found.blamed == ("scores times -0.25, not 1/sqrt(head_dim)",)
    assert found.layer().query_std == pytest.approx(ac.inspect(Plain(), width=64, draws=2).layer().query_std, rel=1e-6)


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


def test_a_layer_that_adds_nothing_has_no_description() -> None:
    found = ac.inspect(Plain(stds={"output": 0.0}), width=64, draws=2)
    with pytest.raises(ac.InputError, match=r"output_std=0.0: must be at least"):
        found.layer()


# Paths --------------------------------------------------------------------------------------------


class TwoPaths(Plain):
    """A module with two paths, the second a different layer."""

    paths = ("sdpa", "eager")
    other = Plain()

    def run(self, state: Any, x: Array, trace: Trace, path: str = "sdpa") -> Array:
        return super().run(state, x, trace) if path == "sdpa" else self.other.run(state, x, trace)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Plain(), ()),
        (Plain(masked=CAUSAL), ("two paths of this module differ in mask: sdpa: no mask; eager: causal",)),
        (
            Plain(factor=1 / 16),
            ("two paths of this module differ in scale: sdpa: 1/sqrt(head_dim); eager: 1/head_dim",),
        ),
    ],
)
def test_paths_of_one_module(other: Plain, said: tuple[str, ...]) -> None:
    layer = TwoPaths()
    layer.other = other
    found = ac.inspect(layer, width=64, draws=2)
    assert found.blamed == said
    assert list(found.paths) == ["sdpa", "eager"]


def test_a_path_on_which_nothing_shows_is_held_to_one_on_which_it_does() -> None:
    class Hidden(TwoPaths):
        paths = ("eager", "sdpa")
        other = Plain(masked=CAUSAL)

        def run(self, state: Any, x: Array, trace: Trace, path: str = "sdpa") -> Array:
            return super().run(state, x, trace if path == "sdpa" else Trace(), path)

    found = ac.inspect(Hidden(), width=64, draws=2)
    assert found.paths["eager"].error == np.inf
    assert found.forward.mask == "none"


# Doors --------------------------------------------------------------------------------------------


def test_layers_that_are_copies() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal((2, 4, 4))
    held = {f"h.{i}.{name}.{j}": one * j for i in range(3) for j in (1, 2) for name in ("a",)} | {"h.3.a.1": two}
    assert [str(note) for note in same_layers(held)] == [
        "layers 0, 1 and 2 have the same weights: h.*.a.1 and 1 more",
    ]
    assert same_layers({"embedding": one, "head": one, "h.0.zero": one * 0, "h.1.zero": one * 0}) == []


def test_what_is_no_adapter_is_refused() -> None:
    with pytest.raises(ac.InputError, match="is not a function"):
        adapter_of(3, 8)
    with pytest.raises(ac.InputError, match="make: failed with ValueError: no"):
        adapter_of(lambda: (_ for _ in ()).throw(ValueError("no")), 8)
    plain = Plain()
    assert isinstance(plain, Adapter)
    assert adapter_of(plain, 8) is plain


MODULE = """
from pathlib import Path
import numpy as np

from attncheck.frameworks.adapter import Adapter
from attncheck.frameworks.trace import AttentionCore

class Right(Adapter):
    def make(self, seed):
        return np.random.default_rng(seed).standard_normal((4, 32, 32)) / 32**0.5
    def run(self, state, x, trace, path):
        q, k, v = ((x @ w)[:, None] for w in state[:3])
        weights = np.exp(q @ k.swapaxes(-1, -2) * self.factor)
        weights = weights / weights.sum(-1, keepdims=True)
        heads = trace.core(AttentionCore(q, k, v, weights))
        heads = weights @ v if heads is None else heads
        return heads[:, 0] @ state[3]
    factor = 32**-0.5

class Wrong(Right):
    factor = 1.0

class MaximalUpdate(Right):
    factor = 1 / 32

right, wrong, maximal_update = Right(), Wrong(), MaximalUpdate()
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some_layers.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["inspect", "some_layers:right", "--width", "32"]) == ExitCode.CONSISTENT
    assert "W_Q" in capsys.readouterr().out
    assert main(["inspect", "some_layers:wrong", "--width", "32", "--json", "--draws", "2"]) == ExitCode.VIOLATED
    assert json.loads(capsys.readouterr().out)["forward"]["scale"] == "1"
    declared = ["--expect", "unmasked", "--expect", "query_std=1.0"]
    assert main(["inspect", "some_layers:right", "--width", "32", *declared]) == ExitCode.CONSISTENT
    capsys.readouterr()
    assert main(["inspect", "some_layers:right", "--width", "32", "--expect", "causal"]) == ExitCode.VIOLATED
    assert capsys.readouterr().out.startswith("NOT AS EXPECTED: mask is 'none', not 'causal'\n")
    command = ["inspect", "some_layers:maximal_update", "--width", "32"]
    asked = []
    for expected in ([], ["mup"], ["scale=1/sqrt(width)"]):
        main([*command, *(f"--expect={each}" for each in expected)])
        asked.append("if this is meant: scores times 1/head_dim" in capsys.readouterr().out)
    assert asked == [True, False, True]


pytest_plugins = ["pytester"]


def test_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(some_layers=MODULE)
    pytester.makepyfile(
        """
        from some_layers import right, wrong

        def test_right(attncheck_layer):
            attncheck_layer(right, width=32).require(mask="none", query_std=1.0)

        def test_wrong(attncheck_layer):
            attncheck_layer(wrong, width=32).require(scale="1/sqrt(head_dim)")
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*AssertionError: scale is '1', not '1/sqrt(head_dim)'*"])


def test_a_causal_layer_without_scores() -> None:
    found = ac.inspect(Plain(stds={"key": 0.0}, masked=CAUSAL), width=64, draws=2)
    assert found.forward.mask == "causal"
    assert found.blamed == ()


def test_sinks_and_biases_that_depend_on_the_inputs_may_be_meant() -> None:
    def mapped(p: Array) -> Array:
        return np.asarray(softmax(p + 0.5 * np.sin(p), -1) / (1 + np.exp(-p.mean(-1, keepdims=True))))

    found = ac.inspect(Plain(mapped=mapped), width=64, draws=2)
    assert found.blamed == ()
    assert "if this is meant: the attention weights are not those of a known formula" in found.verdict
