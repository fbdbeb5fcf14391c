"""Random Gram matrices that, with score normals, determine a conditional variance (`Drivers`).

Given the inputs X, the keys and values of a head affect one output or score only through G = X Xᵀ/n of the visible
positions and two Wishart matrices divided by ν, one for keys and one for values. If no other head shares them, a χ²_ν/ν
variable replaces each Wishart matrix. At infinite width, G is K and the others are the identity or 1.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import linalg

from attncheck._lib.arrays import FloatArray, slices
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import image_kernel, image_mean, input_covariance, psd_root
from attncheck.layers.norm import with_ones
from attncheck.simulators.collapsed import draw_images
from attncheck.simulators.linalg import bartlett
from attncheck.theory.limits.rows import normal_points

# Maximum number of entries of the inputs X in memory.
_CACHED_ENTRIES = 2**21
# Number of Gauss nodes for the law of ‖h‖²/n in fourth moments; number of nodes in means; and number of points of h^i
# for each node.
_RADII = 8
_RADII_OF_MEAN = 24
_POINTS = 2**12
# Maximum number of array entries per block.
_BLOCK = 2**21


@dataclasses.dataclass(frozen=True, eq=False)
class Drivers:
    """Random Gram matrices that determine conditional variances, or the deviations of these matrices from their limits.

    Attributes
    ----------
    gram : ndarray, shape (draws, m, m)
        Gram matrices G of the inputs before normalisation; for layer norm, with a vector of ones as one more input.
    keys : ndarray, shape (draws, points or 1, groups) or (draws, groups, m, m)
        Random factors of the keys. If each head has separate keys, they are variables χ²_ν/ν, with ν the neurons per
        head; if heads share keys, they are Wishart matrices divided by ν.
    values : ndarray, shape of `keys`
        The same for the values.
    """

    gram: FloatArray
    keys: FloatArray
    values: FloatArray

    def __len__(self) -> int:
        return len(self.gram)

    def mapped(self, change: Callable[..., FloatArray], *operands: Drivers) -> Drivers:
        """Apply `change` to each of the three arrays, with the corresponding arrays of `operands` as arguments."""
        return Drivers(*map(change, *((operand.gram, operand.keys, operand.values) for operand in (self, *operands))))

    def __getitem__(self, chosen: slice) -> Drivers:
        """Return a slice of the draws; an array with a single draw, which stands for all, is returned whole."""
        return self.mapped(lambda values: values if len(values) == 1 else values[chosen])

    def moved(self, deviations: Drivers, steps: FloatArray) -> Drivers:
        """Return the Gram matrices of this single draw plus `steps` times each draw of the deviations."""

        def along(values: FloatArray, deviation: FloatArray) -> FloatArray:
            return np.asarray(values + steps.reshape(-1, *(1,) * (deviation.ndim - 1)) * deviation)

        return self.mapped(along, deviations)


@dataclasses.dataclass(frozen=True)
class Fluctuations:
    """Law of a layer's Gram matrices (`Drivers`), with draws, limits, and moments of deviations from the limits.

    `positions` are the m visible positions. `groups` is the number of groups of heads; if `shared`, the heads of a
    group share keys and values. If the width is `infinite`, only the factors of keys and values are random, and the
    Gram matrix G of the inputs is constant. With `still_heads`, only G is random.
    """

    layer: AttentionLayer
    positions: tuple[int, ...]
    shared: bool
    groups: int
    infinite: bool = False
    still_heads: bool = False

    @functools.cached_property
    def limits(self) -> Drivers:
        """Gram matrices in the limit, as one draw."""
        kernel = self._kernel(np.ones(1))
        m = len(self.positions)
        heads = np.broadcast_to(np.eye(m), (1, self.groups, m, m)) if self.shared else np.ones((1, 1, self.groups))
        return Drivers(kernel, heads, heads)

    @property
    def still(self) -> Drivers:
        """Deviations of 0, as one draw."""
        return self.limits.mapped(np.zeros_like)

    def draw(self, size: int, rng: np.random.Generator) -> Drivers:
        """Draw deviations of the Gram matrices from their limits."""
        limits = self.limits
        gram = np.zeros((size, *limits.gram.shape[1:])) if self.infinite else self._grams(size, rng) - limits.gram
        if self.still_heads:
            still = np.zeros((size, *limits.keys.shape[1:]))
            return Drivers(gram, still, still)
        heads = [self._head_factors(size, rng) for _ in range(2)]
        return Drivers(gram, heads[0] - limits.keys, heads[1] - limits.values)

    def _grams(self, size: int, rng: np.random.Generator) -> FloatArray:
        layer = self.layer
        step = max(1, _CACHED_ENTRIES // (layer.seq_len * layer.width))
        parts = []
        for start in range(0, size, step):
            images = with_ones(layer.norm, draw_images(layer, min(step, size - start), rng)[:, self.positions])
            parts.append(images @ images.swapaxes(-1, -2) / layer.width)
        return np.concatenate(parts)

    def _head_factors(self, size: int, rng: np.random.Generator) -> FloatArray:
        dof = self.layer.head_width
        if not self.shared:
            return rng.chisquare(dof, (size, 1, self.groups)) / dof
        factor = bartlett(rng, (size, self.groups), len(self.positions), dof)
        return np.asarray(factor @ factor.swapaxes(-1, -2) / dof)

    def _kernel(self, radii: FloatArray) -> FloatArray:
        """Return E[G] given each value of ‖h‖²/n in `radii`, (radii, m, m); for layer norm, m + 1 replaces m."""
        phi = self.layer.phi
        covariances = [self._covariance(radius) for radius in radii]
        kernels = np.stack([image_kernel(phi, covariance).matrix for covariance in covariances])
        if self.layer.norm != "layer":
            return kernels
        return _bordered(kernels, image_mean(phi, np.stack([np.diagonal(covariance) for covariance in covariances])))

    def _covariance(self, radius: float) -> FloatArray:
        """Return Cov(h^i + e^i) given ‖h‖²/n = `radius`, (m, m)."""
        return input_covariance(self.layer, radius)[np.ix_(self.positions, self.positions)]

    def _hidden(self, radii: FloatArray, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Yield points of h^i + e^i at the m positions, (points, m), for each value of ‖h‖²/n in `radii`."""
        if self.layer.position_std:
            normals = normal_points(len(self.positions), rng)(_POINTS)
            # The root has full size, as the rank may change with the radius.
            yield from (normals @ symmetric_root(self._covariance(radius)) for radius in radii)
        else:
            root = psd_root(self._covariance(1.0))
            normals = normal_points(root.shape[1], rng)(_POINTS) @ root.T
            yield from (math.sqrt(radius) * normals for radius in radii)

    @functools.cached_property
    def mean(self) -> Drivers:
        """Mean deviations of the Gram matrices from their limits, as one draw; nonzero only for G."""
        if self.infinite:
            return self.still
        radii, weights = gamma_rule(0.5 * self.layer.width, _RADII_OF_MEAN)
        gram = np.einsum("r,rij->ij", weights, self._kernel(radii) - self.limits.gram)[None]
        return dataclasses.replace(self.still, gram=gram)

    def gram_directions(self, rng: np.random.Generator) -> FloatArray:
        """Return matrices D_k with Σ_k D_k ⊗ D_k = E[(G - K) ⊗ (G - K)], (directions, m, m).

        The expectation is computed with Sobol points.
        """
        phi, limits = self.layer.phi, self.limits
        m = limits.gram.shape[-1]
        if self.infinite:
            return np.zeros((0, m, m))
        above = np.triu_indices(m)
        radii, weights, kernels = self._kernels_by_radius
        second = np.zeros((len(above[0]), len(above[0])))
        for points, weight, kernel in zip(self._hidden(radii, rng), weights, kernels, strict=True):
            images = with_ones(self.layer.norm, phi(points).T).T
            second += weight / self.layer.width * _product_covariance(images, kernel)
            change = (kernel - limits.gram[0])[above]
            second += weight * np.outer(change, change)
        root = psd_root(second, rtol=1e-10)
        directions = np.zeros((root.shape[1], m, m))
        directions[:, above[0], above[1]] = root.T
        directions[:, above[1], above[0]] = root.T
        return directions

    @functools.cached_property
    def _kernels_by_radius(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Quadrature nodes and weights for ‖h‖²/n, and E[G] given each node."""
        radii, weights = gamma_rule(0.5 * self.layer.width, _RADII)
        return radii, weights, self._kernel(radii)

    def head_directions(self, points: int) -> tuple[FloatArray, float]:
        """Return directions of the deviations of the keys (or values) of one group of heads, and the number of groups.

        The values of Q in these directions, summed and multiplied by the number of groups, give the part of the mean of
        Q that is due to the keys (or values). If heads have separate keys, there is a single direction, in which
        successive points change the factors of successive groups.
        """
        dof, m = self.layer.head_width, len(self.positions)
        if self.still_heads:
            return np.zeros((0, *self.limits.keys.shape[1:])), 0.0
        if not self.shared:
            directions = np.zeros((1, points, self.groups))
            which = np.arange(points)
            directions[0, which, which % self.groups] = math.sqrt(2.0 / dof)
            return directions, float(self.groups)
        rows, columns = np.triu_indices(m)
        index = np.arange(len(rows))
        deviations = np.zeros((len(rows), self.groups, m, m))
        sizes = np.sqrt(np.where(rows == columns, 2.0, 1.0) / dof)
        deviations[index, 0, rows, columns] = deviations[index, 0, columns, rows] = sizes
        return deviations, float(self.groups)

    def sizes(self, deviations: Drivers) -> FloatArray:
        """Return the largest absolute eigenvalue of the deviations of each draw, relative to the limits, (draws,)."""
        inverse = self._whitening
        largest = np.abs(np.linalg.eigvalsh(inverse @ deviations.gram @ inverse)).max(axis=-1)
        for heads in (deviations.keys, deviations.values):
            sizes = np.abs(np.linalg.eigvalsh(heads)) if self.shared else np.abs(heads)
            largest = np.maximum(largest, sizes.reshape(len(heads), -1).max(axis=1))
        return np.asarray(largest)

    @functools.cached_property
    def _whitening(self) -> FloatArray:
        """K^{-1/2}, on the range of K."""
        return np.asarray(linalg.pinvh(symmetric_root(self.limits.gram)[0], rtol=1e-9))


def _bordered(matrices: FloatArray, means: FloatArray) -> FloatArray:
    """Append a row and a column of `means`, (..., m), to matrices, (..., m, m), with 1 in the corner."""
    bordered = np.ones((*matrices.shape[:-2], matrices.shape[-2] + 1, matrices.shape[-1] + 1))
    bordered[..., :-1, :-1], bordered[..., -1, :-1], bordered[..., :-1, -1] = matrices, means, means
    return bordered


def _product_covariance(inputs: FloatArray, kernel: FloatArray) -> FloatArray:
    """Return Cov(x_i x_j, x_k x_l) for all i ≤ j and k ≤ l.

    `inputs` are points of x, and `kernel` contains its second moments.
    """
    above = np.triu_indices(len(kernel))
    mean = kernel[above]
    total = np.zeros((len(mean), len(mean)))
    for part in slices(len(inputs), _BLOCK // len(mean)):
        block = inputs[part]
        products = block[:, above[0]] * block[:, above[1]] - mean
        total += products.T @ products
    return np.asarray(total / len(inputs))


def gamma_rule(shape: float, count: int) -> tuple[FloatArray, FloatArray]:
    """Return Gauss nodes and weights for the law of g/shape with g ~ Gamma(shape); with shape ν/2 this is χ²_ν/ν.

    Computed by the Golub–Welsch algorithm, which is stable for any shape.

    Examples
    --------
    >>> nodes, weights = gamma_rule(5e5, 8)
    >>> abs(weights @ nodes - 1) < 1e-12, abs(weights @ (nodes - 1) ** 2 * 5e5 - 1) < 1e-6
    (np.True_, np.True_)
    """
    order = np.arange(count)
    diagonal = 2.0 * order / shape
    off_diagonal = np.sqrt(order[1:] * (order[1:] + shape - 1.0)) / shape
    # The eigenvalues are the nodes minus 1, which are computed more precisely than the nodes.
    nodes, vectors = linalg.eigh_tridiagonal(diagonal, off_diagonal)
    return np.asarray(1.0 + nodes), np.asarray(vectors[0] ** 2)


def symmetric_root(gram: FloatArray) -> FloatArray:
    """Return the symmetric square root of positive semi-definite matrices (..., m, m), a smooth function of them."""
    values, vectors = np.linalg.eigh(gram)
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]) @ vectors.swapaxes(-1, -2))
