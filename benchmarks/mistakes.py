"""Mistakes of public attention code, each a small change of one literal simulator.

A mistake is a subclass of `Attention` that replaces one step; its docstring says what is wrong. mistakes.toml has the
public reports, and the words that the first line of a red run should have.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attncheck import AttentionLayer
from attncheck.layers.parts.rotary import rotated
from attncheck.layers.regimes import REGIMES

Array = NDArray[np.float64]
Projected = tuple[Array, Array, Array]
Simulator = Callable[[AttentionLayer, Array, np.random.Generator], Mapping[str, Array]]

# Draws per batch: their weights stay in the cache. Returned neurons of the outputs.
_BLOCK, _SHOWN = 2048, 2


class Weights(NamedTuple):
    """Weights of some draws.

    Attributes
    ----------
    query : ndarray, shape (N, H, n, ν)
    key, value : ndarray, shape (N, G, n, ν)
    output : ndarray, shape (N, H, ν, k)
        The columns of the returned neurons.
    """

    query: Array
    key: Array
    value: Array
    output: Array

    def times(self, factor: float) -> Weights:
        """Return these weights with W_Q, W_K and W_V multiplied by a factor."""
        return Weights(factor * self.query, factor * self.key, factor * self.value, self.output)


class Attention:
    """Softmax attention, step by step."""

    def __init__(self, layer: AttentionLayer, rng: np.random.Generator) -> None:
        self.layer, self.rng = layer, rng
        self.scale = float(layer.head_width**-0.5 * layer.score_factor)
        everything = np.ones((layer.seq_len, layer.seq_len), dtype=bool)
        self.visible = np.tril(everything) if layer.mask == "causal" else everything

    def sample(self, inputs: Array) -> dict[str, Array]:
        """Return outputs and scores of inputs (N, s, n)."""
        weights = self.draw(len(inputs))
        queries, keys, values = self.project(inputs, weights)
        scores = self.score(queries, keys)
        return {"outputs": self.merge(self.attend(scores) @ values, weights.output), "scores": scores}

    def draw(self, size: int) -> Weights:
        """Draw the declared weights of some draws."""
        layer, n, nu = self.layer, self.layer.width, self.layer.head_width

        def normal(heads: int, rows: int, columns: int, std: float) -> Array:
            return np.asarray(self.rng.standard_normal((size, heads, rows, columns)) * (std / np.sqrt(rows)))

        stds = ((layer.num_heads, layer.query_std), (layer.kv_heads, layer.key_std), (layer.kv_heads, layer.value_std))
        query, key, value = (normal(heads, n, nu, std) for heads, std in stds)
        return Weights(query, key, value, normal(layer.num_heads, nu, min(n, _SHOWN), layer.output_std))

    def project(self, inputs: Array, weights: Weights) -> Projected:
        """Return queries, keys and values, (N, H, s, ν), with those of groups repeated."""
        x = inputs[:, None]
        keys, values = (np.repeat(x @ W, self.layer.group_size, axis=1) for W in (weights.key, weights.value))
        return x @ weights.query, keys, values

    def score(self, queries: Array, keys: Array) -> Array:
        """Return P, (N, H, s, s)."""
        return np.asarray(queries @ keys.swapaxes(-1, -2) * self.scale)

    def attend(self, scores: Array) -> Array:
        """Return A, (N, H, s, s)."""
        return softmax(scores, self.visible)

    def merge(self, heads: Array, output: Array) -> Array:
        """Return y, (N, s, k), of heads (N, H, s, ν)."""
        return np.asarray((heads @ output).sum(axis=1) * self.layer.head_factor)


def softmax(scores: Array, visible: NDArray[np.bool_], axes: tuple[int, ...] = (-1,)) -> Array:
    """Return the softmax of visible scores over some axes, 0 where nothing is visible."""
    masked = np.where(visible, scores, -np.inf)
    largest = masked.max(axis=axes, keepdims=True)
    weights = np.exp(masked - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(axis=axes, keepdims=True)
    return np.asarray(weights / np.where(total > 0.0, total, 1.0))


def simulator(attention: type[Attention]) -> Simulator:
    """Return a simulator that runs on a block of draws at a time."""

    def subject(layer: AttentionLayer, inputs: Array, rng: np.random.Generator) -> dict[str, Array]:
        starts = range(0, len(inputs), _BLOCK)
        parts = [attention(layer, rng).sample(inputs[start : start + _BLOCK]) for start in starts]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    subject.__name__ = attention.__name__
    return subject


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A row of the table.

    Attributes
    ----------
    name, what : str
    source : str
        Public report, a path of github.com.
    layer : AttentionLayer
        A layer on which the mistake shows.
    words : list of list of str
        Patterns that name the mistake, see mistakes.toml.
    subject : callable (layer, inputs, rng) -> mapping
    """

    name: str
    what: str
    source: str
    layer: AttentionLayer
    words: list[list[str]]
    subject: Simulator

    def named_in(self, line: str) -> bool:
        """Return whether a line matches all patterns of an alternative."""
        return any(all(_matches(pattern, line) for pattern in patterns) for patterns in self.words)


def _matches(pattern: str, line: str) -> bool:
    text = re.sub(r"<(\w+)>", lambda name: _TABLE["patterns"][name[1]], pattern.removeprefix("!"))
    return bool(re.search(text, line, re.IGNORECASE)) != pattern.startswith("!")


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MISTAKES: list[Mistake] = []


def on(layer: AttentionLayer) -> Callable[[type[Attention]], type[Attention]]:
    """Add a class to the table, on a layer."""

    def add(attention: type[Attention]) -> type[Attention]:
        name, what, row = attention.__name__, inspect.getdoc(attention) or "", _TABLE[attention.__name__]
        MISTAKES.append(Mistake(name, what, row["source"], layer, row["words"], simulator(attention)))
        return attention

    return add


PAPER, CAUSAL = AttentionLayer(width=16), AttentionLayer(width=16, mask="causal")
#: Four heads; heads narrower than the layer; heads that share keys and values; one head.
HEADS, NARROW = AttentionLayer(width=8, seq_len=3, num_heads=4), AttentionLayer(width=16, head_dim=8)
GROUPED, ONE = AttentionLayer(width=16, num_heads=4, num_kv_heads=2), AttentionLayer(width=4, num_heads=1)
#: Inputs that are not centred, and inputs with positions.
RELU, POSITIONS = REGIMES["relu inputs"], REGIMES["positions"]


# Weights


@on(NARROW)
class FanOfHead(Attention):
    """W_Q, W_K and W_V are scaled by the head's width in place of the model's."""

    def draw(self, size: int) -> Weights:
        return super().draw(size).times((self.layer.width / self.layer.head_width) ** 0.5)


@on(PAPER)
class PackedFan(Attention):
    """Xavier's fan-out is of the packed (3n, n) matrix: W_Q, W_K and W_V have half of the variance."""

    def draw(self, size: int) -> Weights:
        return super().draw(size).times(0.5**0.5)


@on(PAPER)
class StuckAtBound(Attention):
    """trunc_normal_ in bfloat16: one weight in 256 sits at the lower bound of -2."""

    def draw(self, size: int) -> Weights:
        return Weights(*(np.where(self.rng.random(W.shape) < 1 / 256, -2.0, W) for W in super().draw(size)))


@on(PAPER)
class DefaultOutput(Attention):
    """W_O keeps the default of a linear layer, of a third of the variance."""

    def merge(self, heads: Array, output: Array) -> Array:
        return super().merge(heads, output / 3**0.5)


@on(PAPER)
class DepthScaleLost(Attention):
    """W_O is not divided by the root of twice the number of layers, here 12: a name is compared that never matches."""

    def merge(self, heads: Array, output: Array) -> Array:
        return super().merge(heads, output * 24**0.5)


@on(ONE)
class DefaultBias(Attention):
    """The output projection has a bias that is not zero: a linear layer's default."""

    def merge(self, heads: Array, output: Array) -> Array:
        bound = (self.layer.num_heads * self.layer.head_width) ** -0.5
        return super().merge(heads, output) + self.rng.uniform(-bound, bound, (len(heads), 1, output.shape[-1]))


@on(PAPER)
class SameQueryKey(Attention):
    """W_Q and W_K are drawn from one state of the generator: they are the same matrix."""

    def draw(self, size: int) -> Weights:
        weights = super().draw(size)
        return weights._replace(key=weights.query)


@on(PAPER)
class ValueByKey(Attention):
    """The values are made with W_K in place of W_V."""

    def draw(self, size: int) -> Weights:
        weights = super().draw(size)
        return weights._replace(value=weights.key)


@on(PAPER)
class OneMatrix(Attention):
    """Queries, keys and values all go through the keys' matrix."""

    def draw(self, size: int) -> Weights:
        weights = super().draw(size)
        return weights._replace(query=weights.key, value=weights.key)


@on(HEADS)
class HeadsAlike(Attention):
    """One random key draws the matrices of all heads: all heads have the same W_Q, W_K and W_V."""

    def draw(self, size: int) -> Weights:
        *first, output = super().draw(size)
        query, key, value = (np.broadcast_to(W[:, :1], W.shape) for W in first)
        return Weights(query, key, value, output)


@on(PAPER)
class SparseValues(Attention):
    """W_V is uniform with bound 1/√fan-in, and half its entries are 0: a sixth of the variance."""

    def draw(self, size: int) -> Weights:
        weights = super().draw(size)
        bound, shape = self.layer.value_std * self.layer.width**-0.5, weights.value.shape
        return weights._replace(value=self.rng.uniform(-bound, bound, shape) * (self.rng.random(shape) < 0.5))


@on(PAPER)
class OrthogonalProjections(Attention):
    """W_Q, W_K and W_V are initialised orthogonal instead of with independent entries."""

    def draw(self, size: int) -> Weights:
        *first, output = super().draw(size)
        query, key, value = (self.orthonormal(W) for W in first)
        return Weights(query, key, value, output)

    def orthonormal(self, like: Array) -> Array:
        """Return matrices with uniformly distributed orthonormal columns."""
        Q, R = np.linalg.qr(like)
        return np.asarray(Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :])


@on(HEADS)
class WorkersShareASeed(Attention):
    """Four workers start from the same seed: every four consecutive draws have the same weights."""

    def draw(self, size: int) -> Weights:
        return Weights(*(np.repeat(W, 4, axis=0)[:size] for W in super().draw(-(-size // 4))))


# Inputs and projections


@on(PAPER)
class EncodingByDraw(Attention):
    """The positional encoding is added along the batch: all positions of a draw get that of the draw's index."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        rows, n = len(inputs), self.layer.width
        f = np.arange(n)
        angles = np.arange(rows)[:, None] * 10000.0 ** (-(f - f % 2) / n)
        encoding = np.where(f % 2 == 0, np.sin(angles), np.cos(angles))
        return super().project(inputs + encoding[:, None], weights)


@on(RELU)
class NormedQueries(Attention):
    """A layer norm inside is applied to what queries are made of, and not to what keys and values are made of."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        _, keys, values = super().project(inputs, weights)
        centred = inputs - inputs.mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return normal[:, None] @ weights.query, keys, values


@on(PAPER)
class ReluProjections(Attention):
    """Queries, keys and values go through a ReLU after their projections."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = (np.maximum(x, 0.0) for x in super().project(inputs, weights))
        return queries, keys, values


@on(PAPER)
class SignsOnly(Attention):
    """Cosine attention normalises along an axis of length 1: every entry of queries and keys becomes 1 or -1."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = super().project(inputs, weights)
        return np.sign(queries), np.sign(keys), values


@on(NARROW)
class SharedBySlices(Attention):
    """Every head projects its slice of the input with the same small W_Q, W_K, W_V."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        N, s, _ = inputs.shape
        H, nu = self.layer.num_heads, self.layer.head_width
        slices = inputs.reshape(N, s, H, nu).swapaxes(1, 2)
        queries, keys, values = (slices @ (W[:, :1, :nu] * H**0.5) for W in weights[:3])
        return queries, keys, values


@on(GROUPED)
class TiledGroups(Attention):
    """Keys and values of groups are tiled (0, 1, 0, 1) where they should be repeated (0, 0, 1, 1)."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        x, repeats = inputs[:, None], (1, self.layer.group_size, 1, 1)
        return x @ weights.query, np.tile(x @ weights.key, repeats), np.tile(x @ weights.value, repeats)


@on(HEADS)
class GroupsCollapse(Attention):
    """A head's index is divided by the number of key heads, not by a group's size: heads share keys of others."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        wrong = np.arange(self.layer.kv_heads) * self.layer.group_size // self.layer.kv_heads
        return super().project(inputs, weights._replace(key=weights.key[:, wrong], value=weights.value[:, wrong]))


@on(ONE)
class RawValues(Attention):
    """The weighted sum is of the inputs: the values are never used."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = super().project(inputs, weights)
        return queries, keys, np.broadcast_to(inputs[:, None], values.shape)


@on(PAPER)
class CrossedHalves(Attention):
    """A fused kernel mixes up halves: queries and keys are both half of the query and half of the key."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = super().project(inputs, weights)
        half = self.layer.head_width // 2
        both = np.concatenate([queries[..., :half], keys[..., half:]], axis=-1)
        return both, both, values


@on(PAPER)
class KeyBiasFromMemory(Attention):
    """The bias of the keys, which the layer lacks, is whatever memory held: a vector added to all keys of a head."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = super().project(inputs, weights)
        bias = self.rng.standard_normal((len(inputs), self.layer.kv_heads, 1, self.layer.head_width))
        return queries, keys + np.repeat(bias, self.layer.group_size, axis=1), values


@on(POSITIONS)
class RotaryUndeclared(Attention):
    """Queries and keys are turned by their positions, RoPE, in a layer without positions."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = super().project(inputs, weights)
        rotary = self.layer.replace(head_dim=self.layer.head_width, rotary_base=10_000.0)
        return rotated(rotary, queries), rotated(rotary, keys), values


@on(PAPER)
class FirstPositionCached(Attention):
    """The cache is not cleared: the first position has the keys and values of the draw before."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = super().project(inputs, weights)
        for cached in (keys, values):
            cached[:, :, 0] = np.roll(cached[:, :, 0], 1, axis=0)
        return queries, keys, values


@on(PAPER)
class ValuesReadWithWrongPitch(Attention):
    """Values are read from the buffer of queries, keys and values as if it held values only."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        buffer = np.stack(super().project(inputs, weights), axis=3)
        N, H, s, _, nu = buffer.shape
        rows = buffer.reshape(N, H, 3 * s, nu)
        return buffer[..., 0, :], buffer[..., 1, :], rows[:, :, 2 : 2 + s]


# Scores


@on(PAPER)
class ScaleOfModel(Attention):
    """Scores are divided by the root of all heads' width in place of one head's."""

    def score(self, queries: Array, keys: Array) -> Array:
        return np.asarray(super().score(queries, keys) * self.layer.num_heads**-0.5)


@on(PAPER)
class DividedByScale(Attention):
    """Scores are divided by the scale 1/√ν, not multiplied with it."""

    def score(self, queries: Array, keys: Array) -> Array:
        return super().score(queries, keys) / self.scale**2


@on(PAPER)
class NoScale(Attention):
    """A fallback keeps the default scale of 1: scores are not divided by √ν."""

    def score(self, queries: Array, keys: Array) -> Array:
        return super().score(queries, keys) / self.scale


@on(PAPER)
class ScaleAfterSoftmax(Attention):
    """The scale multiplies the attention weights after the softmax, and not the scores before it."""

    def score(self, queries: Array, keys: Array) -> Array:
        return super().score(queries, keys) / self.scale

    def attend(self, scores: Array) -> Array:
        return super().attend(scores) * self.scale


@on(PAPER)
class GrowingScale(Attention):
    """The scale is multiplied by log2(e) at every block of keys, here of one key: later keys have larger scores."""

    def score(self, queries: Array, keys: Array) -> Array:
        return super().score(queries, keys) * math.log2(math.e) ** np.arange(self.layer.seq_len)


@on(PAPER)
class DroppedScores(Attention):
    """Dropout, 0.1, is of the scores before the softmax, not of the weights after it, and is on."""

    def score(self, queries: Array, keys: Array) -> Array:
        scores = super().score(queries, keys)
        return scores * (self.rng.random(scores.shape) >= 0.1) / 0.9


@on(PAPER)
class OneWideHead(Attention):
    """The heads are never split: one head, as wide as all together, attends, with the scale of a narrow one."""

    def score(self, queries: Array, keys: Array) -> Array:
        scores = super().score(queries, keys)
        return np.broadcast_to(scores.sum(axis=1, keepdims=True), scores.shape)


@on(PAPER)
class DistanceRewarded(Attention):
    """An ALiBi bias is added with the wrong sign: slope times i - j, so that keys further back score higher."""

    def score(self, queries: Array, keys: Array) -> Array:
        H, position = self.layer.num_heads, np.arange(self.layer.seq_len)
        slopes = 2.0 ** (-8.0 * np.arange(1, H + 1) / H)
        return super().score(queries, keys) + slopes[:, None, None] * (position[:, None] - position)


@on(PAPER)
class ShiftedScores(Attention):
    """Scores are shifted as relative positions are, from the wrong end: rows move right by one."""

    def score(self, queries: Array, keys: Array) -> Array:
        P = super().score(queries, keys)
        N, H, s, _ = P.shape
        padded = np.concatenate([np.zeros((N, H, s, 1)), P], axis=-1)
        return padded.reshape(N, H, s + 1, s)[:, :, :-1]


# Attention weights


@on(PAPER)
class SoftmaxOverQueries(Attention):
    """Softmax is taken over the queries in place of the keys."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, self.visible, axes=(-2,))


@on(PAPER)
class SoftmaxOverAllHeads(Attention):
    """Softmax is taken over the keys of all heads together."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, self.visible, axes=(1, -1))


@on(PAPER)
class SoftmaxOfHeads(Attention):
    """Softmax is taken over the heads in place of the keys."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, self.visible, axes=(1,))


@on(PAPER)
class SoftmaxOverDraws(Attention):
    """Softmax runs over the batch: the weights of a pair of positions sum to 1 over draws."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, self.visible, axes=(0,))


@on(PAPER)
class WeightsOfOne(Attention):
    """Softmax is taken over an axis of length 1: every attention weight is 1."""

    def attend(self, scores: Array) -> Array:
        return np.broadcast_to(self.visible.astype(float), scores.shape)


@on(PAPER)
class DropoutStaysOn(Attention):
    """Dropout of the attention weights, 0.2, stays on when the layer is evaluated."""

    def attend(self, scores: Array) -> Array:
        return super().attend(scores) * (self.rng.random(scores.shape) >= 0.2) / 0.8


@on(CAUSAL)  # without a mask this has the law of softmax over the queries
class WeightsTransposed(Attention):
    """The attention weights are not transposed as they should be: values are weighted with Aᵀ in place of A."""

    def attend(self, scores: Array) -> Array:
        return super().attend(scores).swapaxes(-1, -2)


@on(CAUSAL)
class MaskInverted(Attention):
    """The mask is inverted: a position attends to later ones only, the last one to none."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, ~self.visible)


@on(CAUSAL)
class MaskNearZero(Attention):
    """Masked scores are set to 1e-9, not to -1e9: a position attends to later ones as to a score of 0."""

    def attend(self, scores: Array) -> Array:
        return softmax(np.where(self.visible, scores, 1e-9), np.ones_like(self.visible))


@on(CAUSAL)
class MaskSkipped(Attention):
    """The causal mask is skipped where no other mask is handed over."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, np.ones_like(self.visible))


@on(CAUSAL)
class MaskAsBias(Attention):
    """A mask of booleans is added to the scores: 1 where a position may be seen, 0 where it may not."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores + self.visible, np.ones_like(self.visible))


@on(CAUSAL)
class SeesNextPosition(Attention):
    """The causal mask is off by one: position i attends to i + 1."""

    def attend(self, scores: Array) -> Array:
        return softmax(scores, np.tril(np.ones_like(self.visible), 1))


@on(PAPER)
class RowIsMasked(Attention):
    """A padding mask is broadcast over keys, not queries: the last position attends to all keys equally."""

    def attend(self, scores: Array) -> Array:
        masked = scores.copy()
        masked[..., -1, :] = -1e10
        return super().attend(masked)


@on(PAPER)
class RunningMaximum(Attention):
    """Online softmax does not rescale its sums when the running maximum rises."""

    def attend(self, scores: Array) -> Array:
        masked = np.where(self.visible, scores, -np.inf)
        weights = np.exp(masked - np.maximum.accumulate(masked, axis=-1))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


@on(PAPER)
class PowersOfTwo(Attention):
    """Attention weights are quantised to powers of two, and rows no longer sum to 1."""

    def attend(self, scores: Array) -> Array:
        weights = super().attend(scores)
        return np.where(weights > 0.0, 2.0 ** np.round(np.log2(np.maximum(weights, 1e-300))), 0.0)


@on(PAPER)
class HeadsAveraged(Attention):
    """Attention weights are averaged over heads before they multiply the values: all heads use the mean."""

    def attend(self, scores: Array) -> Array:
        weights = super().attend(scores)
        return np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)


# Heads and outputs


@on(PAPER)
class MergedByReshape(Attention):
    """The heads are merged with a reshape and no permute: a position gets other positions' outputs of one head."""

    def merge(self, heads: Array, output: Array) -> Array:
        N, H, s, nu = heads.shape
        return super().merge(heads.reshape(N, s, H, nu).swapaxes(1, 2), output)


@on(PAPER)
class SplitByView(MergedByReshape):
    """Heads are split with a view and no transpose: a head gets some positions of all heads."""

    def project(self, inputs: Array, weights: Weights) -> Projected:
        queries, keys, values = (x.swapaxes(1, 2).reshape(x.shape) for x in super().project(inputs, weights))
        return queries, keys, values


@on(PAPER)
class HeadsOfOtherDraws(Attention):
    """Heads are merged with batch and head axes exchanged: an output sums heads of different draws."""

    def merge(self, heads: Array, output: Array) -> Array:
        N, H, s, nu = heads.shape
        return super().merge(heads.reshape(H, N, s, nu).swapaxes(0, 1), output)


@on(NARROW)
class NoOutputProjection(Attention):
    """The heads are concatenated and returned: there is no W_O."""

    def merge(self, heads: Array, output: Array) -> Array:
        N, _, s, _ = heads.shape
        return heads.swapaxes(1, 2).reshape(N, s, -1)[..., : output.shape[-1]]


@on(PAPER)
class HeadsSummed(Attention):
    """The heads are summed as they are, not concatenated, and there is no W_O."""

    def merge(self, heads: Array, output: Array) -> Array:
        return np.asarray(heads.sum(axis=1)[..., : output.shape[-1]])


@on(PAPER)
class DroppedHeads(Attention):
    """Dropout, 0.1, is of what the heads return, not of the attention weights, and is on."""

    def merge(self, heads: Array, output: Array) -> Array:
        return super().merge(heads * (self.rng.random(heads.shape) >= 0.1) / 0.9, output)


@on(PAPER)
class DoubledOutputs(Attention):
    """The residual connection adds the outputs to themselves: x = attention(x), then x = x + x."""

    def merge(self, heads: Array, output: Array) -> Array:
        return 2.0 * super().merge(heads, output)


@on(PAPER)
class HeadsNormalised(Attention):
    """The output of each head is RMS-normalised before the output projection."""

    def merge(self, heads: Array, output: Array) -> Array:
        return super().merge(heads / np.sqrt((heads**2).mean(axis=-1, keepdims=True) + 1e-6), output)


@on(PAPER)
class LargestHead(Attention):
    """Heads are combined by their maximum instead of their sum."""

    def merge(self, heads: Array, output: Array) -> Array:
        return np.asarray((heads @ output).max(axis=1))
