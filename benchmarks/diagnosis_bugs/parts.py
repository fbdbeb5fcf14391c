"""Right attention in stages: a bug replaces one stage, or the weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from attncheck import AttentionLayer

FloatArray = NDArray[np.float64]
Subject = Callable[[AttentionLayer, FloatArray, np.random.Generator], Mapping[str, FloatArray]]
Supports = Callable[[AttentionLayer], bool | str]
Words = tuple[tuple[str, ...], ...]

#: Patterns for a wrong size, and for two equal things.
SCALE = r"scale|scaling|std|standard deviation|variance|factor|times|fan|divided|multipl|larger|smaller"
SAME = r"\bsame\b|equal|tied|shared?\b|identical|copy|one matrix|not independent|\bdependent|\bcorrelated"

# Draws per batch: their weights stay in the cache.
_BLOCK = 2048
# Returned neurons of the outputs.
_SHOWN = 2


@dataclasses.dataclass(frozen=True)
class Reported:
    """A public attention bug.

    Attributes
    ----------
    name : str
    source : str
        Public report.
    what : str
        The bug, in one line.
    words : tuple of tuple of str
        What names the cause: alternatives, each of regular expressions that all match one sentence, in any case.
    subject : callable (layer, inputs, rng) -> mapping
        The simulator. Its `supports` selects layers on which it differs from the right one.
    """

    name: str
    source: str
    what: str
    words: Words
    subject: Subject


class Weights(NamedTuple):
    """Weights of some draws.

    Attributes
    ----------
    query : ndarray, shape (N, H, n, ν)
    key, value : ndarray, shape (N, G, n, ν)
    output : ndarray, shape (N, H, ν, k)
        The columns of the returned neurons.
    """

    query: FloatArray
    key: FloatArray
    value: FloatArray
    output: FloatArray


def reported(
    source: str, what: str, words: Words, supports: Supports = lambda layer: True
) -> Callable[[Subject], Reported]:
    """Make a bug of a simulator, which runs on a block of draws at a time."""

    def decorate(call: Subject) -> Reported:
        @functools.wraps(call)
        def subject(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, FloatArray]:
            starts = range(0, len(inputs), _BLOCK)
            parts = [call(layer, inputs[start : start + _BLOCK], rng) for start in starts]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

        subject.supports = supports  # type: ignore[attr-defined]  # functions take attributes, their type says no
        return Reported(call.__name__, source, what, words, subject)

    return decorate


def draw(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Weights:
    """Draw the declared weights of every draw."""
    N, n, nu, H, G = len(inputs), layer.width, layer.head_width, layer.num_heads, layer.kv_heads

    def normal(heads: int, rows: int, columns: int, std: float) -> FloatArray:
        entries = rng.standard_normal((N, heads, rows, columns))
        entries *= std / np.sqrt(rows)
        return entries

    query, key, value = (
        normal(heads, n, nu, std) for heads, std in ((H, layer.query_std), (G, layer.key_std), (G, layer.value_std))
    )
    output = normal(H, nu, min(n, _SHOWN), layer.output_std)
    return Weights(query, query if layer.tied_query_key else key, value, output)


def project(layer: AttentionLayer, inputs: FloatArray, weights: Weights) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return queries, keys and values, (N, H, s, ν), with those of groups repeated."""
    x = inputs[:, None]
    keys, values = (np.repeat(x @ W, layer.group_size, axis=1) for W in (weights.key, weights.value))
    return x @ weights.query, keys, values


def score(layer: AttentionLayer, queries: FloatArray, keys: FloatArray) -> FloatArray:
    """Return P, (N, H, s, s)."""
    scores: FloatArray = queries @ keys.swapaxes(-1, -2) * (layer.head_width**-0.5 * layer.score_factor)
    return scores


def seen(layer: AttentionLayer) -> NDArray[np.bool_]:
    """Return whether position i attends to position j, (s, s)."""
    everything = np.ones((layer.seq_len, layer.seq_len), dtype=bool)
    return np.tril(everything) if layer.mask == "causal" else everything


def attend(
    layer: AttentionLayer, scores: FloatArray, visible: NDArray[np.bool_] | None = None, axes: tuple[int, ...] = (-1,)
) -> FloatArray:
    """Return A, (N, H, s, s): the attention map on P, softmax over `axes`; 0 where nothing is visible."""
    visible = seen(layer) if visible is None else visible
    s = layer.seq_len
    if layer.attention_map == "softmax":
        masked = np.where(visible, scores, -np.inf)
        largest = masked.max(axis=axes, keepdims=True)
        weights = np.exp(masked - np.where(np.isfinite(largest), largest, 0.0))
        total = weights.sum(axis=axes, keepdims=True)
        return np.asarray(weights / np.where(total > 0.0, total, 1.0))
    mapped = {
        "linear": lambda p: p,
        "relu": lambda p: np.maximum(p, 0.0) / s,
        "sigmoid": lambda p: expit(p - np.log(s)),
    }
    return np.asarray(mapped[str(layer.attention_map)](scores) * visible)


def merge(layer: AttentionLayer, heads: FloatArray, output: FloatArray) -> FloatArray:
    """Return y, (N, s, k), of heads (N, H, s, ν)."""
    return np.asarray((heads @ output).sum(axis=1) * layer.head_factor)


def told(outputs: FloatArray, scores: FloatArray, keys: FloatArray, values: FloatArray) -> dict[str, FloatArray]:
    """Return the sample of an honest user."""
    key_gram, value_gram = (x @ x.swapaxes(-1, -2) / x.shape[-1] for x in (keys, values))
    return {"outputs": outputs, "scores": scores, "key_gram": key_gram, "value_gram": value_gram}


def attention(
    layer: AttentionLayer,
    inputs: FloatArray,
    weights: Weights,
    *,
    project: Callable[..., tuple[FloatArray, FloatArray, FloatArray]] = project,
    score: Callable[..., FloatArray] = score,
    attend: Callable[..., FloatArray] = attend,
    merge: Callable[..., FloatArray] = merge,
) -> dict[str, FloatArray]:
    """Return attention of X, (N, s, n), with given weights; bugs replace a stage."""
    queries, keys, values = project(layer, inputs, weights)
    scores = score(layer, queries, keys)
    heads = attend(layer, scores) @ values
    return told(merge(layer, heads, weights.output), scores, keys, values)
