"""Simulators that draw from a law close to the correct one."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.laws import conditional_covariance
from attncheck.faults.fault import Drawn, Fault, corrupted, declared
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.kernel import input_kernel
from attncheck.layers.requirements import SMALL_HEADS, SMALL_WIDTH, OfLayer
from attncheck.methods import simulate
from attncheck.simulators.linalg import bartlett, eigen_root, gram_of, gram_root
from attncheck.simulators.literal import Projections, independent
from attncheck.simulators.weights import draw_with_weights
from attncheck.subject import collapsed
from attncheck.theory.limits.draw import draw_limit

# Number of draws from which the covariance of the Gaussian outputs is estimated.
_AVERAGED = 20_000
# Clipping bound of outputs, relative to the root mean square of the outputs of a call.
_CLIPPED_AT = 4.0
# Number of draws per block; each block starts from the same seed.
_PERIOD = 64


@functools.lru_cache(maxsize=64)
def _mean_root(layer: AttentionLayer) -> FloatArray:
    """Return a matrix F for which F Fᵀ is the covariance of one neuron's outputs at all positions."""
    return eigen_root(conditional_covariance(layer, simulate(layer, _AVERAGED)).mean(axis=0))


# With one position, the softmax weight is 1, so outputs do not depend on scores; those of narrow heads are a mixture
# over values.
_MIXED = OfLayer(
    "outputs that are a mixture",
    lambda layer: layer.seq_len > 1 or not layer.map.traits.sums_to_one or layer.head_width <= SMALL_WIDTH,
    f"there is one position only, and heads are wider than {SMALL_WIDTH}",
)


def _one_number(layer: AttentionLayer) -> bool:
    """Return whether all nonzero entries of the kernel of the inputs are equal, up to sign."""
    numbers = np.abs(input_kernel(layer).matrix)
    return np.unique(numbers[numbers != 0.0]).size <= 1


_STILL_GRAMS = (
    OfLayer("Gram matrices with one entry size", _one_number, "constant Gram matrices are rejected before any test")
    & SMALL_HEADS
)


FAULTS: list[Fault] = []


@declared(FAULTS, "outputs are Gaussian with the right covariance where their law is a mixture", _MIXED)
def _gaussian_outputs(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Replace the outputs by Gaussian vectors with the right covariance.

    The covariance is estimated as the mean, over many draws, of the covariance of the outputs given the scores.
    """
    drawn = collapsed(layer, size, rng)
    outputs = drawn["outputs"]
    return {**drawn, "outputs": _mean_root(layer) @ rng.standard_normal(outputs.shape)}


@declared(FAULTS, "the infinite-width limit is returned for a narrow layer", _STILL_GRAMS)
def _limit_as_finite(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw from the limit, and return the limits of the Gram matrices as the Gram matrices of every draw."""
    drawn = draw_limit(layer, size, min(layer.width, 2), rng).as_dict()
    kernel = input_kernel(layer).matrix
    per_head = np.broadcast_to(kernel, (size, layer.num_heads, *kernel.shape))
    grams = {"key_gram": layer.key_std**2 * per_head, "value_gram": layer.value_std**2 * per_head}
    return {**drawn, "input_gram": np.broadcast_to(kernel, (size, *kernel.shape)), **grams}


@declared(
    FAULTS, "Bartlett diagonals of keys and values have one degree of freedom too many", SMALL_HEADS, step="project"
)
def _bartlett_freedom(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Projections:
    """Draw keys and values from Bartlett factors with one degree of freedom too many on the diagonal."""
    root = gram_root(gram_of(inputs))[:, None]

    def project_groups(std: float) -> FloatArray:
        factor = bartlett(rng, (len(root), layer.kv_heads), layer.seq_len, layer.head_width)
        diagonal = np.arange(factor.shape[-1])
        more = rng.standard_normal((*factor.shape[:2], len(diagonal)))
        factor[..., diagonal, diagonal] = np.hypot(factor[..., diagonal, diagonal], more)
        # Zero columns do not affect scores and Gram matrices.
        missing = layer.head_width - len(diagonal)
        vectors = np.pad(std * root @ factor, [(0, 0)] * 3 + [(0, missing)])
        return np.repeat(vectors, layer.group_size, axis=1)

    projections = independent(layer, inputs, rng)
    keys, values = project_groups(layer.key_std), project_groups(layer.value_std)
    return dataclasses.replace(projections, keys=keys, values=values)


@declared(FAULTS, "the weights have a Student law of 5 degrees of freedom, with the declared variance", SMALL_HEADS)
def _student_weights(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    return draw_with_weights(layer, size, min(layer.width, 2), rng, "student5").as_dict()


@declared(FAULTS, "the second half of every call repeats the first")
def _copied_draws(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw half the requested draws and return them twice."""
    half = collapsed(layer, (size + 1) // 2, rng)
    return {name: np.concatenate([array, array])[:size] for name, array in half.items()}


@declared(FAULTS, f"every block of {_PERIOD} draws starts from the same seed")
def _repeated_stream(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Draw blocks, each from a generator with the same seed."""
    seed = int(rng.integers(2**63))
    blocks = [
        collapsed(layer, min(_PERIOD, size - start), np.random.default_rng(seed)) for start in range(0, size, _PERIOD)
    ]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


@corrupted(FAULTS, f"the outputs are clipped at {_CLIPPED_AT:g} standard deviations")
def _clipped_outputs(drawn: Drawn) -> Drawn:
    limit = _CLIPPED_AT * np.sqrt((drawn["outputs"] ** 2).mean())
    return {"outputs": np.clip(drawn["outputs"], -limit, limit)}


@corrupted(FAULTS, "the outputs grow by a tenth from the first draw of a call to its last")
def _growing_outputs(drawn: Drawn) -> Drawn:
    growing = np.linspace(1.0, 1.1, len(drawn["outputs"]))
    return {"outputs": growing[:, None, None] * drawn["outputs"]}
