"""Each fixture has its bug, by its parameters or its forward pass."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import wild_bugs
from benchmarks.wild_bugs import MODULES, Bug, Right

from .wild_layers import POSITIONS, array, assert_runs, dtype_of, inputs_of, outputs_of

FloatArray = NDArray[np.float64]

DRAWS = 8
ROLES = ("query_std", "key_std", "value_std", "output_std")


def fixtures_of(name: str) -> ModuleType:
    for framework in MODULES[name]:
        pytest.importorskip(framework)
    return importlib.import_module(f"benchmarks.wild_bugs.{name}")


def bug_of(name: str, title: str) -> Bug:
    fixtures: tuple[Bug, ...] = fixtures_of(name).BUGS
    (bug,) = [each for each in fixtures if each.name == title]
    return bug


def right_of(name: str, title: str) -> Right:
    fixtures: tuple[Right, ...] = fixtures_of(name).RIGHT
    (right,) = [each for each in fixtures if each.name == title]
    return right


@pytest.mark.sampled
@pytest.mark.parametrize("name", MODULES)
def test_every_fixture_can_be_made_and_called(name: str) -> None:
    module = fixtures_of(name)
    for fixture in (*getattr(module, "BUGS", ()), *module.__dict__.get("RIGHT", ())):
        for make in filter(None, (fixture.make, getattr(fixture, "other", None))):
            layer = make()
            assert_runs(fixture, layer, inputs_of(name, fixture.width, dtype_of(layer)))


def sizes(make: Callable[[], Any], matrices: Callable[[Any], Any], fan_in: int) -> FloatArray:
    """Return standard deviations times √fan-in of some matrices over several draws."""
    draws = [[array(matrix) for matrix in matrices(make())] for _ in range(DRAWS)]
    stds = [math.sqrt(np.mean([np.mean(matrix**2) for matrix in group])) for group in zip(*draws, strict=True)]
    return np.array(stds) * math.sqrt(fan_in)


def matrices(names: str) -> Callable[[Any], list[Any]]:
    """Return a function that returns parameters by dotted names (linen: by module names)."""

    def found(layer: Any) -> list[Any]:
        if hasattr(layer, "variables") and isinstance(layer.variables, dict):
            return [layer.variables["params"][name]["kernel"] for name in names.split()]
        return [operator.attrgetter(name)(layer) for name in names.split()]

    return found


SIZED: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "packed in_proj": ("torch_weights", "in_proj_weight", (math.sqrt(0.5),)),
    "out_proj of MultiheadAttention": ("torch_weights", "out_proj.weight", (math.sqrt(1 / 3),)),
    "fan of the wrong axis": ("torch_weights", "W_Q W_K W_V W_O", (2.0, 2.0, 2.0, 1.0)),
    "trunc_normal_ in bfloat16": ("torch_weights", "q_proj.weight", (0.125 * math.sqrt(128),)),
    "truncation at ±2": ("torch_weights", "q_proj.weight out_proj.weight", (0.16, 0.16)),
    "depth scaling of c_proj": ("transformers_bugs", "c_proj.weight", (0.16,)),
    "0.02 whatever the width": ("transformers_bugs", "self.query.weight", (0.02 * math.sqrt(128),)),
    "fans of a convolution": (
        "keras_bugs",
        "query_dense.kernel key_dense.kernel value_dense.kernel output_dense.kernel",
        (1 / 6, 1 / 6, 1 / 6, math.sqrt(2 / 9)),
    ),
    "groups in the fan": ("keras_bugs", "_query_dense.kernel _key_dense.kernel", (1.0, math.sqrt(4 / 3))),
    "std 1": ("jax_bugs", "q out", (8.0, 8.0)),
}


@pytest.mark.parametrize("title", SIZED)
def test_matrices_have_the_size_of_the_bug(title: str) -> None:
    name, names, expected = SIZED[title]
    bug = bug_of(name, title)
    rtol = 0.1 if "bfloat16" in title else 0.02
    np.testing.assert_allclose(sizes(bug.make, matrices(names), bug.width), expected, rtol=rtol)


def test_separate_matrices_have_size_one() -> None:
    bug = bug_of("torch_weights", "packed in_proj")
    assert bug.other is not None
    separate = sizes(bug.other, matrices("attention.q_proj_weight attention.v_proj_weight"), bug.width)
    np.testing.assert_allclose(separate, 1.0, rtol=0.02)


LINEARS = "q_proj.weight k_proj.weight v_proj.weight out_proj.weight"
RIGHT_SIZED: dict[str, tuple[str, str]] = {
    "torch nn.Linear ×4": ("torch_weights", LINEARS),
    "torch nn.Linear ×4, normal, causal": ("torch_weights", LINEARS),
    "torch MultiheadAttention, kdim given": (
        "torch_weights",
        "attention.q_proj_weight attention.k_proj_weight attention.v_proj_weight attention.out_proj.weight",
    ),
    "transformers Bert, with its output layer": (
        "transformers_bugs",
        "self.query.weight self.key.weight self.value.weight",
    ),
    "transformers GPT-2": ("transformers_bugs", "c_attn.weight c_proj.weight"),
    "transformers Llama": ("transformers_bugs", "q_proj.weight k_proj.weight o_proj.weight"),
    "keras MultiHeadAttention": (
        "keras_bugs",
        "query_dense.kernel key_dense.kernel value_dense.kernel output_dense.kernel",
    ),
    "flax linen MultiHeadDotProductAttention": ("jax_bugs", "query key value out"),
    "flax nnx MultiHeadAttention": ("jax_bugs", "query.kernel key.kernel value.kernel out.kernel"),
    "equinox MultiheadAttention": (
        "equinox_layers",
        "query_proj.weight key_proj.weight value_proj.weight output_proj.weight",
    ),
}


@pytest.mark.parametrize("title", RIGHT_SIZED)
def test_right_layers_are_what_is_declared(title: str) -> None:
    name, names = RIGHT_SIZED[title]
    layer = right_of(name, title)
    declared = [layer.declared[role] for role in ROLES if role in layer.declared]
    # 65 features of keys, one always zero: fan-in is 64, here and in the declaration.
    np.testing.assert_allclose(sizes(layer.make, matrices(names), layer.width), declared, rtol=0.02)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("torch_weights", "torch nn.Linear ×4, normal, causal"),
        ("torch_weights", "torch nn.Linear ×4"),
        ("transformers_bugs", "transformers GPT-2"),
        ("transformers_bugs", "transformers Llama"),
        ("transformers_bugs", "transformers Bert, with its output layer"),
    ],
)
def test_masks_of_right_layers_are_what_is_declared(name: str, title: str) -> None:
    right = right_of(name, title)
    layer, x = right.make().eval(), inputs_of(name, right.width)
    moved = moved_by(lambda each: outputs_of(right, layer, each), x, 0, POSITIONS - 1)[0]
    assert (moved[:-1] > 0).any() == (right.declared["mask"] == "none")
    assert moved[-1] > 0


@pytest.mark.parametrize(
    ("title", "matrix"),
    [
        ("_reset_parameters", lambda m: m.out_proj.weight),
        ("never filled, zeros", lambda m: m.W_Q),
        ("never filled, old numbers", lambda m: m.W_O),
    ],
)
def test_some_matrices_are_not_drawn(title: str, matrix: Callable[[Any], Any]) -> None:
    bug = bug_of("torch_weights", title)
    first, second = array(matrix(bug.make())), array(matrix(bug.make()))
    assert (first == second).all()


def test_resetting_draws_the_rest() -> None:
    bug = bug_of("torch_weights", "_reset_parameters")
    first, second = array(bug.make().in_proj_weight), array(bug.make().in_proj_weight)
    assert (first != second).any()


def test_cloned_layers_are_equal() -> None:
    layers = bug_of("torch_weights", "cloned encoder layers").make().layers
    assert len(layers) == 6
    assert all((each.self_attn.in_proj_weight == layers[0].self_attn.in_proj_weight).all() for each in layers)


def test_seeded_matrices_are_equal() -> None:
    layer = bug_of("keras_bugs", "an initialiser with a seed").make()
    query, key, value = (array(layer.weights[k]) for k in (0, 2, 4))
    assert (query == key).all()
    assert (query == value).all()


def test_clamped_draws_lie_at_the_bounds() -> None:
    weight = array(bug_of("torch_weights", "trunc_normal_ in bfloat16").make().q_proj.weight)
    assert 0.001 < np.mean(np.abs(weight) == 2.0) < 0.01
    assert np.abs(weight[np.abs(weight) < 2.0]).max() < 0.1


def test_nothing_is_truncated() -> None:
    weight = array(bug_of("torch_weights", "truncation at ±2").make().q_proj.weight)
    assert 0.03 < np.mean(np.abs(weight) > 2 * 0.02) < 0.06


def middle(layer: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return queries, keys and values by head of modules with four shared linear layers."""
    torch = fixtures_of("torch_weights")
    q, k, v = (torch.heads_of(linear(x), 4) for linear in (layer.parts[0].q, layer.parts[0].k, layer.parts[0].v))
    return q, k, v


@pytest.mark.parametrize(
    ("title", "scale", "axis"),
    [("multiplied by √head_dim", 4.0, -1), ("two paths, two scales", 0.25, -1), ("softmax over queries", 0.25, -2)],
)
def test_heads_attend_as_the_bug_says(title: str, scale: float, axis: int) -> None:
    bug = bug_of("torch_forward", title)
    layer, x = bug.make(), inputs_of("torch_forward", bug.width)
    q, k, v = middle(layer, x)

    def wanted(scale: float, axis: int) -> FloatArray:
        merged = fixtures_of("torch_weights").merged
        return array(layer.out(merged((scale * q @ k.transpose(-1, -2)).softmax(axis) @ v)))

    found = array(layer(x))
    np.testing.assert_allclose(found, wanted(scale, axis), atol=1e-5)
    assert (scale, axis) == (0.25, -1) or np.abs(found - wanted(0.25, -1)).max() > 1e-3
    if bug.other is not None:
        other = bug.other()
        other.load_state_dict(layer.state_dict())
        np.testing.assert_allclose(array(other(x)), wanted(0.125, -1), atol=1e-5)


@pytest.mark.parametrize(
    "title", ["√width in place of √head_dim", "√width in place of √head_dim, heads along the batch"]
)
def test_scores_are_divided_by_the_root_of_the_width(title: str) -> None:
    torch, layers = pytest.importorskip("torch"), fixtures_of("torch_weights")
    layer = bug_of("torch_forward", title).make()
    x = inputs_of("torch_forward", 64)
    packed = hasattr(layer, "parts")
    parts = layer.parts[0].qkv(x).chunk(3, dim=-1) if packed else (layer.fc_q(x), layer.fc_k(x), layer.fc_v(x))
    q, k, v = (layers.heads_of(part, 4) for part in parts)
    last = layer.out if packed else layer.fc_o
    attend = torch.nn.functional.scaled_dot_product_attention
    np.testing.assert_allclose(array(layer(x)), array(last(layers.merged(attend(q, k, v, scale=1 / 8)))), atol=1e-5)


def test_scores_are_scaled_twice() -> None:
    bug = bug_of("jax_bugs", "scaled twice")
    x, layer = inputs_of("jax_bugs", bug.width), bug.make()
    w = {name: array(each["kernel"]) for name, each in layer.variables["params"].items()}
    q, k, v = (np.einsum("bsn,nhd->bhsd", np.asarray(x, dtype=float), w[name]) for name in ("q", "k", "v"))
    weights = np.exp(q @ k.swapaxes(-1, -2) / 16)
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(array(layer(x)), np.einsum("bhsd,hdn->bsn", weights @ v, w["out"]), atol=1e-4)


def test_groups_are_tiled_in_torch() -> None:
    torch = pytest.importorskip("torch")
    layer = bug_of("torch_forward", "tiled groups").make()
    with torch.no_grad():
        layer.parts[0].v.weight[16:] = 0.0  # the second group
        layer.out.weight.copy_(torch.eye(64))
    heads = array(layer(inputs_of("torch_forward", 64))).reshape(3, POSITIONS, 4, 16)
    assert [bool(np.abs(heads[..., head, :]).max() > 0) for head in range(4)] == [True, False, True, False]


def test_groups_are_tiled_in_flax() -> None:
    bug = bug_of("jax_bugs", "tiled groups, flax")
    module, variables = bug.make().unbind()
    kernels = {name: each["kernel"] for name, each in variables["params"].items()}
    kernels["v"] = kernels["v"].at[:, 1].set(0.0)
    kernels["out"] = np.eye(64, dtype=np.float32).reshape(4, 16, 64)
    bound = module.bind({"params": {name: {"kernel": kernel} for name, kernel in kernels.items()}})
    heads = array(bound(inputs_of("jax_bugs", 64))).reshape(3, POSITIONS, 4, 16)
    assert [bool(np.abs(heads[..., head, :]).max() > 0) for head in range(4)] == [True, False, True, False]


def moved_by(layer: Any, x: Any, row: int, position: int) -> FloatArray:
    """Return the change of outputs, (batch, positions), with one input."""
    changed = x.clone()
    changed[row, position] += 1.0
    first, second = (layer(each) for each in (x, changed))
    first, second = (each[0] if isinstance(each, tuple) else each for each in (first, second))
    moved: FloatArray = np.abs(array(first) - array(second)).max(axis=-1)
    return moved


def test_the_layer_attends_over_the_batch() -> None:
    moved = (
        moved_by(bug_of("torch_forward", "batch_first forgotten").make(), inputs_of("torch_forward", 64), 1, 2) > 1e-6
    )
    assert moved[:, 2].all()
    assert moved.sum() == 3


def test_eager_does_not_mask() -> None:
    bug = bug_of("transformers_bugs", "eager without a mask")
    assert bug.other is not None
    x = inputs_of("transformers_bugs", bug.width)
    eager, sdpa = (moved_by(make().eval(), x, 0, POSITIONS - 1) > 0 for make in (bug.make, bug.other))
    assert eager[0].all()
    assert sdpa[0].tolist() == [False] * (POSITIONS - 1) + [True]


def test_dropout_is_left_on() -> None:
    layer = bug_of("torch_forward", "dropout left on").make().eval()
    x = inputs_of("torch_forward", 64)
    assert np.abs(array(layer(x)) - array(layer(x))).max() > 1e-4


def test_scores_do_not_feel_the_length_of_queries() -> None:
    torch = pytest.importorskip("torch")
    layer = bug_of("torch_forward", "normalised queries and keys").make()
    x = inputs_of("torch_forward", 64)
    before = array(layer(x))
    with torch.no_grad():
        for parameter in layer.wq.parameters():
            parameter.mul_(3.0)
    np.testing.assert_allclose(array(layer(x)), before, atol=1e-5)


TOLD = {
    "packed in_proj": "W_Q, W_K, W_V: std 0.707/√fan-in, Xavier over the packed matrix; separate matrices have 1.00",
    "out_proj of MultiheadAttention": "W_O: std 0.577/√fan-in, nn.Linear's default",
    "_reset_parameters": "W_O is the same in every draw: this initialiser does not draw it",
    "cloned encoder layers": "layers 1 to 6 have the same weights",
    "trunc_normal_ in bfloat16": "W_Q: std 12.6 times the declared",
    "truncation at ±2": "W_Q: law normal",
    "fan of the wrong axis": "W_Q: std 2.00/√fan-in: the fan was taken over the last axis",
    "never filled, zeros": "W_Q, W_K, W_V and W_O are not drawn",
    "never filled, old numbers": "W_Q is the same in every draw",
    "√width in place of √head_dim": "scores times 1/√n, not 1/√head_dim",
    "√width in place of √head_dim, heads along the batch": "scale: 0.125 where 0.25 is declared",
    "multiplied by √head_dim": "scores times √head_dim",
    "two paths, two scales": "two paths of this module scale differently: 0.25 and 0.125",
    "tiled groups": "KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)",
    "batch_first forgotten": "attends over the first axis",
    "softmax over queries": "softmax over the query axis",
    "dropout left on": "two calls on one input differ: dropout",
    "normalised queries and keys": "queries and keys are normalised",
    "depth scaling of c_proj": "W_O: std 0.160/√fan-in where 0.0327 is declared",
    "0.02 whatever the width": "W_Q: std 0.02 whatever the width",
    "eager without a mask": "eager: no mask; sdpa: causal",
    "fans of a convolution": "scores have 1/1,296 of the variance: attention is uniform at initialisation",
    "an initialiser with a seed": "W_Q, W_K and W_V are the same matrix",
    "groups in the fan": "W_K: std 1.156/√fan-in: Glorot over (64, 32)",
    "scaled twice": "scores times 1/head_dim",
    "std 1": "W_Q: std √n times that of 1/√fan-in",
    "tiled groups, flax": "KV heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)",
}
NOTHING = """\
width 64, 4 heads of 16, 8 draws
W_Q, W_K, W_V, W_O: std 1.00/√fan-in [0.99, 1.01], uniform; biases zero
mask: causal; map: softmax over the keys; scale: 1/√head_dim (0.250); dropout: none; groups (0, 0, 1, 1)
scores: variance 1.00, temperature 1.00, entropy 1.61; outputs: excess kurtosis 0.9
two calls on one input agree, error 3e-7
"""


@pytest.mark.parametrize("name", MODULES)
def test_sentences_tell_the_bug_and_nothing_else(name: str) -> None:
    for bug in getattr(fixtures_of(name), "BUGS", ()):
        assert wild_bugs.line_told(f"width 64\n{TOLD[bug.name]}\n", bug.sentence) == TOLD[bug.name]
        assert wild_bugs.line_told(NOTHING, bug.sentence) is None, bug.name


def test_every_module_has_fixtures_of_its_own() -> None:
    fixtures = [*(bug.name for bug in wild_bugs.bugs()), *(layer.name for layer in wild_bugs.right())]
    assert len(set(fixtures)) == len(fixtures)
    here = [name for name in MODULES if wild_bugs.installed(name)]
    assert bool(fixtures) == bool(here)
