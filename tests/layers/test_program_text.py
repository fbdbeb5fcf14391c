"""Programs as text: exact round trips, and errors with line numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import attncheck as ac
from attncheck import AttentionLayer, InputError, Program
from attncheck._lib.arrays import FloatArray
from attncheck.layers.expansion import expand
from attncheck.layers.nonlinearity import clip, declared, monomial, relu
from attncheck.layers.program import LinearCombination
from attncheck.strategies import layers


def gate(vector: FloatArray, score: FloatArray) -> FloatArray:
    return np.asarray(np.tanh(score) * vector)


def softplus(x: FloatArray) -> FloatArray:
    return np.logaddexp(0.0, x)


def centred(x: FloatArray) -> FloatArray:
    return np.asarray(x - x.mean(axis=-1, keepdims=True))


def written() -> Program:
    """A program with every kind of line, weight and function in text."""
    program = Program()
    h, k = program.initials(["h", "k"], [0.5, -1.0], [[1.0, 1 / 3], [1 / 3, 2.0]])
    W, Q, K, zero = (program.weight(name, std) for name, std in (("W", 0.1), ("Q", 1.0), ("K", 1.0), ("zero", 0.0)))
    low, high = program.weight("low", rows=3), program.weight("high", columns=3)
    x = program.nonlin(clip(3.0), program.matmul(W, h), name="x")
    z = program.nonlin(LinearCombination((1.0, 0.3)), x, program.nonlin(monomial(2), k))
    w = program.nonlin(declared(softplus, order=1, bounded=False), z)
    a = program.score(program.matmul(Q, x), program.matmul(K, w), factor=0.5)
    v = program.matmul(high, program.matmul(low, program.nonlin(np.tanh, program.matmul(zero, x))))
    program.output(gate, vectors=[v], scores=[a])
    program.nonlin(np.maximum, v, x, name="both")
    return program


def same(one: Program, other: Program) -> None:
    assert str(one) == str(other)
    assert one.to_dict() == other.to_dict()
    drawn, again = (ac.simulate(program.at(5), 3, seed=1, coordinates=2) for program in (one, other))
    np.testing.assert_array_equal(drawn.outputs, again.outputs)
    np.testing.assert_array_equal(drawn.scores, again.scores)


def test_toml_gives_the_program_back(tmp_path: Path) -> None:
    program = written()
    text = program.to_toml()
    same(program, Program.from_toml(text, trust=[__name__]))
    (tmp_path / "p.toml").write_text(text)
    same(program, Program.from_toml(tmp_path / "p.toml", trust=[__name__]))
    assert 'matmul = "W"' in text


@settings(max_examples=20)
@given(layers(max_entries=2_000, max_width=8).filter(lambda layer: layer.num_heads * layer.seq_len**2 < 60))
def test_layers_expand_to_programs_that_can_be_written_down(layer: AttentionLayer) -> None:
    program = expand(layer).program
    assert str(Program.from_toml(program.to_toml())) == str(program)
    assert Program.from_dict(program.to_dict()).to_dict() == program.to_dict()


def test_shorthand_for_people() -> None:
    program = Program.from_toml(
        """
        weights = [{name = "W"}, {name = "V", std = 2.0}]
        lines = [
            {initial = ["h"]},
            {matmul = "W", of = "h", name = "g"},
            {nonlin = "relu", of = ["g"]},
            {nonlin = "numpy:sin", of = ["g"]},
        ]
        """
    )
    assert str(program).splitlines() == ["h ~ N(0, 1)", "g = W h", "x1 = relu(g)", "x2 = sin(g)"]
    assert program.nodes[2].function == relu()  # type: ignore[attr-defined]  # nodes[2] is a Nonlin


class TestFunctionsWithoutNames:
    def program(self) -> Program:
        program = Program()
        program.nonlin(lambda x: x + 1.0, program.initial("h"))
        return program

    def test_are_refused_in_toml(self) -> None:
        with pytest.raises(
            InputError,
            match=r"function='<lambda>': is a local function, which cannot be imported; define it at the top",
        ):
            self.program().to_toml()

    def test_are_named_in_built_in_types(self) -> None:
        fields = self.program().to_dict()
        assert fields["lines"][1]["nonlin"] == {"local": "<lambda>"}
        with pytest.raises(InputError, match="was a local function, which cannot be imported"):
            Program.from_dict(fields)


def lines(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"weights": [{"name": "W"}], "lines": [{"initial": ["h"]}, *rows], **fields}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no lines": ({}, "program.lines=None: is missing"),
    "unknown key": (lines(wights=[]), "program.wights=[]: is not known; use lines, weights"),
    "lines are text": ({"lines": "h"}, "program.lines='h': must be a list"),
    "unknown kind": (lines({"matmull": "W"}), "program.lines[2]={'matmull': 'W'}: must be a table with one of initial"),
    "unknown weight": (lines({"matmul": "V", "of": "h"}), "program.lines[2].matmul='V': is not known; use one of 'W'"),
    "unknown line": (lines({"matmul": "W", "of": "g"}), "program.lines[2].matmul='g': is not the name of an earlier"),
    "unknown field": (lines({"matmul": "W", "of": "h", "std": 1}), "program.lines[2].std=1: is not known"),
    "missing field": (lines({"matmul": "W"}), "program.lines[2].of=None: is missing"),
    "score of three": (lines({"score": ["h", "h", "h"]}), "program.lines[2].score=['h', 'h', 'h']: must name two"),
    "unknown function": (lines({"nonlin": "reluu", "of": ["h"]}), "program.lines[2].nonlin.name='reluu': is not known"),
    "wrong parameters": (
        lines({"nonlin": {"name": "clip", "parameters": []}, "of": ["h"]}),
        "program.lines[2].nonlin.parameters=[]: does not fit clip",
    ),
    "no such module": (lines({"nonlin": "nomodule:f", "of": ["h"]}), "program.lines[2].nonlin='nomodule:f': cannot be"),
    "bad covariance": (
        {"lines": [{"initial": ["h"], "cov": [[-1.0]]}]},
        "program.lines[1]: cov=[[-1.0]]: has a negative eigenvalue",
    ),
    "function of another shape": (
        lines({"nonlin": "numpy:sum", "of": ["h"]}),
        "program.lines[2]: function=sum: returned shape (), not (2, 3)",
    ),
    "function that mixes coordinates": (
        lines({"nonlin": f"{__name__}:centred", "of": ["h"]}),
        "program.lines[2]: function=centred: gives values that depend on the other coordinates",
    ),
    "function that fails": (
        lines({"nonlin": "numpy:matmul", "of": ["h"]}),
        "program.lines[2]: function=matmul: cannot be called with 1 arrays",
    ),
}


@pytest.mark.parametrize(("fields", "said"), BAD.values(), ids=BAD)
def test_bad_text_is_refused_by_its_line(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Program.from_dict(fields, trust=["nomodule", "numpy", __name__])
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda tmp: Program.from_toml("lines = ["), "not TOML"),
        (lambda tmp: Program.from_toml(tmp / "missing.toml"), "cannot be read"),
        (lambda tmp: Program.from_toml(3), "is not TOML text"),  # type: ignore[arg-type]  # what a person may pass
    ],
)
def test_unreadable_text(read: Callable[[Path], Program], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path)
