"""Weights of another i.i.d. law: the limit is the same, what Gaussian weights make exact at finite width is lost."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import check_choice, refuse
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.expansion import INPUT_WEIGHTS
from attncheck.layers.program import Weight
from attncheck.simulators.direct import DirectMultiplier
from attncheck.simulators.draws import Draws
from attncheck.simulators.layers import draw_program
from attncheck.simulators.matrix_free import MatrixFreeMultiplier

FloatArray = NDArray[np.float64]
Entries = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]

GAUSSIAN = "gaussian"
# The variance of a standard normal cut at ±2.
_CUT, _CUT_VARIANCE = 2.0, 0.7737413035760877


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return rng.uniform(-(3.0**0.5), 3.0**0.5, shape)


def _rademacher(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(2.0 * rng.integers(2, size=shape) - 1.0)


def _truncated(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Cut at two standard deviations and rescaled, as in common initialisers."""
    entries = rng.standard_normal(shape)
    while (outside := np.abs(entries) > _CUT).any():
        entries[outside] = rng.standard_normal(int(outside.sum()))
    cut: FloatArray = entries / _CUT_VARIANCE**0.5
    return cut


def _student(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(rng.standard_t(5, shape) * 0.6**0.5)


#: Laws of mean 0, variance 1 and symmetric, by name; a subject declares one as its attribute ``weights``.
WEIGHT_LAWS: dict[str, Entries] = {
    GAUSSIAN: lambda rng, shape: rng.standard_normal(shape),
    "uniform": _uniform,
    "rademacher": _rademacher,
    "truncated normal": _truncated,
    "student5": _student,
}


# What the names of a layer's matrices begin with, as `attncheck.layers.expansion` writes them.
_MATRICES = {"query": "Q", "key": "K", "value": "V", "output": "O", "inputs": INPUT_WEIGHTS}


@dataclasses.dataclass(frozen=True)
class WeightLaws:
    """The law of the entries of each matrix of a layer, names in `WEIGHT_LAWS`.

    Attributes
    ----------
    query, key, value, output : str
    inputs : str
        That of the W^i, which make the inputs.

    Examples
    --------
    >>> print(WeightLaws.of("uniform"), "|", WeightLaws.of({"query": "uniform"}))
    uniform | uniform (query), gaussian (key, value, output, inputs)
    """

    query: str = GAUSSIAN
    key: str = GAUSSIAN
    value: str = GAUSSIAN
    output: str = GAUSSIAN
    inputs: str = GAUSSIAN

    @classmethod
    def of(cls, value: Any, field: str = "weights") -> Self:
        """Return the laws that a name says of all matrices, or a mapping of some of them; the others are Gaussian.

        Raises
        ------
        InputError
            If a matrix or a law is not known.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(*[check_choice(field, value, tuple(WEIGHT_LAWS))] * len(_MATRICES))
        if not isinstance(value, Mapping):
            remedy = f"name a law, e.g. 'uniform', or those of some of {', '.join(_MATRICES)}"
            refuse(field, value, "is neither a name nor a mapping of matrices to names", remedy)
        for name, law in value.items():
            check_choice(f"{field}, matrix", name, tuple(_MATRICES))
            check_choice(f"{field}[{name!r}]", law, tuple(WEIGHT_LAWS))
        return cls(**value)

    @classmethod
    def read(cls, text: str, field: str = "weights") -> Self:
        """Return the laws of a text that a person typed.

        Raises
        ------
        InputError
            If it cannot be read, or a matrix or a law is not known.

        Examples
        --------
        >>> print(WeightLaws.read("uniform"), "|", WeightLaws.read("query=uniform,key=student5").key)
        uniform | student5
        """
        if "=" not in text:
            return cls.of(text, field)
        pairs = [part.partition("=") for part in text.split(",")]
        return cls.of({name.strip(): law.strip() for name, _, law in pairs}, field)

    @property
    def gaussian(self) -> bool:
        """Whether all of them are."""
        return set(vars(self).values()) == {GAUSSIAN}

    @property
    def continuous(self) -> bool:
        """Whether no matrix has entries of a few values."""
        return "rademacher" not in vars(self).values()

    def __str__(self) -> str:
        """Return the names of the laws, each with its matrices where they differ."""
        laws = vars(self)
        if len(set(laws.values())) == 1:
            return self.query
        groups = {law: [name for name in laws if laws[name] == law] for law in laws.values()}
        return ", ".join(f"{law} ({', '.join(names)})" for law, names in groups.items())


#: The laws that are exact at finite width by formulas.
GAUSSIAN_LAWS = WeightLaws()


class _OtherWeights(DirectMultiplier):
    """Literal matrices with entries of given laws; Gaussian ones, exactly in law, without."""

    def __init__(self, width: int, rng: np.random.Generator, laws: WeightLaws) -> None:
        super().__init__(width, rng)
        self._laws = {_MATRICES[name]: law for name, law in vars(laws).items()}
        self._gaussian = MatrixFreeMultiplier(width, rng)

    def __call__(self, weight: Weight, vectors: FloatArray, rows: int, last: bool) -> FloatArray:
        if self._laws[weight.name[0]] == GAUSSIAN:
            return self._gaussian(weight, vectors, rows, last)
        return super().__call__(weight, vectors, rows, last)

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
    """Draw `layer` with literal matrices whose entries follow laws of `WEIGHT_LAWS`, scaled as declared.

    Parameters
    ----------
    layer : AttentionLayer
    size, coordinates : int
        Draws, and neurons of each.
    rng : numpy.random.Generator
    weights : str, mapping or WeightLaws
        The law of the entries of all matrices, or of each.

    Raises
    ------
    InputError
        If the law is not known.

    Examples
    --------
    >>> draws = draw_with_weights(AttentionLayer(width=4), 10, 1, np.random.default_rng(0), "rademacher")
    >>> draws.outputs.shape
    (10, 4, 1)
    """
    multiplier = functools.partial(_OtherWeights, laws=WeightLaws.of(weights))
    return draw_program(layer, size, coordinates, rng, multiplier)
