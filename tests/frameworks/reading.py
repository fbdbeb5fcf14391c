"""Read a layer's matrices through its binding."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from attncheck.frameworks.binding import untouched
from attncheck.frameworks.subject import ModuleSubject
from attncheck.frameworks.views import CallView

Array = npt.NDArray[np.float64]
Read = dict[str, Array]


def run(binding: Any, state: Any, x: Array, answer: Any = None) -> tuple[Array, Array, Array, Array]:
    """Return y, and q, k, v of the one attention call, replaced by `answer(q, v)`."""
    seen: list[tuple[Array, ...]] = []

    def core(*qkv: Array) -> Array | None:
        seen.append(qkv)
        return None if answer is None else answer(qkv[0], qkv[2])

    y = binding.run(state, x, core)
    ((q, k, v),) = seen
    return y, q, k, v


def read(binding: Any, state: Any, width: int) -> Read:
    """Return W_Q, W_K, W_V (n, H, d), W_O (H, d, n) and their biases.

    Inputs are zeros and vectors of length 1024, so biases cost no digits; attention then returns unit vectors.
    """
    found: Read = {}
    x = 1024 * np.eye(width + 1, width, -1)[:, None]
    for name, values in zip("QKV", run(binding, state, x)[1:], strict=True):
        found["b" + name], found[name] = values[0, :, 0], (values[1:] - values[:1])[:, :, 0] / 1024
    heads, size = len(found["bQ"]), found["V"].shape[-1]
    units = np.eye(heads * size + 1, heads * size, -1).reshape(-1, heads, 1, size)
    y = run(binding, state, np.zeros((len(units), 1, width)), lambda q, v: units)[0][:, 0]
    found["bO"], found["O"] = y[0], (y[1:] - y[:1]).reshape(heads, size, -1)
    return found


def assert_reads(found: Read, **own: Any) -> None:
    """Assert that the matrices read are the module's, to float32 rounding."""
    assert set(own) == set(found)
    for name, values in own.items():
        np.testing.assert_allclose(found[name], np.asarray(values), atol=1e-6, err_msg=name)
        assert name.startswith("b") or np.ptp(found[name]) > 0.1


def formula(found: Read, x: Array, causal: bool = False) -> Array:
    q, k, v = (np.einsum("bln,nhd->bhld", x, found[m]) + found["b" + m][:, None] for m in "QKV")
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    y: Array = np.einsum("bhld,hdn->bln", weights @ v, found["O"]) + found["bO"]
    return y


def assert_forward(binding: Any, state: Any, found: Read, causal: bool = False) -> None:
    """Assert that the module computes the formula, and uses the core's attention outputs."""
    x = np.random.default_rng(0).standard_normal((3, 5, found["Q"].shape[0]))
    y = run(binding, state, x)[0]
    np.testing.assert_allclose(y, formula(found, x, causal), atol=1e-5)

    def values(q: Array, v: Array) -> Array:
        return np.repeat(v, q.shape[1] // v.shape[1], axis=1)

    other, _, _, v = run(binding, state, x, values)
    v = np.repeat(v, len(found["O"]) // v.shape[1], axis=1)
    np.testing.assert_allclose(other, np.einsum("bhld,hdn->bln", v, found["O"]) + found["bO"], atol=1e-5)
    assert np.abs(other - y).max() > 0.1
    np.testing.assert_array_equal(y, run(binding, state, x)[0])
    np.testing.assert_allclose(y, binding.run(state, x, untouched), atol=1e-6)


def assert_softmax(binding: Any, state: Any, found: Read) -> None:
    """Assert that softmax is observed with its scores, and that the core can replace its result."""
    x = np.random.default_rng(0).standard_normal((3, 5, found["Q"].shape[0]))
    q, k, v = (np.einsum("bln,nhd->bhld", x, found[m]) + found["b" + m][:, None] for m in "QKV")
    seen: list[Array] = []
    axes: list[int] = []

    def core(scores: Array, axis: int) -> None:
        seen.append(scores)
        axes.append(axis)

    y = binding.softmax(state, x, core)
    assert axes in ([-1], [3])
    np.testing.assert_allclose(seen, [q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])], atol=1e-5)
    np.testing.assert_allclose(y, formula(found, x), atol=1e-5)
    other = binding.softmax(state, x, lambda scores, axis: np.broadcast_to(np.eye(5), scores.shape))
    np.testing.assert_allclose(other, np.einsum("bhld,hdn->bln", v, found["O"]) + found["bO"], atol=1e-5)


def assert_at_once(subject: ModuleSubject, at_once: bool = True) -> None:
    assert isinstance(subject.view, CallView)
    assert subject.view.at_once == at_once
    alone = dataclasses.replace(subject, view=dataclasses.replace(subject.view, at_once=False))
    x = np.random.default_rng(0).standard_normal((5, 3, subject.view.width))
    one, other = (each(each.layer, x, np.random.default_rng(1)) for each in (alone, subject))
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, atol=1e-5 * np.abs(array).max(), err_msg=name)
