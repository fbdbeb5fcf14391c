"""Features that distinguish causes: one number per draw, compared by ranks between samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.sample import Sample

Feature = tuple[str, FloatArray]

# Added to squares before taking logarithms.
_TINY = 1e-300


def features_of(sample: Sample) -> dict[str, FloatArray]:
    """Return the features of a sample by name, each of shape (draws,).

    Examples
    --------
    >>> from attncheck.layers.attention import AttentionLayer
    >>> sample = Sample(AttentionLayer(width=2, seq_len=1, num_heads=1), np.ones((5, 1, 1)))
    >>> sorted(features_of(sample))[:2]
    ['output', 'outputs at the extreme']
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        features = dict(_of_outputs(sample))
        if sample.inputs is not None:
            features |= dict(_of_inputs(sample))
        if sample.scores is not None:
            features |= dict(_of_scores(sample))
            features |= dict(_of_conditional_outputs(sample))
        features |= dict(_of_grams(sample))
    values = np.array(list(features.values()))
    if not np.isfinite(values).all():
        np.nan_to_num(values, copy=False, nan=0.0, posinf=1e300, neginf=-1e300)
    return dict(zip(features, values, strict=True))


def _log(squares: FloatArray) -> FloatArray:
    return np.asarray(np.log(squares + _TINY))


def _positions(sample: Sample) -> list[int]:
    """Return the first, second, middle and last position."""
    s = sample.layer.seq_len
    return sorted({0, min(1, s - 1), s // 2, s - 1})


def _pairs(sample: Sample) -> list[tuple[int, int]]:
    chosen = _positions(sample)
    return sorted({(chosen[0], chosen[-1]), (chosen[0], chosen[min(1, len(chosen) - 1)])} - {(0, 0)})


def _heads(sample: Sample) -> list[int]:
    """Return the first, second, middle and last head, to detect shared weights."""
    count = sample.layer.num_heads
    return sorted({0, min(1, count - 1), count // 2, count - 1})


def _of_outputs(sample: Sample) -> Iterator[Feature]:
    y = sample.outputs
    sizes = _log((y * y).sum(axis=-1))
    total = _log((y * y).sum(axis=(1, 2)))
    yield "output", y[:, -1, 0]
    yield "size of outputs", total
    for i in _positions(sample):
        yield f"size of outputs at {i}", sizes[:, i]
    for i, j in _pairs(sample):
        yield f"outputs at {i} times those at {j}", (y[:, i] * y[:, j]).sum(axis=-1)
        yield f"size of outputs at {i} over those at {j}", sizes[:, i] - sizes[:, j]
    if y.shape[-1] > 1:
        neurons = _log(y[:, -1] ** 2)
        yield "two neurons", y[:, -1, 0] * y[:, -1, 1]
        yield "size of one neuron over another's", neurons[:, 0] - neurons[:, 1]
    yield from _of_calls("outputs", y[:, -1, 0], total)
    extreme = np.abs(y).max(axis=(1, 2))
    yield "outputs at the extreme", (extreme == extreme.max()).astype(float)
    yield "zeros among outputs", (y == 0.0).mean(axis=(1, 2))


def _of_calls(quantity: str, one: FloatArray, size: FloatArray) -> Iterator[Feature]:
    """Yield features that show whether the draws of a call depend on each other.

    `quantity` names what is measured, `one` holds one number per draw, and `size` the log size of each draw. The
    features are products and ratios of neighbouring draws, repeated numbers, and a trend along the call.
    """
    count = len(one)
    yield f"{quantity} of neighbouring draws", one * np.roll(one, 1)
    yield f"size of {quantity} over the draw before", size - np.roll(size, 1)
    _, inverse, copies = np.unique(one, return_inverse=True, return_counts=True)
    yield f"{quantity} that come again", (copies[inverse] > 1).astype(float)
    yield f"size of {quantity} along a call", (size - np.median(size)) * (np.arange(count) / count - 0.5)


def _of_inputs(sample: Sample) -> Iterator[Feature]:
    x, y = sample.need("inputs"), sample.outputs
    sizes = _log((x * x).sum(axis=-1))
    yield "input", x[:, -1, 0]
    yield "size of inputs", _log((x * x).sum(axis=(1, 2)))
    yield "largest input", np.abs(x).max(axis=(1, 2))
    yield "inputs times outputs", (x[:, -1] * y[:, -1]).sum(axis=-1)
    yield "size of outputs over inputs", _log((y * y).sum(axis=(1, 2))) - _log((x * x).sum(axis=(1, 2)))
    for i, j in _pairs(sample):
        yield f"inputs at {i} times those at {j}", (x[:, i] * x[:, j]).sum(axis=-1)
        yield f"size of inputs at {i} over those at {j}", sizes[:, i] - sizes[:, j]


def _of_scores(sample: Sample) -> Iterator[Feature]:
    """Yield features of the visible scores."""
    mask = sample.layer.visible
    P = np.where(mask, sample.need("scores"), 0.0)
    squares = P * P
    heads, s = _heads(sample), sample.layer.seq_len
    sizes = _log(squares.sum(axis=(2, 3)))
    total = _log(squares.sum(axis=(1, 2, 3)))
    yield "size of scores", total
    yield "peak of scores", _log((squares * squares).sum(axis=(1, 2, 3))) - 2.0 * total
    yield "mean of scores", P.mean(axis=(1, 2, 3))
    yield "score", P[:, 0, 0, 0]
    yield "diagonal of scores", np.trace(P, axis1=2, axis2=3).sum(axis=1)
    for h in heads:
        yield f"size of scores of head {h}", sizes[:, h]
    for g, h in itertools.pairwise(heads):
        yield f"scores of head {g} times those of {h}", (P[:, g] * P[:, h]).sum(axis=(1, 2))
        yield f"size of scores of head {g} over those of {h}", sizes[:, g] - sizes[:, h]
    if s > 1:
        rows, columns = squares.sum(axis=(1, 3)), squares.sum(axis=(1, 2))
        ratios = _log(squares[..., 0].sum(axis=2)) - _log(squares[..., -1].sum(axis=2))
        yield (
            "ratio of columns of scores of head 0 times that of the next head",
            ratios[:, 0] * ratios[:, 1 % len(ratios[0])],
        )
        yield "diagonal of scores over the rest", _log(np.einsum("nhii->n", squares)) - total
        yield "ratio of the sizes of the first and last rows of scores", _log(rows[:, 0]) - _log(rows[:, -1])
        yield "ratio of the sizes of the first and last columns of scores", _log(columns[:, 0]) - _log(columns[:, -1])
        yield (
            "scores times their transpose",
            (P * P.swapaxes(-1, -2)).sum(axis=(1, 2, 3)) - np.einsum("nhii->n", squares),
        )
        yield "scores of one query", (P[:, :, -1, 0] * P[:, :, -1, -1]).sum(axis=1)
        yield "scores of one key", (P[:, :, 0, 0] * P[:, :, -1, 0]).sum(axis=1)
        yield "minor of scores", (P[:, :, 0, 0] * P[:, :, -1, -1] - P[:, :, 0, -1] * P[:, :, -1, 0]).sum(axis=1)
    yield "digits of scores", (P.astype(np.float16).astype(float) == P).mean(axis=(1, 2, 3))
    yield from _of_calls("scores", P[:, 0, -1, 0], total)


def _of_conditional_outputs(sample: Sample) -> Iterator[Feature]:
    """Yield features that compare the sizes of outputs with the sizes that the attention weights predict."""
    A, y = sample.weights, sample.outputs
    expected = (A * A).sum(axis=(1, 3))
    by_head = (A * A).sum(axis=3)
    sizes = _log((y * y).sum(axis=-1))
    for i in _positions(sample):
        yield f"size of outputs at {i} over their attention", sizes[:, i] - _log(expected[:, i])
        yield f"size of outputs at {i} by head", (sizes[:, i] - np.median(sizes[:, i])) * _share(by_head[:, :, i])
    for i, j in _pairs(sample):
        overlap = (A[:, :, i] * A[:, :, j]).sum(axis=(1, 2))
        yield (
            f"outputs at {i} times those at {j} by overlap",
            (y[:, i] * y[:, j]).sum(axis=-1) * (overlap - np.median(overlap)),
        )
    total, sharp = sizes.sum(axis=1), _log(expected.sum(axis=1))
    # Set the size of outputs that are 0 to the median; otherwise their ranks would depend on medians, which differ
    # between samples.
    size = np.where(y.any(axis=(1, 2)), total - np.median(total), 0.0)
    yield "size of outputs by attention", size * (sharp - np.median(sharp))
    score = sample.need("scores")[:, 0, -1, 0]
    yield "outputs times scores", y[:, -1, 0] * score


def _share(of_heads: FloatArray) -> FloatArray:
    """Return the first head's share of the sum over heads, minus the last head's share, (draws,).

    `of_heads` are nonnegative numbers (draws, heads).
    """
    return np.asarray((of_heads[:, 0] - of_heads[:, -1]) / (of_heads.sum(axis=1) + _TINY))


def _of_grams(sample: Sample) -> Iterator[Feature]:
    """Yield features of Gram matrices, and of scores and outputs relative to them."""
    G, K, V = sample.input_gram, sample.key_gram, sample.value_gram
    heads, pairs = _heads(sample), _pairs(sample)
    layer, mask = sample.layer, sample.layer.visible
    if G is not None:
        yield "size of input Gram", _log(np.trace(G, axis1=1, axis2=2))
        for i, j in pairs:
            yield f"input Gram at {i} and {j}", G[:, i, j] / np.sqrt(G[:, i, i] * G[:, j, j] + _TINY)
    for name, gram in (("key", K), ("value", V)):
        if gram is None:
            continue
        diagonals = np.einsum("nhii->nhi", gram)
        sizes = _log(diagonals.sum(axis=2))
        for h in heads:
            yield f"size of {name} Gram of head {h}", sizes[:, h]
            if G is not None:
                yield f"size of {name} Gram of head {h} over inputs", sizes[:, h] - _log(np.trace(G, axis1=1, axis2=2))
        for g, h in itertools.pairwise(heads):
            yield f"size of {name} Gram of head {g} over that of {h}", np.abs(sizes[:, g] - sizes[:, h])
        for i, j in pairs:
            cosine = gram[:, :, i, j] / np.sqrt(diagonals[:, :, i] * diagonals[:, :, j] + _TINY)
            yield f"{name} Gram at {i} and {j}", cosine[:, 0]
            if G is not None:
                input_cosine = G[:, i, j] / np.sqrt(G[:, i, i] * G[:, j, j] + _TINY)
                yield f"{name} Gram at {i} and {j} beside inputs", cosine[:, 0] - input_cosine
    if K is not None and V is not None:
        for name, head in (("key Gram over value Gram", 0), ("last key Gram over first value Gram", -1)):
            yield name, np.abs(_log(np.einsum("nii->n", K[:, head])) - _log(np.einsum("nii->n", V[:, 0])))
    if G is not None and K is not None and sample.scores is not None:
        squares = np.where(mask, sample.scores, 0.0) ** 2
        expected = np.einsum("nii->ni", G)[:, None, :, None] * np.einsum("nhii->nhi", K)[:, :, None, :]
        sizes = _log(squares.sum(axis=(2, 3))) - _log(np.where(mask, expected, 0.0).sum(axis=(2, 3)))
        yield "size of scores given keys", sizes.mean(axis=1)
        for h in heads:
            yield f"size of scores of head {h} given keys", sizes[:, h]
        if layer.seq_len > 1:
            products = sample.scores[:, :, -1, -1] * sample.scores[:, :, -1, 0]
            yield "scores of one query by keys", (products * K[:, :, -1, 0]).sum(axis=1)
    if V is not None and sample.scores is not None:
        A, y = sample.weights, sample.outputs
        mixed = A @ V
        expected = np.einsum("nhik,nhik->ni", mixed, A)
        for i in _positions(sample):
            yield f"size of outputs at {i} given values", _log((y[:, i] ** 2).sum(axis=-1)) - _log(expected[:, i])
        for i, j in pairs:
            cross = np.einsum("nhk,nhk->n", mixed[:, :, i], A[:, :, j])
            scale = np.sqrt(np.abs(expected[:, i] * expected[:, j])) + _TINY
            product = (y[:, i] * y[:, j]).sum(axis=-1) / scale
            yield f"outputs at {i} times those at {j} given values", product * np.sign(cross)
