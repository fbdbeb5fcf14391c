"""Checks of Definition 1 (i)-(iii): the exact law of each line of a program given the earlier lines.

An *image* is the product of a matrix with a vector. The vector has a *new direction* if it is not a combination of the
vectors that the matrix multiplied before.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import special

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.comparison import between_calls
from attncheck.checks.declared import Rejected, of_law
from attncheck.checks.programs.functionals import CALLS, ONE_WIDTH, ProgramAlternative, ProgramCheck, ProgramReference
from attncheck.checks.programs.residuals import (
    Images,
    image_coefficients,
    images_of,
    initial_residual,
    sequential_lengths,
)
from attncheck.checks.programs.sample import ProgramSample
from attncheck.checks.whitening import Residual
from attncheck.evidence.families import Count, Scale, Uniform
from attncheck.evidence.groups import LargestAssociation
from attncheck.layers.program import MatMul, Node, Nonlin, Output, Program, ProgramCase, Score
from attncheck.layers.program import requirements as need
from attncheck.layers.program.extent import vectors_of

# Relative tolerance between a line and its function: float32 rounding, 6e-8, amplified about a hundredfold.
_ROUNDING = 1e-5
# Vectors count as multiples of each other if the squared sine of their angle is below _PARALLEL: single precision
# cannot tell them apart. Only vectors of at least _LONG neurons are compared: two independent ones are that close in
# one of 10²¹ draws.
_PARALLEL, _LONG = 1e-6, 8
# Without a Gram matrix, vectors are compared if at least _FEWEST neurons are returned. _CHANCE bounds the probability
# that two independent products count as multiples of each other.
_FEWEST, _CHANCE = 4, 1e-7
# Smallest squared length of a vector.
_TINY = 1e-300
_TOO_FEW = f"fewer than {_FEWEST} neurons of the vectors and no Gram matrix are returned"


class EarlierImage(NamedTuple):
    """An image by one matrix, and an earlier image by another matrix of equal shape.

    The later image is the one at index `use` of `uses`. `vector` and `image` are the indices of the other matrix's
    input and of the earlier image among the program's vectors.
    """

    uses: Images
    use: int
    vector: int
    image: int


def earlier_images(case: ProgramCase) -> list[EarlierImage]:
    """Return all pairs of an image by one matrix and an earlier image by another matrix of equal shape."""
    matrices = images_of(case.program)
    return [
        EarlierImage(uses, use, vector, image)
        for uses, other in itertools.permutations(matrices, 2)
        if uses.weight.shape(case.width) == other.weight.shape(case.width)
        for use, latest in enumerate(uses.images)
        for vector, image in zip(other.inputs, other.images, strict=True)
        if image < latest
    ]


def products_with_earlier(sample: ProgramSample) -> tuple[FloatArray, FloatArray]:
    """Return the product of the two images of each pair in `earlier_images`, and the cosine of the images' inputs.

    Both arrays are (draws, pairs). From the later image, only the part that belongs to a new direction is used, and the
    product is divided by the length of the earlier image. If the two matrices are independent, the products are
    standard normal. If they are the same matrix, the products are correlated with the cosines.
    """
    gram, pairs = sample.need("gram"), earlier_images(sample.case)
    lengths = np.sqrt(np.maximum(np.diagonal(gram, axis1=1, axis2=2), _TINY))
    noise, cosines = np.zeros((2, len(sample), len(pairs)))
    coefficients = {uses: image_coefficients(uses, gram) for uses in sample.images}
    for k, (uses, use, vector, image) in enumerate(pairs):
        rows = uses.weight.shape(sample.case.width)[0]
        known = coefficients[uses].kept[:, use].any(axis=-1) & (lengths[:, image] > _TINY**0.5)
        product = (coefficients[uses].values[:, use] * gram[:, image]).sum(axis=-1) / lengths[:, image]
        own = uses.inputs[use]
        noise[:, k] = np.where(known, rows**0.5 * product, 0.0)
        cosines[:, k] = np.where(known, gram[:, own, vector] / (lengths[:, own] * lengths[:, vector]), 0.0)
    return noise, cosines


def _other_vectors(case: ProgramCase) -> list[tuple[Images, int, int]]:
    """Return all pairs of an image and an earlier vector that is not the image's input.

    Each entry consists of the `Images` of a matrix, the index of the image among them, and the index of the vector.
    """
    return [
        (uses, use, vector)
        for uses in images_of(case.program)
        for use, latest in enumerate(uses.images)
        for vector in range(latest)
        if vector != uses.inputs[use]
    ]


def _with_other_lengths(sample: ProgramSample) -> tuple[FloatArray, FloatArray]:
    """Return the length of the image and that of the vector, for each pair in `_other_vectors`.

    Both arrays are (draws, pairs). The first one holds normal scores of the image's length, of which only the part that
    belongs to a new direction counts. The second one holds log lengths of the vector, relative to the length of the
    image's input, and centred over the draws. Under the null, the first array does not depend on the second one.
    """
    gram, width, pairs = sample.need("gram"), sample.case.width, _other_vectors(sample.case)
    logs = np.log(np.maximum(np.diagonal(gram, axis1=1, axis2=2), _TINY))
    noise, weights = np.zeros((2, len(sample), len(pairs)))
    squares = {uses: sequential_lengths(uses, width, gram) for uses in sample.images}
    for k, (uses, use, vector) in enumerate(pairs):
        rows, known = uses.weight.shape(width)[0], squares[uses].kept[:, use]
        chances = np.clip(special.chdtr(rows, squares[uses].values[:, use]), _TINY, 1.0 - 2.0**-53)
        weight = logs[:, vector] - logs[:, uses.inputs[use]]
        noise[:, k] = np.where(known, special.ndtri(chances), 0.0)
        weights[:, k] = np.where(known, weight - weight.mean(), 0.0)
    return noise, weights


def _moments(residual: Residual) -> tuple[FloatArray, FloatArray]:
    """Return each vector of normals with the number 1, and with each earlier vector, both as (draws · neurons, pairs).

    Under the null, the first array holds N(0, 1) numbers that are independent of the second one.
    """
    vectors = residual.values.shape[1]
    normals = np.insert(residual.values, 0, 1.0, axis=1).swapaxes(1, 2).reshape(-1, 1 + vectors)
    kept = residual.kept.swapaxes(1, 2).reshape(-1, vectors)
    earlier, later = np.triu_indices(1 + vectors, 1)
    return normals[:, later], normals[:, earlier] * kept[:, later - 1]


def _products(sample: ProgramSample) -> Residual:
    """Return products of matrices with new directions, (draws, uses of matrices, neurons), in the program's order."""
    order = np.argsort([image for uses in sample.images for image in uses.images])
    return Residual(sample.matmuls.values[:, order], sample.matmuls.kept[:, order])


def _pairs_of(vectors: int) -> int:
    """Return the number of pairs of vectors of normals, and of such a vector and the number 1."""
    return vectors * (vectors + 1) // 2


def _directions(program: Program) -> int:
    return int(initial_residual(program, np.zeros((1, len(vectors_of(program)), 1))).values.shape[1])


def _lengths(sample: ProgramSample, reference: ProgramReference) -> tuple[FloatArray]:
    """Return probability integral transforms of the squared lengths of products with new directions.

    The squared lengths have a χ² law under the null.
    """
    parts = []
    for images in sample.images:
        rows = images.weight.shape(sample.case.width)[0]
        squares: Residual = sequential_lengths(images, sample.case.width, sample.need("gram"))
        parts.append(special.chdtr(rows, squares.flat()))
    return (np.concatenate(parts),)


class Evaluated(NamedTuple):
    """The values of a line that the subject returns, and its function evaluated on the returned earlier lines.

    `actual` and `expected` are (draws, neurons), or (draws, 1) for a score. `wrong`, (draws,), tells in which draws
    they differ by more than rounding.
    """

    node: Node
    actual: FloatArray
    expected: FloatArray
    wrong: BoolArray


def evaluated(sample: ProgramSample) -> Iterator[Evaluated]:
    """Evaluate every `Nonlin` and output and, if the sample has a Gram matrix, every score, in the program's order."""
    index = {node: k for k, node in enumerate(vectors_of(sample.case.program))}
    score: dict[Node, int] = {node: k for k, node in enumerate(sample.case.scores)}
    vectors, scores, gram = sample.need("vectors"), sample.need("scores"), sample.draws[0].gram
    for node in sample.case.program.nodes:
        if isinstance(node, Score):
            if gram is None:
                continue
            one, two = (index[parent] for parent in node.parents)
            factor = node.factor * node.parents[0].length(sample.case.width) ** 0.5
            actual, expected = scores[:, score[node], None], factor * gram[:, one, two, None]
            largest = abs(factor) * np.sqrt(np.abs(gram[:, one, one] * gram[:, two, two]))
        elif isinstance(node, Nonlin | Output):
            actual, arguments = vectors[:, index[node]], vectors[:, [index[p] for p in node.parents if p in index]]
            if isinstance(node, Nonlin):
                expected = np.asarray(node.function(*arguments.swapaxes(0, 1)))
            else:
                expected = node.function(arguments, scores[:, np.array([score[p] for p in node.scores], dtype=np.intp)])
            # Functions may be steep, so tolerances are relative to the largest of the line and its arguments.
            largest = np.abs(arguments).max(axis=(1, 2))
        else:
            continue
        size = np.maximum(np.maximum(np.abs(actual), np.abs(expected)).max(axis=1), largest)
        yield Evaluated(node, actual, expected, np.abs(actual - expected).max(axis=1) > _ROUNDING * size)


class Copy(NamedTuple):
    """Two products of one vector with matrices that should be independent.

    `wrong`, (draws,), tells in which draws `node` is a multiple of `earlier`; `ratios`, (draws,), are the factors.
    """

    node: MatMul
    earlier: MatMul
    ratios: FloatArray
    wrong: BoolArray


def copies(sample: ProgramSample) -> Iterator[Copy]:
    """Yield all pairs of products W h and W' h of a vector h with two different matrices.

    Products with fewer than `_LONG` neurons or with a zero matrix are skipped. If the sample has no Gram matrix, the
    returned neurons are compared, unless they are fewer than `_FEWEST`.
    """
    index = {node: k for k, node in enumerate(vectors_of(sample.case.program))}
    gram, width = sample.draws[0].gram, sample.case.width
    if gram is None:
        if sample.draws[0].vectors is None or sample.coordinates < _FEWEST:
            return
        gram = sample.need("vectors") @ sample.need("vectors").swapaxes(1, 2)
    long = [node for node in index if isinstance(node, MatMul) and node.length(width) >= _LONG and node.weight.std]
    for earlier, node in itertools.combinations(long, 2):
        if earlier.parents == node.parents and earlier.weight is not node.weight:
            one, two = index[earlier], index[node]
            squares, product = gram[:, one, one] * gram[:, two, two], gram[:, one, two]
            wrong = (squares > 0.0) & (squares - product**2 <= _PARALLEL * squares)
            yield Copy(node, earlier, product / np.maximum(gram[:, one, one], 1e-300), wrong)


def _counted(size: int, wrong: Iterable[BoolArray]) -> tuple[int, int]:
    """Count the draws in which any line is wrong, and return the count and `size`.

    `wrong` yields an array (draws,) for each line.
    """
    return int(functools.reduce(np.logical_or, wrong, np.zeros(size, dtype=bool)).sum()), size


_check = functools.partial(ProgramCheck, claim="netsor", needs=ONE_WIDTH)

CHECKS = (
    _check(
        name="netsor.initials",
        rejects=Rejected.of("shifted_initials", "independent_initials"),
        needs=frozenset({"vectors"}),
        null="coordinates of the initial vectors are normal with the declared mean and covariance",
        alternative=of_law(),
        reads="Kolmogorov distance of whitened initial coordinates from N(0, 1):",
        family=lambda setting: Uniform(),
        measure=lambda sample, reference: sample.initial.uniform(),
        hint="mean or covariance of the initial vectors differ from the declared ones",
        requires=need.RANDOM_START,
    ),
    _check(
        name="netsor.moments",
        rejects=Rejected.of("shifted_initials"),
        needs=frozenset({"vectors"}),
        null="whitened initial vectors have mean 0 and are uncorrelated",
        alternative=ProgramAlternative.of(
            "a mean or correlation of 0.15 of whitened initial vectors", 0.15, coarsest=0.3
        ),
        reads="largest mean or correlation of whitened initial vectors:",
        family=lambda setting: LargestAssociation(setting.coordinates, _pairs_of(_directions(setting.case.program))),
        measure=lambda sample, reference: _moments(sample.initial),
        hint="mean or covariance of the initial vectors differ from the declared ones",
        requires=need.RANDOM_START,
    ),
    _check(
        name="netsor.functions",
        rejects=Rejected.of(
            "always_tanh", "first_term", "half_precision", "outputs_apart", "scores_5", "scores_of_another_draw"
        ),
        needs=frozenset({"vectors", "scores"}),
        null="each Nonlin and output (and score, if Gram matrices are returned) equals its declared function",
        alternative=ProgramAlternative.of("one wrong draw in a hundred", 0.01),
        reads="share of draws in which a line is not the declared function:",
        family=lambda setting: Count(0.0),
        measure=lambda sample, reference: _counted(len(sample), (line.wrong for line in evaluated(sample))),
        hint="a score, a nonlinearity or an output differs from the declared function, or uses other lines",
        any_weights=True,
        requires=need.SOME_FUNCTION,
    ),
    _check(
        name="netsor.matmuls",
        rejects=Rejected.of("biased_matmuls", "wandering_scale"),
        null="given all earlier vectors, products of a matrix with directions new to it are N(0, 1) in units of σ",
        alternative=of_law(),
        reads="Kolmogorov distance of products with new directions from N(0, 1):",
        family=lambda setting: Uniform(),
        measure=lambda sample, reference: sample.matmuls.uniform(),
        hint="a matrix is drawn afresh where it should be shared, or has another law or standard deviation",
        requires=need.SOME_MATRIX,
    ),
    _check(
        name="netsor.products",
        rejects=Rejected.of("biased_matmuls"),
        null="products of matrices with directions new to them have mean 0 and are uncorrelated",
        alternative=ProgramAlternative.of("a mean or correlation of 0.15 of one product", 0.15, coarsest=0.3),
        reads="largest mean or correlation of products with new directions:",
        family=lambda setting: LargestAssociation(
            setting.coordinates, _pairs_of(len(need.uses_of(setting.case.program)))
        ),
        measure=lambda sample, reference: _moments(_products(sample)),
        hint="something is added to the products of a matrix, or two matrices depend on each other",
        requires=need.SOME_MATRIX,
    ),
    _check(
        name="netsor.scale",
        rejects=Rejected.of("matrix_std_5", "fresh_matrices"),
        null="products of a matrix with directions that are new to it have the declared variance",
        alternative=ProgramAlternative.of("variances off by 15%", 1.15, coarsest=1.5),
        reads="ratio of the variance of products with new directions to the declared one:",
        family=lambda setting: Scale(float(setting.coordinates)),
        measure=lambda sample, reference: sample.matmuls.squares(),
        hint="a matrix is drawn afresh where it should be shared, or has another law or standard deviation",
        requires=need.SOME_MATRIX,
    ),
    _check(
        name="netsor.sharing",
        rejects=Rejected.of("tied_matrices"),
        needs=frozenset({"gram"}),
        null="products with new directions are independent of earlier products with other matrices of equal shape",
        alternative=ProgramAlternative.of("a correlation of 0.3 of one pair of products", 0.3, coarsest=0.6),
        reads="largest standardised covariance of products of two matrices, given the vectors that they multiply:",
        family=lambda setting: LargestAssociation(columns=len(earlier_images(setting.case))),
        measure=lambda sample, reference: products_with_earlier(sample),
        hint="a matrix is shared where it should not be",
        requires=need.SEVERAL_MATRICES,
    ),
    _check(
        name="netsor.inputs",
        rejects=Rejected.of("stale_vectors"),
        needs=frozenset({"gram"}),
        null="for each matrix W and new direction d, |W d|/|d| is independent of the lengths of earlier vectors",
        alternative=ProgramAlternative.of("a correlation of 0.3 of one product and one vector", 0.3, coarsest=0.6),
        reads="largest standardised covariance of lengths of a product and a vector that its matrix did not multiply:",
        family=lambda setting: LargestAssociation(columns=len(_other_vectors(setting.case))),
        measure=lambda sample, reference: _with_other_lengths(sample),
        hint="a matrix multiplies another vector than the declared one",
        requires=need.MOVING_VECTORS,
    ),
    _check(
        name="netsor.copies",
        rejects=Rejected.of("tied_matrices"),
        needs=frozenset({"vectors"}),
        null="products of two matrices with one vector are not multiples of each other",
        alternative=ProgramAlternative.of("one wrong draw in a hundred", 0.01),
        reads="share of draws in which products of two matrices are multiples of each other:",
        family=lambda setting: Count(_CHANCE),
        excluded=lambda setting: "" if setting.coordinates >= _FEWEST or "gram" in setting.exposed else _TOO_FEW,
        measure=lambda sample, reference: _counted(len(sample), (copy.wrong for copy in copies(sample))),
        hint="two matrices are one: a matrix is shared where it should not be",
        requires=need.SIDE_BY_SIDE,
    ),
    _check(
        name="netsor.lengths",
        rejects=Rejected.of(
            "matrix_std_5", "biased_matmuls", "fresh_matrices", "twice_as_wide", "wandering_scale", "equal_rows"
        ),
        null="squared lengths of products with new directions are χ² with as many degrees of freedom as matrix rows",
        alternative=of_law(),
        reads="Kolmogorov distance of squared lengths of products from their law:",
        family=lambda setting: Uniform(),
        measure=_lengths,
        hint="a matrix is drawn afresh where it should be shared, neurons depend on each other, or n is wrong",
        requires=need.SOME_MATRIX,
    ),
    between_calls(
        "images",
        lambda sample: sample.matmuls.mean_square(),
        CALLS,
        name="netsor.calls",
        claim="netsor",
        needs=ONE_WIDTH,
        requires=need.SOME_MATRIX,
        rejects=Rejected.of("matrices_of_a_call"),
    ),
)
