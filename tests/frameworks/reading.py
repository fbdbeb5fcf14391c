"""Read a layer's matrices through its adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from attncheck.frameworks.effective import ModuleReader
from attncheck.frameworks.factors import ParameterBlocks
from attncheck.frameworks.trace import AttentionCore, CoreTrace, Trace

Array = npt.NDArray[np.float64]
Read = dict[str, Array]


def run(adapter: Any, state: Any, x: Array, answer: Any = None) -> tuple[Array, Array, Array, Array]:
    """Return y, and q, k, v (B, H, L, d) of the attention, replaced by `answer(q, v)`."""
    reader = ModuleReader(adapter, state, x.shape[-1], adapter.paths[0])
    seen = reader.see(state, x)
    if answer is not None:
        seen = reader.see(state, x, answer(seen.query, seen.value))
    return seen.y, seen.query, seen.key, seen.value


def read(adapter: Any, state: Any, width: int) -> Read:
    """Return W_Q, W_K, W_V (n, H, d), W_O (H, d, n) and their biases, without factors of queries and keys."""
    found = ModuleReader(adapter, state, width, adapter.paths[0]).read(state)
    parts: Read = {name: found[role] for name, role in zip("QKV", ("query", "key", "value"), strict=True)}
    biases = {f"b{role[0].upper()}": bias for role, bias in found.biases.items()}
    for name in "QK":
        gain = ParameterBlocks(adapter.parameters(state), adapter.precision).gain(parts[name][:, 0])
        assert gain is not None
        parts[name], biases[f"b{name}"] = parts[name] / gain, biases[f"b{name}"] / gain
    return parts | biases | {"O": found.output.reshape(*parts["Q"].shape[1:2], -1, found.output.shape[-1])}


def assert_reads(found: Read, **own: Any) -> None:
    """Assert that the matrices read are the module's, to float32 rounding."""
    assert set(own) == set(found)
    for name, values in own.items():
        np.testing.assert_allclose(found[name], np.asarray(values), atol=1e-6, err_msg=name)
        assert name.startswith("b") or np.ptp(found[name]) > 0.1


def formula(found: Read, x: Array, causal: bool = False) -> tuple[Array, Array]:
    """Return the attention weights and the outputs."""
    q, k, v = (np.einsum("bln,nhd->bhld", x, found[m]) + found["b" + m][:, None] for m in "QKV")
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = softmax(scores, axis=-1)
    return weights, np.einsum("bhld,hdn->bln", weights @ v, found["O"]) + found["bO"]


def assert_forward(adapter: Any, state: Any, found: Read, causal: bool = False) -> None:
    """Assert that the module computes the formula, and uses the core's attention outputs."""
    x = np.random.default_rng(0).standard_normal((3, 5, found["Q"].shape[0]))
    y = run(adapter, state, x)[0]
    weights, expected = formula(found, x, causal)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    (core,) = cores_of(adapter, state, x)[1]
    np.testing.assert_allclose(np.sort(core.weights, axis=None), np.sort(weights, axis=None), atol=1e-5)

    def values(q: Array, v: Array) -> Array:
        return np.repeat(v, q.shape[1] // v.shape[1], axis=1)

    other, _, _, v = run(adapter, state, x, values)
    v = np.repeat(v, len(found["O"]) // v.shape[1], axis=1)
    np.testing.assert_allclose(other, np.einsum("bhld,hdn->bln", v, found["O"]) + found["bO"], atol=1e-5)
    assert np.abs(other - y).max() > 0.1
    np.testing.assert_array_equal(y, run(adapter, state, x)[0])
    np.testing.assert_allclose(y, adapter.run(state, x, Trace(), adapter.paths[0]), atol=1e-6)


def cores_of(adapter: Any, state: Any, x: Any, answer: Any = lambda core: None) -> tuple[Any, list[AttentionCore]]:
    """Return the outputs, and the cores that a trace sees and answers."""
    trace = CoreTrace(answer)
    return adapter.run(state, x, trace), trace.cores


def assert_replaced(adapter: Any, state: Any, x: Any, atol: float = 1e-5) -> None:
    """Assert that a core computed by NumPy leaves the outputs, and another one changes them as it should."""
    y = adapter.run(state, x, Trace())
    np.testing.assert_allclose(cores_of(adapter, state, x, lambda core: core.heads)[0], y, atol=atol)
    doubled = cores_of(adapter, state, x, lambda core: 2 * core.heads)[0]
    none = cores_of(adapter, state, x, lambda core: 0 * core.heads)[0]
    np.testing.assert_allclose(doubled - none, 2 * (y - none), atol=atol)
    assert np.abs(doubled - y).max() > 0.01


def assert_seeds(adapter: Any) -> Read:
    """Assert that parameters depend on the seed alone; return those of seed 1."""
    first, again, other = (adapter.parameters(adapter.make(seed)) for seed in (1, 1, 2))
    assert any(np.ptp(array) > 0 for array in first.values())
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert np.ptp(array) == 0 or np.abs(array - other[name]).min() > 0
    return dict(first)
