"""Wrong lines of a program: not the declared function of earlier lines, or not of the declared law."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.functionals import log_energy
from attncheck.checks.programs.netsor import Evaluated, copies, earlier_images, evaluated, products_with_earlier
from attncheck.checks.programs.residuals import sequential_lengths, sequential_residual
from attncheck.checks.programs.sample import ProgramSample
from attncheck.diagnosis.estimates import QUANTILE, Observation, mean_of
from attncheck.layers.draws import ProgramDraws
from attncheck.layers.program import Initial, Node
from attncheck.layers.program.extent import results_of, vectors_of
from attncheck.layers.program.lines import line_text

# Largest relative spread of a ratio that counts as constant: rounding in single precision, amplified by sums.
_CONSTANT = 1e-3
# A constant ratio is described as a power of the width if it has one of these exponents.
_POWERS = (-1.0, -0.5, 0.5, 1.0)
# If more than this share of draws is wrong, the text does not give the share.
_ALL = 0.995


def wrong_functions(sample: ProgramSample) -> list[str]:
    """Return a sentence on each line that differs from its declared function of earlier lines, or copies another line.

    Examples
    --------
    >>> import numpy as np
    >>> from attncheck.layers.program import Program, ProgramCase
    >>> from attncheck.checks.programs.sample import sample_of
    >>> from attncheck.layers.program.functions import LinearCombination
    >>> program = Program()
    >>> h = program.initial("h")
    >>> x = program.nonlin(LinearCombination((1.0, 1.0)), h, h)
    >>> case = ProgramCase.of(program, (8,))
    >>> draws = np.random.default_rng(0).standard_normal((5, 1, 2))
    >>> vectors = np.concatenate([draws, 3.0 * draws], axis=1)
    >>> print(*wrong_functions(sample_of(case, [{"outputs": 3.0 * draws, "vectors": vectors}], 5)))
    x1 = linear(1, 1)(h, h) is 1.5 times the declared line
    """
    nodes, texts = sample.case.program.nodes, dict[Node, str]()
    for copy in copies(sample):
        if copy.wrong.any():
            times = f"{float(np.median(copy.ratios[copy.wrong])):.4g} times {line_text(copy.earlier)}"
            texts[copy.node] = f"{line_text(copy.node)} is {times}: one matrix in place of two"
    for line in evaluated(sample) if {"vectors", "scores"} <= sample.exposed else ():
        if line.wrong.any():
            texts[line.node] = _sentence(line, sample.case.width)
    return [texts[node] for node in sorted(texts, key=nodes.index)]


def wrong_laws(sample: ProgramSample) -> list[str]:
    """Return a sentence on each wrong mean, variance or correlation of initial vectors and of products W h.

    A product is examined given the earlier products with the same matrix W. Its correlations are those with earlier
    products of other matrices. Sentences give 99.9% intervals; an estimate is wrong if it differs from the declared
    value by more than 6.6 standard errors.
    """
    differing = (estimate for estimate in _estimates(sample) if estimate.differs and estimate.beyond_chance)
    return list(map(str, differing)) if "vectors" in sample.exposed else []


def wrong_sizes(sample: ProgramSample, exact: ProgramDraws) -> list[str]:
    """Return a sentence on each score and result whose size differs beyond chance from its size in `exact` draws.

    Sizes are compared by their logarithms, which have light tails. `exact` has at least as many neurons as `sample`.
    """
    scores = ((node, sample.need("scores")[:, [k]], exact.scores[:, [k]]) for k, node in enumerate(sample.case.scores))
    results = enumerate(results_of(sample.case.program))
    outputs = ((node, sample.outputs[:, k], exact.outputs[:, k, : sample.coordinates]) for k, node in results)
    ratios = (
        _ratio(line_text(node), log_energy(ours), log_energy(theirs)) for node, ours, theirs in (*scores, *outputs)
    )
    return [str(ratio) for ratio in ratios if ratio.differs and ratio.beyond_chance]


def _ratio(line: str, ours: FloatArray, theirs: FloatArray) -> Observation:
    """Return the ratio of two geometric means of sizes, from logarithms of squares, (draws,)."""
    gap = 0.5 * float(ours.mean() - theirs.mean())
    half = 0.5 * QUANTILE * float(np.hypot(ours.std() / len(ours) ** 0.5, theirs.std() / len(theirs) ** 0.5))
    value, low, high = np.exp([gap, gap - half, gap + half])
    return Observation(f"{line}: geometric mean of sizes", value, low, high, 1.0, ratio=True, positive=True)


def _sentence(line: Evaluated, width: int) -> str:
    """Return a sentence on how a line differs: by a constant factor, or with an example of a wrong value."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = line.actual / line.expected
    ratio = float(np.median(ratios))
    spread = float(np.ptp(ratios))  # NaN or infinite if the line should be 0
    if ratio and spread < _CONSTANT * abs(ratio) < 0.1 * abs(ratio - 1.0):
        power = next((f" (n^{p:g})" for p in _POWERS if abs(ratio / width**p - 1.0) < _CONSTANT and width > 1), "")
        return f"{line_text(line.node)} is {ratio:.4g} times the declared line{power}"
    draw, share = int(line.wrong.argmax()), line.wrong.mean()
    place = int(np.abs(line.actual - line.expected)[draw].argmax())
    where = "" if share > _ALL else f" in {share:.0%} of draws"
    values = f"{line.actual[draw, place]:.6g} in place of {line.expected[draw, place]:.6g}"
    return f"{line_text(line.node)} has other values{where}, such as {values}"


def _estimates(sample: ProgramSample) -> Iterator[Observation]:
    """Yield moments of initial vectors, then of products given the earlier ones, in the order of the program."""
    index = {node: k for k, node in enumerate(vectors_of(sample.case.program))}
    yield from _of_initials(
        {node: sample.need("vectors")[:, index[node]] for node in index if isinstance(node, Initial)}
    )
    if "gram" in sample.exposed:
        yield from _of_products(sorted(_products(sample), key=lambda product: index[product.node]))
        yield from _of_pairs(sample)


def _of_pairs(sample: ProgramSample) -> Iterator[Observation]:
    """Yield the correlation of each product W h with each earlier product by another matrix, largest first.

    The correlation is 0 if the two matrices are independent.
    """
    lines, pairs = [line_text(line) for line in vectors_of(sample.case.program)], earlier_images(sample.case)
    noise, weights = products_with_earlier(sample)
    sizes = np.sqrt((weights**2).mean(axis=0))
    correlations = (
        mean_of(
            f"{lines[pair.uses.images[pair.use]]} and {lines[pair.image]}: correlation given their vectors",
            noise[:, k] * weights[:, k] / sizes[k],
            0.0,
        )
        for k, pair in enumerate(pairs)
        if len(noise) > 1 and sizes[k] > 0.0
    )
    yield from sorted(correlations, key=lambda correlation: -abs(correlation.value))


def _of_initials(vectors: Mapping[Initial, FloatArray]) -> Iterator[Observation]:
    """Yield means and covariances of initial vectors, (draws, neurons)."""
    for number, (node, values) in enumerate(vectors.items()):
        name = line_text(node)
        yield mean_of(f"{name}: mean", values.mean(axis=1), node.mean)
        for other in itertools.islice(vectors, number):
            covariance = float(np.dot(node.root, other.root)) if node.group == other.group else 0.0
            products = (values - node.mean) * (vectors[other] - other.mean)
            yield mean_of(f"{name} and {line_text(other)}: covariance", products.mean(axis=1), covariance)
        if any(node.root):
            squares = ((values - node.mean) ** 2).mean(axis=1)
            yield mean_of(f"{name}: variance", squares / np.dot(node.root, node.root), 1.0, ratio=True)


def _of_products(products: Sequence[_Product]) -> Iterator[Observation]:
    """Yield means and variances of products, and their correlations with earlier ones of the same vector."""
    for number, product in enumerate(products):
        yield mean_of(f"{product.name}: mean", product.values[product.new].mean(axis=1), 0.0)
        variance = mean_of(f"{product.name}: variance", product.squares[product.new], 1.0, ratio=True)
        if product.shared and variance.beyond_chance and mean_of("", product.alone, 1.0).holds(1.0):
            text = (
                f"{line_text(product.node)} has another {product.shared} than earlier products: its variance given them"
            )
            variance = dataclasses.replace(variance, name=text)
        yield variance
        for other in products[:number]:
            both = product.new & other.new
            if other.node.parents == product.node.parents and both.any():
                correlations = (product.values * other.values)[both].mean(axis=1)
                yield mean_of(f"{product.name} and {other.name}: correlation", correlations, 0.0)


class _Product(NamedTuple):
    """A product W h, given earlier products with the same matrix W, in units of its standard deviation.

    `values` are (draws, neurons), and `squares`, (draws,), their mean squares over all neurons. `alone`, (draws,), are
    mean squares of W h in units of those that are expected if earlier products are not given. `shared` is the name of W
    if there are earlier products, and else empty. `new`, (draws,), tells
    in which draws h is not a combination of the vectors that W multiplied before.
    """

    node: Node
    name: str
    values: FloatArray
    squares: FloatArray
    new: BoolArray
    shared: str
    alone: FloatArray


def _products(sample: ProgramSample) -> Iterator[_Product]:
    """Yield the products W h whose vector h is new to the matrix W in some draws.

    A vector is new to W if it is not a combination of the vectors that W multiplied before.
    """
    lines, width = vectors_of(sample.case.program), sample.case.width
    gram, vectors = sample.need("gram"), sample.need("vectors")
    for images in sample.images:
        residual = sequential_residual(images, gram, vectors)
        squares = sequential_lengths(images, width, gram).values / images.weight.shape(width)[0]
        for use, index in enumerate(images.images):
            given = f" given earlier products with {images.weight.name}" if use else ""
            name, new = f"{line_text(lines[index])}{given}", np.asarray(residual.kept[:, use].all(axis=1))
            if new.any():
                vector = images.inputs[use]
                alone = gram[new, index, index] / (images.weight.std**2 * gram[new, vector, vector])
                shared = images.weight.name if use else ""
                yield _Product(lines[index], name, residual.values[:, use], squares[:, use], new, shared, alone)
