"""Residuals of programs that are exactly standard normal at every width.

Images and new directions are defined in ``attncheck.checks.programs.netsor``.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from attncheck._lib.arrays import BoolArray, FloatArray
from attncheck.checks.whitening import Residual, precision, spectrum, triangular
from attncheck.layers.program import Initial, MatMul, Node, Program, ProgramCase, Score, Weight
from attncheck.layers.program.extent import vectors_of
from attncheck.layers.program.nodes import defined_by

# Directions are dropped if their relative squared length is below eps^_LOST, with eps the rounding unit. The others
# have relative errors of eps^0.6: 4e-10 in double and 7e-5 in single precision.
_LOST = 0.4


@dataclasses.dataclass(frozen=True)
class Images:
    """The products of one matrix with vectors.

    `inputs` and `images` are the indices of the multiplied vectors and of the products among the program's vectors.
    """

    weight: Weight
    inputs: tuple[int, ...]
    images: tuple[int, ...]


def images_of(program: Program) -> tuple[Images, ...]:
    """Return the inputs and images of every nonzero matrix, in the order in which the program first uses them."""
    index = {node: k for k, node in enumerate(vectors_of(program))}
    uses: dict[Weight, list[MatMul]] = {}
    for node in program.nodes:
        if isinstance(node, MatMul) and node.weight.std > 0:
            uses.setdefault(node.weight, []).append(node)
    return tuple(
        Images(weight, tuple(index[node.parents[0]] for node in matmuls), tuple(index[node] for node in matmuls))
        for weight, matmuls in uses.items()
    )


def sequential_residual(images: Images, gram: FloatArray, vectors: FloatArray) -> Residual:
    """Return the products of a matrix with orthonormal new directions, (draws, uses, neurons), in order of use.

    They are in units of the standard deviation of the matrix, and exactly i.i.d. N(0, 1) under the null. `gram`,
    (draws, vectors, vectors), and `vectors`, (draws, vectors, neurons), hold all vectors of the program. Uses of the
    matrix without a new direction are dropped.
    """
    whitener = triangular(gram[:, images.inputs][:, :, images.inputs], precision(gram), _LOST)
    return whitener.whiten(vectors[:, images.images] / images.weight.std)


def image_coefficients(images: Images, gram: FloatArray) -> Residual:
    """Return the coefficients that express products with new directions by the program's vectors.

    Products are those of `sequential_residual`; the coefficients are (draws, uses, vectors).
    """
    count = gram.shape[1]
    return sequential_residual(images, gram, np.broadcast_to(np.eye(count), (len(gram), count, count)))


def sequential_lengths(images: Images, width: int, gram: FloatArray) -> Residual:
    """Return the squared lengths of the products with new directions in `sequential_residual`, (draws, uses).

    They are independent and χ² under the null, with as many degrees of freedom as the matrix has rows.
    """
    rows, residual = images.weight.shape(width)[0], image_coefficients(images, gram)
    values = rows * np.maximum(((residual.values @ gram) * residual.values).sum(axis=-1), 0.0)
    retained: BoolArray = np.asarray(residual.kept.any(axis=-1))
    return Residual(values, retained)


def initial_residual(program: Program, vectors: FloatArray) -> Residual:
    """Return the normals that generate the initial vectors, (draws, directions, neurons)."""
    index = {node: k for k, node in enumerate(vectors_of(program))}
    groups: dict[int, list[Initial]] = {}
    for node in program.nodes:
        if isinstance(node, Initial):
            groups.setdefault(node.group, []).append(node)
    parts = [np.zeros((len(vectors), 0, vectors.shape[-1]))]
    for group in groups.values():
        root = np.array([node.root for node in group])
        centred = vectors[:, [index[node] for node in group]] - np.array([node.mean for node in group])[:, None]
        lengths = (root**2).sum(axis=0)
        # Skip directions that consist of rounding errors.
        real = lengths > precision(vectors) ** _LOST * lengths.max(initial=0.0)
        parts.append(np.linalg.pinv(root[:, real]) @ centred)
    values = np.concatenate(parts, axis=1)
    return Residual(values, np.ones(values.shape, dtype=bool))


@dataclasses.dataclass(frozen=True)
class Sides:
    """The two vectors whose inner product is a score.

    Both vectors are products with a matrix. The score is conditioned on the vector `given`, while the matrix that gives
    the vector `free` is random.
    """

    free: MatMul
    given: MatMul

    @property
    def known(self) -> tuple[Node, ...]:
        """The vectors that are conditioned on: `given`, and the inputs of the matrices of both sides."""
        return self.given, self.free.parents[0], self.given.parents[0]


def conditioned_sides(program: Program) -> tuple[dict[Score, Sides], str]:
    """Choose which side of each score is free and which is given, so that scores are Gaussian given `known` vectors.

    No matrix may occur both in a free and in a given side, and no known vector may depend on a matrix of a free side.
    The returned text says why there is no such choice; it is empty if there is one.
    """
    scores = [node for node in program.nodes if isinstance(node, Score)]
    if not scores:
        return {}, "the program has no scores"
    weights = list(dict.fromkeys(weight for score in scores for weight in _weights(score)))
    if any(one is two for one, two in map(_weights, scores)):
        return {}, "a score has the same matrix on both sides"
    components = _components(weights, scores)
    if None in components:
        return {}, "the matrices of the scores form an odd cycle"
    chosen: dict[Score, Sides] = {}
    for component in filter(None, components):
        within = [score for score in scores if _weights(score)[0] in component]
        options = ({score: _sides(score, component[_weights(score)[0]] ^ flip) for score in within} for flip in (0, 1))
        chosen |= next((option for option in options if _free(program, option)), {})
    if len(chosen) < len(scores) or not _free(program, chosen):
        return {}, "an input of a score depends on a matrix of the scores"
    return chosen, ""


def _sides(score: Score, known_index: int) -> Sides:
    sides = score.parents[::-1] if known_index == 0 else score.parents
    return Sides(*(side for side in sides if isinstance(side, MatMul)))


def _weights(score: Score) -> tuple[Weight, Weight]:
    sides = _sides(score, 1)
    return sides.free.weight, sides.given.weight


def _components(weights: list[Weight], scores: list[Score]) -> list[dict[Weight, int] | None]:
    """Give each matrix one of two colours, such that the two matrices of a score differ in colour.

    There is one result for each connected component of the matrices; it is None if scores form a cycle of odd length.
    """
    components: list[dict[Weight, int] | None] = []
    remaining = list(weights)
    while remaining:
        colours = {remaining[0]: 0}
        grown, proper = True, True
        while grown:
            grown = False
            for one, two in itertools.chain.from_iterable((p, p[::-1]) for p in map(_weights, scores)):
                if one in colours and two not in colours:
                    colours[two], grown = 1 - colours[one], True
                proper &= not (one in colours and two in colours and colours[one] == colours[two])
        components.append(colours if proper else None)
        remaining = [weight for weight in remaining if weight not in colours]
    return components


def _free(program: Program, sides: dict[Score, Sides]) -> bool:
    """Return whether the known vectors of all scores are independent of the matrices of the free sides."""
    random = {side.free.weight for side in sides.values()}
    dependents = defined_by(program.nodes, lambda node: isinstance(node, MatMul) and node.weight in random)
    return not any(node in dependents for side in sides.values() for node in side.known)


def score_residual(case: ProgramCase, sides: dict[Score, Sides], gram: FloatArray, scores: FloatArray) -> Residual:
    """Return the scores whitened by their covariance, given the vectors: exactly i.i.d. N(0, 1), (draws, scores).

    Consider two scores (W x)·b/√ν and (W x')·b'/√ν with the same matrix W of entries N(0, σ²/n). Given b and b', their
    covariance is σ² (x·x'/n)(b·b'/ν). This is formula (*) of the paper with averages in place of expectations.
    """
    side = spectrum(conditional_on_one_side(case, sides, gram), precision(gram))
    # Eigenvectors have arbitrary signs; fix them so that dependence on vectors shows.
    sign = np.where(side.root.sum(axis=-2) < 0, -1.0, 1.0)
    return Residual(sign * (side.inverse_root.swapaxes(-1, -2) @ scores[..., None])[..., 0], side.kept)


def conditional_on_one_side(case: ProgramCase, sides: dict[Score, Sides], gram: FloatArray) -> FloatArray:
    """Return the covariance of the scores, (draws, scores, scores), given the `known` vectors of all scores."""
    index = {node: k for k, node in enumerate(vectors_of(case.program))}
    covariance = np.zeros((len(gram), len(case.scores), len(case.scores)))
    for i, one in enumerate(case.scores):
        for k, two in enumerate(case.scores):
            mine, theirs = sides[one], sides[two]
            # Products with different matrices are independent.
            if mine.free.weight is theirs.free.weight:
                factor = one.factor * two.factor * mine.free.weight.std**2
                inputs = gram[:, index[mine.free.parents[0]], index[theirs.free.parents[0]]]
                covariance[:, i, k] = factor * (inputs * gram[:, index[mine.given], index[theirs.given]])
    return covariance
