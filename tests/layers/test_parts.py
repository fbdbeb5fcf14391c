"""Optional parts of layers: against networks written out here, their limits, refusals, records and faults."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from scipy import stats

import attncheck as ac
from attncheck._lib.arrays import BoolArray, FloatArray, IntArray
from attncheck._lib.errors import InputError
from attncheck._lib.exit_codes import ExitCode
from attncheck.checks.check import Setting
from attncheck.checks.registry import EVERY_CHECK, checks_of
from attncheck.checks.sample import Sample
from attncheck.commands.cli import main
from attncheck.faults import FAULTS
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.attention_map import attention_weights, visible, weight_slopes
from attncheck.layers.case import modules_of, read_case
from attncheck.layers.names import layer_call
from attncheck.layers.parts import PARTS, named_parts
from attncheck.layers.parts.mask import nested
from attncheck.methods import Method
from attncheck.runs.causes import causes_of_samples
from attncheck.simulators.weights import GAUSSIAN_LAWS
from attncheck.subject import collapsed

_DRAWS = 10_000
# Chance that one comparison of two right samples fails; all of this file together fail once in some 10⁵ runs.
_LEVEL = 1e-7


def prefix(i: IntArray, j: IntArray) -> BoolArray:
    """See the first two positions, and everything before oneself."""
    return (j < 2) | (j <= i)


def squared_relu(scores: FloatArray, seen: BoolArray) -> FloatArray:
    """Return max(p, 0)² over the number of visible positions."""
    return np.asarray(np.where(seen, np.maximum(scores, 0.0) ** 2, 0.0) / seen.sum(axis=-1, keepdims=True))


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a fresh generator: statements hold for any."""
    return np.random.default_rng()


def nan_beyond_4(scores: FloatArray, seen: BoolArray) -> FloatArray:
    """Return scores, and NaN for large ones."""
    return np.where(np.abs(scores) > 4.0, np.nan, scores)


def in_place(scores: FloatArray, seen: BoolArray) -> FloatArray:
    """Return the softmax, computed in the array of the scores."""
    scores[~seen] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


# Each part in several shapes.
LAYERS: dict[str, AttentionLayer] = {
    "window": AttentionLayer(width=8, seq_len=5, num_heads=2, window=2),
    "causal window": AttentionLayer(width=6, seq_len=4, num_heads=4, num_kv_heads=2, mask="causal", window=2),
    "window of one": AttentionLayer(width=4, seq_len=3, num_heads=1, head_dim=2, window=1, attention_map="relu"),
    "softcap": AttentionLayer(width=8, seq_len=3, num_heads=2, softcap=0.5, key_std=2.0),
    "capped linear": AttentionLayer(width=4, seq_len=3, num_heads=1, softcap=1.0, attention_map="linear"),
    "capped causal": AttentionLayer(
        width=8, seq_len=4, num_heads=2, head_dim=3, softcap=0.3, key_std=2.0, mask="causal"
    ),
    "sink": AttentionLayer(width=8, seq_len=3, num_heads=2, sink=0.0),
    "sink of one position": AttentionLayer(width=6, seq_len=1, num_heads=2, sink=1.0),
    "sink, cap, window": AttentionLayer(width=8, seq_len=5, num_heads=2, sink=-1.0, softcap=1.5, window=3),
    "slopes": AttentionLayer(width=8, seq_len=4, num_heads=2, bias_slopes=(1.0, 0.25)),
    "alibi": AttentionLayer(width=6, seq_len=8, num_heads=3, bias_slopes="alibi", query_std=0.5, key_std=0.25),
    "slopes of sigmoid": AttentionLayer(width=8, seq_len=3, num_heads=1, bias_slopes=(2.0,), attention_map="sigmoid"),
    "bias table": AttentionLayer(width=8, seq_len=4, num_heads=2, bias_std=1.5),
    "table of linear": AttentionLayer(width=6, seq_len=3, num_heads=1, bias_std=1.0, attention_map="linear"),
    "both biases": AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, bias_std=1.0, bias_slopes=(1, 0, 2, 0)
    ),
    "qk norm": AttentionLayer(width=8, seq_len=3, num_heads=2, qk_norm=True, query_std=2.0),
    "qk norm of small heads": AttentionLayer(
        width=8, seq_len=4, num_heads=4, num_kv_heads=2, head_dim=2, qk_norm=True, mask="causal", attention_map="linear"
    ),
    "own mask": AttentionLayer(width=8, seq_len=4, num_heads=2, mask=prefix),
    "own map": AttentionLayer(width=8, seq_len=4, num_heads=2, attention_map=squared_relu, mask="causal"),
}


# Whose weights have a declared derivative.
SLOPED = ("softcap", "sink", "sink, cap, window", "capped linear", "causal window")


def written_out(layer: AttentionLayer, size: int, rng: np.random.Generator) -> FloatArray:
    """Return outputs of one neuron, (size, s), with all matrices."""
    n, s, nu = layer.width, layer.seq_len, layer.head_dim or layer.width
    outputs = np.zeros((size, s, 1))
    seen = np.array([[_sees(layer, i, j) for j in range(s)] for i in range(s)])
    # Entry j - i + s - 1 of a table belongs to row i and column j.
    offset = np.array([[j - i for j in range(s)] for i in range(s)])
    h = rng.standard_normal((size, 1, n, 1))
    x = (rng.standard_normal((size, s, n, n)) @ h)[..., 0] / np.sqrt(n)
    shared = [rng.standard_normal((2, size, n, nu)) / np.sqrt(n) for _ in range(layer.kv_heads)]
    for head in range(layer.num_heads):
        key, value = shared[head // layer.group_size]
        queries, keys = x @ rng.standard_normal((size, n, nu)) / np.sqrt(n), x @ key
        if layer.qk_norm:
            queries /= np.sqrt((queries**2).mean(axis=-1, keepdims=True))
            keys /= np.sqrt((keys**2).mean(axis=-1, keepdims=True))
        scores = layer.query_std * layer.key_std * queries @ keys.swapaxes(1, 2) / np.sqrt(nu)
        if layer.bias_std:
            scores += layer.bias_std * rng.standard_normal((size, 2 * s - 1))[:, offset + s - 1]
        scores -= _slope(layer, head) * abs(offset)
        projected = x @ value @ rng.standard_normal((size, nu, 1)) / np.sqrt(nu)
        outputs += _weights(layer, scores, seen) @ projected / np.sqrt(layer.num_heads)
    return outputs[..., 0]


def _slope(layer: AttentionLayer, head: int) -> float:
    if layer.bias_slopes == "alibi":
        # 2^{-8h/2} for two heads, and the first of four heads.
        return (2.0**-4, 2.0**-8, 2.0**-2)[head]
    return 0.0 if layer.bias_slopes is None else float(layer.bias_slopes[head])


def _sees(layer: AttentionLayer, i: int, j: int) -> bool:
    if layer.window is not None and abs(i - j) >= layer.window:
        return False
    if layer.mask == "causal":
        return j <= i
    return layer.mask == "none" or j < 2 or j <= i


def _weights(layer: AttentionLayer, scores: FloatArray, seen: BoolArray) -> FloatArray:
    s = layer.seq_len
    if layer.softcap is not None:
        scores = layer.softcap * np.tanh(scores / layer.softcap)
    if layer.attention_map == "softmax":
        weights = np.where(seen, np.exp(scores), 0.0)
        sink = 0.0 if layer.sink is None else np.exp(layer.sink)
        return np.asarray(weights / (weights.sum(axis=-1, keepdims=True) + sink))
    if layer.attention_map == "linear":
        return np.where(seen, scores, 0.0)
    if layer.attention_map == "sigmoid":
        return np.where(seen, 1.0 / (1.0 + s * np.exp(-scores)), 0.0)
    if layer.attention_map == "relu":
        return np.where(seen, np.maximum(scores, 0.0), 0.0) / s
    return np.asarray(np.where(seen, np.maximum(scores, 0.0) ** 2, 0.0) / seen.sum(axis=1, keepdims=True))


def numbers(outputs: FloatArray) -> dict[str, FloatArray]:
    """Return statistics of one neuron's outputs, (draws,) each."""
    return {
        "last": outputs[:, -1],
        "size": np.log(np.maximum((outputs**2).sum(axis=1), 1e-300)),
        "product": outputs[:, 0] * outputs[:, -1],
    }


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
def test_methods_agree_with_networks_written_out_and_not_without_the_part(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name]
    plain = layer.replace(window=None, softcap=None, sink=None, bias_slopes=None, bias_std=0.0, qk_norm=False)
    plain = plain.replace(**{"own mask": {"mask": "none"}, "own map": {"attention_map": "relu"}}.get(name, {}))
    expected = numbers(written_out(layer, _DRAWS, np.random.default_rng()))

    def p_values(drawn: AttentionLayer, method: Method) -> list[float]:
        outputs = ac.simulate(drawn, _DRAWS, seed=int(rng.integers(2**31)), method=method).outputs[:, :, 0]
        return [float(stats.ks_2samp(values, expected[what]).pvalue) for what, values in numbers(outputs).items()]

    for method in get_args(Method)[:3]:
        assert min(p_values(layer, method)) > _LEVEL, method
    assert min(p_values(plain, "collapsed")) < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
def test_limit_laws_are_those_of_draws_from_the_limit(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name].replace(head_dim=None)
    law = ac.LimitLaw(layer)
    drawn = ac.simulate(layer, _DRAWS, seed=int(rng.integers(2**31)), method="limit").outputs[:, :, 0]
    for position in (0, layer.seq_len - 1):
        values = drawn[:, position]
        moving = values[values != 0.0]
        assert abs((values == 0.0).mean() - law.atom(position)) < 6 * _DRAWS**-0.5
        uniform = (law.cdf(moving, position) - law.atom(position) * (moving > 0)) / (1.0 - law.atom(position))
        assert stats.kstest(uniform, "uniform").pvalue > _LEVEL, position
    covariance, error = law.covariance(), law.covariance_error()
    products = drawn[:, :, None] * drawn[:, None, :]
    allowed = error + 6.0 * products.std(axis=0) / _DRAWS**0.5
    # Products of outputs of unbounded maps are heavy-tailed: their means are compared for bounded maps.
    if layer.map.traits.bounded:
        assert (np.abs(products.mean(axis=0) - covariance) <= allowed).all()


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["causal window", "softcap", "sink", "sink of one position", "own mask", "own map"])
def test_laws_at_finite_width_are_those_of_draws(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name]
    law, position = ac.finite_width_law(layer), layer.seq_len - 1
    values = ac.simulate(layer, _DRAWS, seed=int(rng.integers(2**31))).outputs[:, position, 0]
    points = values.std() * np.array([-2.0, -0.5, 0.3, 1.0])
    shares = (values[:, None] <= points).mean(axis=0)
    # Six standard errors of a share, once in 10⁸.
    assert (np.abs(shares - law.cdf(points, position)) <= law.cdf_error(points, position) + 3.0 * _DRAWS**-0.5).all()


@pytest.mark.parametrize("name", [*SLOPED, "softmax", "linear", "relu", "sigmoid"])
def test_slopes_are_derivatives_of_weights(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name] if name in SLOPED else AttentionLayer(width=4, mask="causal", attention_map=name)
    s = layer.seq_len
    scores, values = rng.standard_normal((s, s)), rng.standard_normal(s)
    slopes, step = weight_slopes(layer, scores, values), 1e-6
    for i in range(s):
        for j in range(s):
            moved = np.zeros((s, s))
            moved[i, j] = step
            change = attention_weights(layer, scores + moved) - attention_weights(layer, scores - moved)
            assert slopes[i, j] == pytest.approx((change @ values)[i] / (2 * step), abs=1e-7)


def test_nested_masks() -> None:
    assert not nested(visible(LAYERS["window"]))
    assert nested(visible(AttentionLayer(width=4, mask="causal")))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["causal window", "window", "own mask", "sink, cap, window"])
def test_scores_behind_a_window_need_not_be_exposed(name: str) -> None:
    layer = LAYERS[name]

    def subject(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        drawn = collapsed(layer, size, rng)
        return {**drawn, "scores": np.where(visible(layer), drawn["scores"], -np.inf)}

    report = ac.check(subject, layer, properties=["scores", "conditional", "exactness"], profile="smoke", seed=5)
    assert not report.violated, report
    examined = {result.check for result in report.results if result.size}
    assert {"scores.scale", "scores.law", "conditional.joint"} <= examined


@pytest.mark.sampled
@pytest.mark.parametrize("name", LAYERS)
def test_right_layers_pass_all_checks(name: str) -> None:
    assert not ac.check("attncheck.subject:collapsed", LAYERS[name], profile="smoke", seed=3).violated


def test_layers_whose_standard_deviation_comes_from_rare_draws_pass() -> None:
    # Typical outputs are far below the standard deviation: the distance from the limit is found between them.
    layer = AttentionLayer(width=1, seq_len=2, num_heads=1, sink=20.0)
    report = ac.check("attncheck.subject:collapsed", layer, properties="outputs", profile="smoke", seed=20)
    assert report.verdict == "consistent"


def causes(declared: AttentionLayer, drawn: Any) -> list[str]:
    """Return the causes of draws, of as many as `attncheck.check` takes for the causes of a violation."""
    return causes_of_samples([Sample.from_mapping(declared, drawn, 4_000)], [], 2, GAUSSIAN_LAWS)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("part", "misread"), [(part, each) for part in named_parts() for each in part.misreadings], ids=lambda v: v.name
)
def test_misreadings_are_named(part: Any, misread: Any) -> None:
    """That they are rejected, test_faults examines of every fault."""
    layer = AttentionLayer(width=8, seq_len=4, num_heads=2, **part.example)
    fault = FAULTS[misread.name]
    assert not fault.reason_hidden(layer)
    assert fault.reason_hidden(AttentionLayer(width=8))
    found = causes(layer, fault.subject(layer, 4_000, np.random.default_rng(2)))
    assert any(misread.what in cause for cause in found)


@pytest.mark.sampled
@pytest.mark.parametrize("part", [part for part in named_parts() if part.undeclared], ids=lambda part: part.name)
def test_undeclared_parts_are_named(part: Any) -> None:
    words, fields = next(iter(part.undeclared.items()))
    declared = AttentionLayer(width=8, seq_len=4, num_heads=2, query_std=2.0)
    assert words in causes(declared, collapsed(declared.replace(**fields), 4_000, np.random.default_rng(2)))


def test_every_field_of_a_part_is_a_field_of_layers_with_that_default() -> None:
    plain = AttentionLayer(width=8)
    slopes: Any = np.array([1.0, 0.5])
    assert plain.replace(bias_slopes=slopes).bias_slopes == (1.0, 0.5)
    for part in PARTS:
        assert all(getattr(plain, field) == absent for field, absent in part.fields.items())
        assert not part.present(plain)


def test_functions_are_recorded_by_import_path() -> None:
    layer = LAYERS["own mask"]
    path = f"{__name__}:prefix"
    assert layer.mask == path
    assert layer == AttentionLayer(width=8, seq_len=4, num_heads=2, mask=path)
    fields = json.loads(json.dumps(layer.to_dict()))
    assert modules_of(fields) == (__name__,)
    assert read_case(fields, trust=[__name__]) == layer
    with pytest.raises(InputError, match=r"untrusted module.*--trust"):
        read_case(fields)
    assert AttentionLayer.from_toml(layer.to_toml(), trust=[__name__]) == layer
    assert AttentionLayer.from_dict(fields, trust=None).describe() == f"n=8 s=4 H=2 {path}"
    assert path in layer_call(layer)


def test_local_functions_work_here_and_are_refused_from_records() -> None:
    layer = AttentionLayer(width=8, seq_len=3, mask=lambda i, j: abs(i - j) < 2)
    assert np.array_equal(visible(layer), visible(AttentionLayer(width=8, seq_len=3, window=2)))
    assert ac.simulate(layer, 2).outputs.shape == (2, 3, 1)
    assert layer.key != AttentionLayer(width=8, seq_len=3).key
    with pytest.raises(InputError, match="local function"):
        AttentionLayer.from_dict(layer.to_dict())


def test_a_map_may_write_into_its_arguments() -> None:
    layer = AttentionLayer(width=8, seq_len=3, mask="causal")
    own = layer.replace(attention_map=in_place)
    for method in get_args(Method):
        drawn, expected = (ac.simulate(each, 5, seed=1, method=method) for each in (own, layer))
        assert np.allclose(drawn.scores, expected.scores)
        assert np.allclose(drawn.outputs, expected.outputs)


def test_a_map_that_fails_on_large_scores_is_refused_when_it_does() -> None:
    layer = AttentionLayer(width=8, attention_map=lambda p, seen: np.where(np.abs(p) > 1e3, np.nan, p), query_std=1e3)
    with pytest.raises(InputError, match="gave weights that are not finite"):
        ac.simulate(layer, 1000)


def test_files_of_layers_with_a_mask_of_ones_own_need_trust(tmp_path: Path) -> None:
    layer = LAYERS["own mask"]
    (tmp_path / "layer.toml").write_text(layer.to_toml())
    np.save(tmp_path / "y.npy", ac.simulate(layer, 2000).outputs)
    call = ["check", "--layer", str(tmp_path / "layer.toml"), "--samples", str(tmp_path / "y.npy")]
    assert main(call) == ExitCode.UNUSABLE
    assert main([*call, "--trust", __name__]) in (ExitCode.CONSISTENT, ExitCode.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"window": 0}, r"window=0: must be at least 1"),
        ({"window": 1.5}, r"window=1\.5"),
        ({"softcap": -1.0}, r"softcap=-1\.0"),
        ({"sink": 1e9}, r"sink=1000000000\.0"),
        ({"sink": 0.0, "attention_map": "relu"}, r"sink=0\.0: belongs to softmax"),
        ({"mask": lambda i, j: (np.random.default_rng().random(i.shape) < 0.5) | (i == j)}, "varies between calls"),
        ({"mask": ".module:f"}, "cannot be imported"),
        ({"attention_map": f"{__name__}:nan_beyond_4"}, "not finite"),
        ({"attention_map": lambda p, seen: p * 1j}, "returned complex128"),
        ({"bias_slopes": np.ones((2, 2))}, "is not known"),
        ({"bias_slopes": "steep"}, r"bias_slopes='steep': is not known"),
        ({"bias_slopes": (1.0,)}, "are 1 slopes for num_heads=2"),
        ({"bias_slopes": (1.0, np.nan)}, "bias_slopes=nan"),
        ({"bias_std": -1.0}, r"bias_std=-1\.0"),
        ({"bias_std": 1.0, "softcap": 1.0}, "not supported with a position bias"),
        ({"qk_norm": True, "head_dim": 1}, "two score values if heads have one neuron"),
        ({"qk_norm": 2}, "qk_norm=2: must be a boolean"),
        ({"qk_norm": True, "tied_query_key": True, "score_scaling": "1/n"}, "not supported with tied_query_key"),
        ({"mask": "window"}, r"mask='window': is not known; use one of 'none', 'causal', or pass"),
        ({"mask": lambda i, j: i > j}, "hides position 0 from itself"),
        ({"mask": lambda i, j: 1.0 * (i >= j)}, "returned float64"),
        ({"mask": lambda i, j: np.True_}, "returned bool of shape"),
        ({"mask": lambda i, j: 1 / 0}, "raised ZeroDivisionError"),
        ({"attention_map": lambda p, seen: p.sum()}, "returned shape"),
        ({"attention_map": lambda p, seen: p / 0.0 * np.inf}, "not finite"),
        ({"attention_map": lambda p, seen: p - p.mean()}, "depend on other rows"),
        ({"attention_map": lambda p, seen: p - p.mean(axis=-1, keepdims=True)}, "not visible"),
        ({"attention_map": "no.such.module:f"}, "cannot be imported"),
        ({"norm": "batch"}, "norm="),
        ({"norm": True}, "norm="),
        ({"norm": "layer", "width": 1}, "norm="),
        ({"rotary_base": 1.0, "head_dim": 4}, "rotary_base="),
        ({"rotary_base": np.nan, "head_dim": 4}, "rotary_base="),
        ({"rotary_base": 10.0, "head_dim": 3}, "rotary_base="),
        ({"rotary_base": 10.0}, "rotary_base="),
        ({"rotary_base": 10.0, "head_dim": 4, "tied_query_key": True, "score_scaling": "1/n"}, "rotary_base="),
        ({"position_std": -1.0}, "position_std="),
        ({"position_std": 1e-9}, "position_std="),
        ({"position_std": np.nan}, "position_std="),
        ({"position_reach": 2.0}, "position_reach="),
        ({"position_std": 1.0, "position_reach": 0.0}, "position_reach="),
        ({"position_std": 1.0, "position_reach": 3.0, "input_correlation": 1.0}, "position_reach="),
        ({"tied_query_key": 1}, "tied_query_key="),
        ({"tied_query_key": True}, "tied_query_key="),
        ({"tied_query_key": True, "score_scaling": "1/n", "key_std": 2.0}, "key_std="),
        ({"tied_query_key": True, "score_scaling": "1/n", "num_kv_heads": 1}, "num_kv_heads="),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_impossible_parts_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ac.simulate(AttentionLayer(**{"width": 8, **fields}), 1)


def test_no_tangent_kernel_is_invented() -> None:
    with pytest.raises(InputError, match="has no declared derivative"):
        ac.tangent_kernel(LAYERS["own map"], 2)
    for name in ("slopes", "bias table", "qk norm"):
        with pytest.raises(InputError, match="not supported by the tangent kernel"):
            ac.tangent_kernel(LAYERS[name], 2)
        with pytest.raises(InputError, match=r"finite width|not normal given the keys"):
            ac.finite_width_law(LAYERS[name])
    for name in ("window", "softcap", "sink"):
        with pytest.raises(InputError, match="for which the mean is not known"):
            ac.infinite_heads_tangent(LAYERS[name])


@pytest.mark.parametrize("name", [*LAYERS, "softmax", "relu", "linear", "sigmoid"])
def test_traits_are_true(name: str, rng: np.random.Generator) -> None:
    layer = LAYERS[name] if name in LAYERS else AttentionLayer(width=8, attention_map=name)
    traits, seen = layer.map.traits, visible(layer)
    scores = rng.standard_normal((100, layer.seq_len, layer.seq_len))
    weights = functools.partial(attention_weights, layer)
    assert not traits.sums_to_one or np.allclose(weights(scores).sum(axis=-1), 1.0)
    assert not traits.shift_invariant or np.allclose(weights(scores + 3.0), weights(scores))
    assert not traits.homogeneous or np.allclose(weights(3.0 * scores), 3.0 * weights(scores))
    assert not traits.positive or (weights(scores) >= 0.0).all()
    assert not traits.bounded or np.abs(weights(1e6 * scores)).max() <= max(1.0, layer.softcap or 0.0)
    assert traits.may_vanish or (np.abs(weights(scores))[:, seen.any(axis=-1)].sum(axis=-1) > 0.0).all()


def test_checks_say_why_they_leave_out_hidden_scores() -> None:
    exposed = frozenset({"outputs", "scores", "input_gram", "key_gram", "value_gram"})
    setting = Setting(LAYERS["window"], exposed)
    reasons = {check.name: check.reason_not_examined(setting) for check in checks_of("scores")}
    assert "hidden scores: " in reasons["scores.head_pairs"]
    assert not reasons["scores.scale"]
    assert any(check.name == "exactness.score_off" and check.reason_not_examined(setting) for check in EVERY_CHECK)
