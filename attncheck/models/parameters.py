"""Statistics of each parameter of a model, within one false-alarm budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.frameworks import laws
from attncheck.frameworks.framework import Parameter
from attncheck.frameworks.laws import CONSTANT, FALSE_ALARM, ORTHOGONAL, UNKNOWN, ScaleEstimate

# Number of statistics per parameter that share the false-alarm probability: standard deviation, mean, law and
# orthogonality.
_STATISTICS = 4
NOT_INITIALISED, NOT_FINITE = "not initialised", "NaN or infinite entries"
NEVER_DRAWN, FIXED, NOT_USED = "never drawn", "the same in every draw", "not used"
# Entries look random only if there are at least this many, at least this fraction of them are distinct, and no test
# of randomness has a smaller p-value.
_FEWEST, _DISTINCT, _UNLIKELY = 32, 0.9, 0.01
# Number of entries used to test laws; more make no difference.
_ENOUGH = 2**14
# Common standard deviations of an entry that do not depend on the width.
_CHOSEN = (0.01, 0.02, 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class ParameterStatistics:
    """Estimate of a parameter's initialiser; all intervals of a table hold jointly with probability 1 - 1e-6.

    Attributes
    ----------
    name, shape, owner, fans, default, tied
        As in `Parameter`.
    laws : tuple of str
        The laws not rejected among normal, uniform and truncated normal; or orthogonal, constant, none known.
    scale : ScaleEstimate
        Standard deviation of an entry with its interval.
    mean, mean_error : float
        Mean of an entry, or the value of a constant; it is known up to `mean_error`.
    orthogonality_known : bool
        Whether the entries suffice to distinguish an orthogonal matrix from a random one.
    matches : tuple of str
        Known initialisers that fit.
    notes : tuple of str
        "not initialised", "never drawn", "tied to X", "not used", ...
    """

    name: str
    shape: tuple[int, ...]
    owner: str
    fans: tuple[int, int] | None
    default: tuple[str, float] | None
    tied: tuple[str, ...]
    laws: tuple[str, ...]
    scale: ScaleEstimate
    mean: float
    mean_error: float
    orthogonality_known: bool = False
    matches: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def constant(self) -> bool:
        """Whether every entry is the same."""
        return self.laws == (CONSTANT,)

    @property
    def law(self) -> str:
        """The laws not rejected, or the constant, as text."""
        if not self.constant:
            return " or ".join(self.laws)
        named = {0.0: "zeros", 1.0: "ones"}
        return named.get(self.mean, f"constant {self.mean:.4g}")

    @property
    def mean_bounds(self) -> tuple[float, float]:
        """Interval of the mean."""
        if not math.isfinite(self.mean_error):
            return -math.inf, math.inf
        return self.mean - self.mean_error, self.mean + self.mean_error

    @property
    def keeps_default(self) -> bool:
        """Whether law, scale and mean are those of the owner's default initialiser."""
        if self.default is None or abs(self.mean) > self.mean_error:
            return False
        law, std = self.default
        return law in self.laws and self.scale.holds(std)


def indices_of(size: int, most: int) -> slice | NDArray[np.intp]:
    """Return indices of at most `most` entries, the same for all arrays of one size.

    Examples
    --------
    >>> indices_of(10, 100), indices_of(1000, 100).size <= 100
    (slice(None, None, None), True)
    """
    if size <= most:
        return slice(None)
    return np.unique(np.random.default_rng(size).integers(size, size=most))


#: Estimate of an unknown scale.
_NOTHING = ScaleEstimate(math.nan, 0.0, math.inf)
_Estimates = tuple[str, tuple[str, ...], ScaleEstimate, float, float]


def statistics_of(parameters: Sequence[Parameter]) -> list[ParameterStatistics]:
    """Return the statistics of all parameters of a model.

    Examples
    --------
    >>> entries = tuple(0.02 * np.random.default_rng(0).standard_normal((4, 8192)))
    >>> (row,) = statistics_of([Parameter("wte.weight", (512, 64), "Embedding", None, entries)])
    >>> print(f"{row.law}, std {row.scale.std:.3f}", *row.matches)
    normal, std 0.020 normal(0.02)
    """
    level = FALSE_ALARM / (_STATISTICS * max(len(parameters), 1))
    return [_row(parameter, level) for parameter in parameters]


def _row(parameter: Parameter, level: float) -> ParameterStatistics:
    """Return the statistics of one parameter.

    The error probability of each of its tests and intervals is at most `level`.
    """
    z = float(-special.ndtri(level / 2))
    state, law_names, scale, mean, error = _estimates(parameter, level, z)
    p, known = parameter, _shows_orthogonality(parameter, z)
    row = ParameterStatistics(
        p.name, p.shape, p.owner, p.fans, p.default, p.tied, law_names, scale, mean, error, orthogonality_known=known
    )
    tied = tuple(f"tied to {name}" for name in parameter.tied)
    notes = (*((state,) if state else ()), *tied, *((NOT_USED,) if parameter.used is False else ()))
    return dataclasses.replace(row, matches=_matches(row), notes=notes)


def _estimates(parameter: Parameter, level: float, z: float) -> _Estimates:
    """Return a problem of a parameter's entries (or ""), their laws, scale and mean, and the error of the mean.

    `level` is the error probability of tests and intervals, and `z` the two-sided normal quantile at this level.
    """
    if not parameter.initialised:
        return NOT_INITIALISED, (UNKNOWN,), _NOTHING, math.nan, math.inf
    first = parameter.entries[0]
    x = np.concatenate(parameter.entries)
    if not np.isfinite(x).all():
        return NOT_FINITE, (UNKNOWN,), _NOTHING, math.nan, math.inf
    if x.size and np.ptp(x) <= 4 * parameter.precision * np.abs(x).max():
        value = float(x[0])
        # A single entry does not show that a projection is constant, unless it is 0 or 1.
        if x.size > 1 or value in (0.0, 1.0) or parameter.fans is None:
            return "", (CONSTANT,), ScaleEstimate(0.0, 0.0, 0.0), value, 4 * parameter.precision * abs(value)
    same = len(parameter.entries) > 1 and all(np.array_equal(first, draw) for draw in parameter.entries[1:])
    x = first if same else x
    if x.size < 2:
        return FIXED if same else "", (UNKNOWN,), _NOTHING, math.nan, math.inf
    mean = float(x.mean())
    lost = math.sqrt(x.size / (x.size - 1))
    deviations = (x - mean) * lost
    scale = laws.scale_of(deviations, z * lost)
    law_names = laws.laws_of(deviations[:: -(-x.size // _ENOUGH)], scale, parameter.precision, level=level)
    if same:
        return NEVER_DRAWN if _looks_random(x, parameter.precision) else FIXED, law_names, scale, mean, 0.0
    if _shows_orthogonality(parameter, z) and laws.orthogonal(first.reshape(parameter.shape), z):
        law_names = (ORTHOGONAL,)
    # If there is only one draw, entries that follow no known law may be a table that is never drawn.
    state = FIXED if law_names == (UNKNOWN,) and len(parameter.entries) == 1 else ""
    return state, law_names, scale, mean, z * scale.high / math.sqrt(x.size)


def _shows_orthogonality(parameter: Parameter, z: float) -> bool:
    """Return whether the entries are a whole projection with enough rows and columns for `laws.orthogonal`."""
    if parameter.fans is None or len(parameter.shape) != 2 or not parameter.entries:
        return False
    return parameter.entries[0].size == math.prod(parameter.shape) and min(parameter.shape) > 2 * z


def _looks_random(x: FloatArray, precision: float) -> bool:
    """Return whether entries look like independent draws from a known law of mean 0, unlike a table of sinusoids.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal(64)
    >>> _looks_random(x, 2.0**-24), _looks_random(np.sin(np.arange(64.0)), 2.0**-24)
    (True, False)
    """
    if x.size < _FEWEST or np.unique(x).size < _DISTINCT * x.size:
        return False
    z = float(-special.ndtri(_UNLIKELY / 2))
    scale = laws.scale_of(x, z)
    if laws.laws_of(x, scale, precision, level=_UNLIKELY) == (UNKNOWN,) or laws.off_centre(x, scale, z):
        return False
    # Fisher's test of the largest periodogram ordinate rejects sinusoids.
    power = np.abs(np.fft.rfft(x)[1:]) ** 2
    return bool(power.size * (1 - power.max() / power.sum()) ** (power.size - 1) > _UNLIKELY)


def _matches(row: ParameterStatistics) -> tuple[str, ...]:
    """Return the known initialisers that fit a parameter."""
    unclear = row.laws in ((CONSTANT,), (UNKNOWN,)) or not math.isfinite(row.scale.high)
    if unclear or abs(row.mean) > row.mean_error:
        return ()
    known: list[str] = []
    if row.fans is not None:
        relative = row.scale.times(math.sqrt(row.fans[0]))
        # The last convention, a standard deviation that does not depend on the width, is left out here. It is added
        # below, together with its law.
        known += laws.known_by(relative, laws.conventions(*row.fans, 0)[:-1])
    if row.keeps_default:
        known.append(f"default of {row.owner}")
    known += [f"{row.laws[0]}({std:g})" for std in _CHOSEN if row.scale.holds(std)]
    return tuple(known)
