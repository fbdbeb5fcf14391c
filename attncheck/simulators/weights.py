"""Draws of layers with non-Gaussian i.i.d. weights, or with biases."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_choice, check_number, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.layers.expansion import INPUT_WEIGHTS
from attncheck.layers.program import Weight
from attncheck.simulators.layers import draw_program
from attncheck.simulators.multipliers import DirectMultiplier, MatrixFreeMultiplier

Entries = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]

GAUSSIAN = "gaussian"
# Truncation point, and the variance of a standard normal law that is truncated there.
_CUT, _CUT_VARIANCE = 2.0, 0.7737413035760877


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return rng.uniform(-(3.0**0.5), 3.0**0.5, shape)


def _rademacher(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(2.0 * rng.integers(2, size=shape) - 1.0)


def _truncated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Draw normals truncated at two standard deviations and rescaled to variance 1, as common initialisers do."""
    entries = rng.standard_normal(shape)
    while (outside := np.abs(entries) > _CUT).any():
        entries[outside] = rng.standard_normal(int(outside.sum()))
    cut: FloatArray = entries / _CUT_VARIANCE**0.5
    return cut


def _student(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(rng.standard_t(5, shape) * 0.6**0.5)


#: Symmetric laws of mean 0 and variance 1; a subject declares one in its attribute ``weights``.
WEIGHT_LAWS: dict[str, Entries] = {
    GAUSSIAN: lambda rng, shape: rng.standard_normal(shape),
    "uniform": _uniform,
    "rademacher": _rademacher,
    "truncated normal": _truncated,
    "student5": _student,
}


# Prefixes of the names of a layer's matrices in its program, see `attncheck.layers.expansion`.
_MATRICES = {"query": "Q", "key": "K", "value": "V", "output": "O", "inputs": INPUT_WEIGHTS}
_OUTPUT, _BIAS = "output", "_bias"
_BIASED = {f"{name}{_BIAS}": name for name in _MATRICES if name != "inputs"}
_STDS = (1e-6, 1e6)


@dataclasses.dataclass(frozen=True)
class Bias:
    """A random vector that is added to all products of a matrix with vectors; each draw has another one.

    Attributes
    ----------
    matrix : {"query", "key", "value", "output"}
        Heads that share the matrix share the bias; tied queries use the keys' bias.
    law : str
        Key in `WEIGHT_LAWS`.
    std : float
        Standard deviation times √fan_in, where fan_in is the width or, for "output", the number of neurons of all
        heads together.
    """

    matrix: str
    law: str
    std: float

    @classmethod
    def of(cls, field: str, matrix: str, value: Any) -> Self:
        """Return the bias of a (law, standard deviation) pair, or raise `InputError`."""
        remedy = f"pass a pair: a law, and a standard deviation times √fan_in between {_STDS[0]:g} and {_STDS[1]:g}"
        remedy += ", e.g. ('uniform', 0.577), or leave it out"
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            refuse(field, value, "must be a pair", remedy)
        law = check_choice(f"{field}, law", value[0], tuple(WEIGHT_LAWS))
        std = check_number(f"{field}, std", value[1], remedy, minimum=_STDS[0], maximum=_STDS[1])
        return cls(matrix, law, std)

    def draw(self, rng: np.random.Generator, fan_in: int, shape: tuple[int, int]) -> FloatArray:
        """Draw biases, (draws, neurons)."""
        return np.asarray(self.std * fan_in**-0.5 * WEIGHT_LAWS[self.law](rng, shape))

    def __str__(self) -> str:
        return f"{self.matrix} {self.std:.3g} {self.law}"


@dataclasses.dataclass(frozen=True)
class WeightLaws:
    """Laws of the entries of a layer's matrices, as keys in `WEIGHT_LAWS`, and nonzero biases.

    Attributes
    ----------
    query, key, value, output, inputs : str
        `inputs` is the law of the W^i.
    biases : tuple of Bias

    Examples
    --------
    >>> print(WeightLaws.of("uniform"), "|", WeightLaws.of({"query": "uniform"}))
    uniform | uniform (query), gaussian (key, value, output, inputs)
    >>> print(WeightLaws.of({"key_bias": ("uniform", 3**-0.5)}))
    gaussian, biases (key 0.577 uniform)
    """

    query: str = GAUSSIAN
    key: str = GAUSSIAN
    value: str = GAUSSIAN
    output: str = GAUSSIAN
    inputs: str = GAUSSIAN
    biases: tuple[Bias, ...] = ()

    @classmethod
    def of(cls, value: Any, field: str = "weights") -> Self:
        """Return the laws from one name for all matrices, or from a mapping of matrices to names.

        Matrices that the mapping omits are Gaussian.

        A mapping may also contain "query_bias", "key_bias", "value_bias" and "output_bias", each with a pair of a law
        and a standard deviation times √fan_in. Unknown names raise `InputError`.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(**dict.fromkeys(_MATRICES, check_choice(field, value, tuple(WEIGHT_LAWS))), biases=())
        if not isinstance(value, Mapping):
            remedy = f"name a law, e.g. 'uniform', or map some of {', '.join(_MATRICES)} to laws"
            refuse(field, value, "is neither a name nor a mapping of matrices to names", remedy)
        for name in value:
            check_choice(f"{field}, matrix", name, (*_MATRICES, *_BIASED))
        laws = {
            name: check_choice(f"{field}[{name!r}]", law, tuple(WEIGHT_LAWS))
            for name, law in value.items()
            if name in _MATRICES
        }
        declared = ((name, matrix) for name, matrix in _BIASED.items() if name in value)
        biases = tuple(Bias.of(f"{field}[{name!r}]", matrix, value[name]) for name, matrix in declared)
        return cls(**laws, biases=biases)

    @classmethod
    def read(cls, text: str, field: str = "weights") -> Self:
        """Return the laws from command-line text, or raise `InputError`.

        Examples
        --------
        >>> print(WeightLaws.read("uniform"), "|", WeightLaws.read("query=uniform,key=student5").key)
        uniform | student5
        >>> print(WeightLaws.read("output_bias=uniform:0.577"))
        gaussian, biases (output 0.577 uniform)
        """
        if "=" not in text:
            return cls.of(text, field)
        pairs = [[part.strip() for part in pair.split("=", 1)] for pair in text.split(",")]
        names = [name for name, *_ in pairs]
        if twice := [name for name in names if names.count(name) > 1]:
            refuse(field, text, f"names {twice[0]} twice", "name each matrix once")
        return cls.of({name: _typed(*law) for name, *law in pairs}, field)

    @property
    def by_matrix(self) -> dict[str, str]:
        """The law of each matrix."""
        return {name: getattr(self, name) for name in _MATRICES}

    @property
    def gaussian(self) -> bool:
        """Whether all matrices are Gaussian and none has a bias."""
        return set(self.by_matrix.values()) == {GAUSSIAN} and not self.biases

    @property
    def biased(self) -> frozenset[str]:
        """The matrices that have a bias."""
        return frozenset(bias.matrix for bias in self.biases)

    @property
    def continuous(self) -> bool:
        """Whether all laws are continuous."""
        return "rademacher" not in self.by_matrix.values()

    def __str__(self) -> str:
        """Return the laws and biases."""
        laws, biases = self.by_matrix, ", ".join(map(str, self.biases))
        groups = {law: [name for name in laws if laws[name] == law] for law in laws.values()}
        alone = len(groups) == 1
        text = ", ".join(law if alone else f"{law} ({', '.join(names)})" for law, names in groups.items())
        return f"{text}, biases ({biases})" if biases else text


def _typed(law: str = "") -> str | tuple[str, float | str]:
    """Split command-line text into a law and, if it contains a colon, the number after the colon."""
    name, colon, number = law.partition(":")
    if not colon:
        return law
    try:
        return name, float(number)
    except ValueError:
        return name, number  # `Bias.of` raises the error for an invalid number


GAUSSIAN_LAWS = WeightLaws()


class _OtherWeights(DirectMultiplier):
    """Multiplies by matrices of given laws, and adds biases.

    Matrices of non-Gaussian laws are drawn explicitly. Products with Gaussian matrices are drawn without the matrices.
    """

    def __init__(self, width: int, rng: np.random.Generator, laws: WeightLaws) -> None:
        super().__init__(width, rng)
        self._laws = {_MATRICES[name]: law for name, law in laws.by_matrix.items()}
        self._biases = {_MATRICES[bias.matrix]: bias for bias in laws.biases if bias.matrix != _OUTPUT}
        self._gaussian = MatrixFreeMultiplier(width, rng)

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        first = weight.name[0]
        of_law = self._gaussian if self._laws[first] == GAUSSIAN else super().__call__
        image = of_law(weight, vectors, rows, last)
        if first not in self._biases:
            return image
        # A matrix with a bias is used in one call, for all positions, so its bias is drawn once per draw.
        bias = self._biases[first].draw(self._rng, vectors.shape[-1], (len(image), image.shape[-1]))
        return np.asarray(image + bias[:, None])

    def _draw(self, weight: Weight, size: int, last: bool) -> FloatArray:
        rows, columns = weight.shape(self._width)
        return WEIGHT_LAWS[self._laws[weight.name[0]]](self._rng, (size, columns, rows))


def draw_with_weights(
    layer: AttentionLayer,
    size: int,
    coordinates: int,
    rng: np.random.Generator,
    weights: str | Mapping[str, str] | WeightLaws,
) -> Draws:
    """Draw `layer` with explicit matrices and biases of the laws `weights`; see `WeightLaws.of`.

    Examples
    --------
    >>> draws = draw_with_weights(AttentionLayer(width=4), 10, 1, np.random.default_rng(0), "rademacher")
    >>> draws.outputs.shape
    (10, 4, 1)
    """
    laws = WeightLaws.of(weights)
    draws = draw_program(layer, size, coordinates, rng, functools.partial(_OtherWeights, laws=laws))
    for bias in laws.biases:
        if bias.matrix == _OUTPUT:
            added = bias.draw(rng, layer.num_heads * layer.head_width, (size, draws.outputs.shape[-1]))
            draws = dataclasses.replace(draws, outputs=draws.outputs + added[:, None])
    return draws
