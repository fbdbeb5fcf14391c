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
from attncheck.checks.programs.residuals import Images, sequential_lengths, sequential_residual
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
# A vector is likelier than another by at least this difference of log-likelihoods per draw, which draws that share
# their matrices do not reach. Directions are lost to rounding if their relative squared length is below `_LOST`.
_MARGIN, _LOST = 0.1, 1e-6
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
    """Return a sentence on each wrong vector h of a product W h, then on wrong moments of initial vectors and products.

    Moments are means, variances and correlations. A product is examined given the earlier products with the same matrix
    W. Its correlations are those with earlier products of other matrices. Sentences give 99.9% intervals; an estimate
    is wrong if it differs from the declared value by more than 6.6 standard errors.
    """
    if "vectors" not in sample.exposed:
        return []
    index = {node: k for k, node in enumerate(vectors_of(sample.case.program))}
    products = sorted(_products(sample), key=lambda product: index[product.node]) if "gram" in sample.exposed else []
    texts = [f"{line_text(p.node)} is {p.actual}: another vector is multiplied" for p in products if p.actual]
    differing = (each for each in _estimates(sample, index, products) if each.differs and each.beyond_chance)
    return [*texts, *map(str, differing)]


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


def _estimates(sample: ProgramSample, index: Mapping[Node, int], products: Sequence[_Product]) -> Iterator[Observation]:
    """Yield moments of initial vectors, then of products given the earlier ones, in the order of the program."""
    yield from _of_initials(
        {node: sample.need("vectors")[:, index[node]] for node in index if isinstance(node, Initial)}
    )
    yield from _of_products(products)
    if "gram" in sample.exposed:
        yield from _of_pairs(sample)


def _of_pairs(sample: ProgramSample) -> Iterator[Observation]:
    """Yield the correlation of each product W h with each earlier product by another matrix, largest first.

    The correlation is 0 if the two matrices are independent.
    """
    lines, pairs = [line_text(line) for line in vectors_of(sample.case.program)], earlier_images(sample.case)
    noise, weights = products_with_earlier(sample)
    sizes = np.sqrt((weights**2).mean(axis=0) * (noise**2).mean(axis=0))
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
    if there are earlier products, and else empty. `new`, (draws,), tells in which draws h is not a combination of the
    vectors that W multiplied before. `actual` is the product W h' of another vector h', if the draws show it.
    """

    node: Node
    name: str
    values: FloatArray
    squares: FloatArray
    new: BoolArray
    shared: str
    alone: FloatArray
    actual: str


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
                # A matrix that is drawn afresh may fit another vector, too.
                afresh = bool(use) and mean_of("", alone, 1.0).holds(1.0)
                multiplied = None if afresh else _multiplied(images, use, gram, width)
                actual = "" if multiplied is None else f"{images.weight.name} {lines[multiplied].name}"
                yield _Product(lines[index], name, residual.values[:, use], squares[:, use], new, shared, alone, actual)


def _multiplied(images: Images, use: int, gram: FloatArray, width: int) -> int | None:
    """Return the index of the vector that a matrix multiplied, if that is not the declared one, or None.

    It is far more likely than all other vectors, the declared one included, and its products have their variance.
    """
    earlier, image, declared = [*images.images[:use]], images.images[use], images.inputs[use]
    inputs, rows = [*images.inputs[:use]], images.weight.shape(width)[0]
    inverse = np.linalg.pinv(gram[:, inputs][:, :, inputs], hermitian=True)
    squares, likelihoods = dict[int, FloatArray](), dict[int, float]()
    for vector in range(image):
        # Given earlier products, W h has a mean linear in them and a variance that is common to its entries.
        coefficients = (inverse @ gram[:, inputs, vector, None])[..., 0]
        combined = np.concatenate([-coefficients, np.ones((len(gram), 1))], axis=1)
        lines, known = (gram[:, index][:, :, index] for index in ([*earlier, image], [*inputs, vector]))
        size, variance = (np.einsum("ni,nij,nj->n", combined, matrix, combined) for matrix in (lines, known))
        if (variance > _LOST * gram[:, vector, vector]).all():
            squares[vector] = size / (images.weight.std**2 * variance)
            likelihoods[vector] = -0.5 * rows * float((np.log(variance) + squares[vector]).sum())
    if declared not in likelihoods or len(likelihoods) < 2:
        return None
    *_, second, best = sorted(likelihoods, key=likelihoods.__getitem__)
    clear = best != declared and likelihoods[best] > likelihoods[second] + _MARGIN * len(gram)
    return best if clear and mean_of("", squares[best], 1.0).holds(1.0) else None
