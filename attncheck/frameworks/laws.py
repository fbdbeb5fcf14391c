"""Tests of a matrix's entries: scale, law and repetitions, within one false-alarm budget."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.evidence.distances import band, one_sample_distance

#: False-alarm probability of an inspection, and the number of statistics that share it.
FALSE_ALARM, NUMBERS = 1e-6, 150
LEVEL = FALSE_ALARM / NUMBERS
#: Two-sided normal quantile at the level `LEVEL`.
Z = float(-special.ndtri(LEVEL / 2))
# Maximum number of entries used to test laws. More would not help, and would reject true laws because of rounding.
_MOST = 2**16
# Standard deviation of a normal law with standard deviation 1 that is truncated at ±2.
_CUT = math.sqrt(1.0 - 4.0 * math.exp(-2.0) / math.sqrt(2.0 * math.pi) / (1.0 - 2.0 * float(special.ndtr(-2.0))))
# Minimum number of entries whose squares suffice to estimate the variance of a square.
_FEW = 4096
# Quadrature nodes and grid points for the law of entries minus their mean.
_NODES, _GRID = 60, 4001
# Columns count as orthogonal if their mean squared product is less than this fraction of that of independent columns.
_OVERLAP = 0.5


@dataclasses.dataclass(frozen=True)
class Law:
    """Symmetric law of unit variance.

    `crowding` is the maximum of |x| times the density. A relative error of x changes the cdf by at most that error
    times `crowding`.
    """

    name: str
    cdf: Callable[[FloatArray], FloatArray]
    crowding: float


def _uniform(x: FloatArray) -> FloatArray:
    return np.clip(x / math.sqrt(12) + 0.5, 0, 1)


def _truncated(x: FloatArray) -> FloatArray:
    tail = special.ndtr(-2)
    return np.clip((special.ndtr(np.clip(x * _CUT, -2, 2)) - tail) / (1 - 2 * tail), 0, 1)


LAWS = (
    Law("normal", special.ndtr, 0.242),
    Law("uniform", _uniform, 0.5),
    Law("truncated normal", _truncated, 0.254),
)
ORTHOGONAL, CONSTANT, UNKNOWN = "orthogonal", "constant", "none known"
_TRUNCATED = LAWS[2].name
#: Names of scales of an initialiser that takes another number for the fan-in; JAX's do so for (width, heads, head_dim).
MISTAKEN = (
    "1/head_dim (fan_in taken to be head_dim)",
    "1/(heads fan_in) (fan_in taken to be heads fan_in)",
)


@dataclasses.dataclass(frozen=True)
class ScaleEstimate:
    """Standard deviation with an interval.

    With probability 1 - `FALSE_ALARM`, all intervals of an inspection contain the true values.
    """

    std: float
    low: float
    high: float

    def times(self, factor: float) -> ScaleEstimate:
        """Return the estimate multiplied by a factor."""
        return ScaleEstimate(self.std * factor, self.low * factor, self.high * factor)

    def holds(self, std: float) -> bool:
        """Return whether the interval contains a standard deviation."""
        return self.low <= std <= self.high


def scale_of(entries: FloatArray, z: float = Z) -> ScaleEstimate:
    """Return the root mean square of independent entries of mean 0, with an interval.

    The interval is ± z standard errors of the cube root of the mean square, which is almost normal (Wilson–Hilferty).
    The interval is accurate even for few normal entries, and too wide for bounded ones.

    Examples
    --------
    >>> scale = scale_of(np.random.default_rng(0).standard_normal(10_000))
    >>> print(f"{scale.std:.2f} from {scale.low:.2f} to {scale.high:.2f}")
    1.00 from 0.96 to 1.04
    """
    squares = entries.ravel() ** 2
    mean = float(squares.mean())
    if mean == 0.0:
        return ScaleEstimate(0.0, 0.0, 0.0)
    spread = float(squares.var()) / mean**2
    # If there are too few squares to estimate their relative variance, it is assumed to be at least 2, as for normal
    # entries; squares of bounded entries vary less.
    cube = (spread if squares.size >= _FEW else max(spread, 2.0)) / (9 * squares.size)
    low, high = (1 - cube + sign * z * math.sqrt(cube) for sign in (1, -1))
    std = math.sqrt(mean)
    return ScaleEstimate(std, std / low**1.5, std / high**1.5 if high > 0 else math.inf)


def laws_of(
    entries: FloatArray, scale: ScaleEstimate, precision: float, lost: float = 0.0, level: float = LEVEL
) -> tuple[str, ...]:
    """Return the names of the laws that neither the Kolmogorov distance nor the largest entry rejects.

    `scale` is the estimated scale of the entries, `precision` their unit roundoff, and `level` the probability of
    rejecting the true law. If the mean of n entries was subtracted, `lost` is 1/n, the lost fraction of the variance.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> for entries in (
    ...     rng.standard_normal(4096),
    ...     rng.uniform(-1, 1, 4096),
    ...     np.full(9, 0.5),
    ...     rng.choice([-1.0, 1.0], 999),
    ... ):
    ...     print(*laws_of(entries, scale_of(entries), 2.0**-24))
    normal
    uniform
    constant
    none known
    """
    x = entries.ravel()
    if np.ptp(x) <= 4 * precision * np.abs(x).max():
        return (CONSTANT,)
    x = np.sort(x[:: -(-x.size // _MOST)]) / scale.std
    relative = (scale.high - scale.low) / (2 * scale.std) + 4 * precision
    tried = [_less_mean(law, lost) if lost else law for law in LAWS]
    names = [law.name for law in tried if not _refused(x, law, relative, precision, level)]
    return tuple(names) or (UNKNOWN,)


def _less_mean(law: Law, lost: float) -> Law:
    """Return the law of an entry minus the mean of n = 1/`lost` entries, scaled to unit variance.

    The law of the mean is approximated by a normal law.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    law_std, normal_std = math.sqrt(1 - lost), math.sqrt(lost)

    def cdf(x: FloatArray) -> FloatArray:
        grid = np.linspace(-6, 6, _GRID)
        mixed = law.cdf((grid[:, None] - normal_std * nodes) / law_std) @ (weights / weights.sum())
        return np.asarray(np.interp(x, grid, mixed))

    return dataclasses.replace(law, cdf=cdf)


def _refused(x: FloatArray, law: Law, relative: float, precision: float, level: float) -> bool:
    """Return whether sorted entries x reject a law of unit variance at `level`.

    The entries were scaled to unit variance. `relative` is the relative error of the scale, and `precision` the unit
    roundoff of the entries.
    """
    largest, size = float(max(-x[0], x[-1])), x.size
    inner = float(2 * law.cdf(np.array(largest * (1 + relative))) - 1)
    outer = float(2 * law.cdf(np.array(-largest * (1 - relative))))
    too_small = size * math.log(max(inner, 1e-300)) < math.log(level / 3)
    too_large = outer * size < level / 3
    if too_small or too_large:
        return True
    # The Dvoretzky–Kiefer–Wolfowitz inequality, valid for any number of entries.
    return one_sample_distance(law.cdf(x)) - 2 * precision * law.crowding > band(size, level / 3)


def orthogonal(matrix: FloatArray, z: float = Z) -> bool:
    """Return whether the columns of a matrix, or its rows if fewer, are significantly orthogonal.

    For c independent columns of r entries with variance σ², the mean over pairs of columns of their squared product,
    divided by r σ⁴, has mean 1 and a standard deviation of about 2/c. The columns are orthogonal if it is smaller than
    1 by `z` standard deviations, and smaller than `_OVERLAP`.

    Examples
    --------
    >>> normal = np.random.default_rng(0).standard_normal((64, 64))
    >>> orthogonal(normal), orthogonal(np.linalg.qr(normal)[0])
    (False, True)
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    rows, columns = tall.shape
    square = float(np.mean(tall**2))
    if columns < 2 or square == 0.0:
        return False
    products = (tall.T @ tall)[np.triu_indices(columns, 1)]
    overlap = float(np.mean(products**2)) / (rows * square**2)
    return bool(overlap < _OVERLAP and (overlap - 1) * columns / 2 < -z)


def correlation(first: FloatArray, second: FloatArray) -> float:
    """Return the correlation of the entries of two arrays of mean 0; 0 for zeros."""
    norm = math.sqrt(float(np.sum(first**2) * np.sum(second**2)))
    return float(np.sum(first * second)) / norm if norm else 0.0


def correlated(first: FloatArray, second: FloatArray) -> float:
    """Return the correlation of the entries of two arrays, or 0 if chance explains it."""
    r = correlation(first, second)
    return r if abs(r) * math.sqrt(first.size) > Z else 0.0


def off_centre(entries: FloatArray, scale: ScaleEstimate, z: float = Z) -> bool:
    """Return whether the mean of independent entries differs from 0 by more than `z` standard errors.

    The standard error is computed from the upper end of `scale`, the estimated standard deviation of the entries.
    """
    return abs(float(entries.mean())) * math.sqrt(entries.size) > z * max(scale.high, 1e-300)


def uneven(squares: FloatArray, sizes: FloatArray, entries: FloatArray) -> int | None:
    """Return the index of the group whose mean square differs most from the mean, or None if chance explains it.

    `squares`, (draws, groups), has the mean square of each group. `sizes`, (draws,), has the number of entries per
    group in each draw, and `entries` has all entries. Entries within a group may be dependent, so the difference must
    also exceed the variation between draws.

    Examples
    --------
    >>> entries = np.random.default_rng(0).standard_normal((8, 4, 256)) * [[1.0], [1.0], [1.5], [1.0]]
    >>> uneven(np.mean(entries**2, axis=-1), np.full(8, 256), entries)
    2
    """
    draws, groups = squares.shape
    mean = np.average(squares, axis=0, weights=sizes)
    if draws < 2 or groups < 2 or not mean.any():
        return None
    every = entries.ravel() ** 2
    spread = float(every.var()) / float(every.mean()) ** 2
    shares = squares / squares.mean(axis=1, keepdims=True)
    observed = float(shares.var(axis=0, ddof=1).mean()) * float(np.sum(sizes**2)) / float(np.sum(sizes)) ** 2
    predicted = (spread if every.size >= _FEW else max(spread, 2.0)) / float(np.sum(sizes))
    level = LEVEL / 2 / groups
    sure = np.full(groups, True)
    t = scipy.stats.t.isf(level, (draws - 1) * (groups - 1))
    for variance, z in ((predicted, -special.ndtri(level)), (observed, t)):
        # The cube root of a mean square is almost normal, as in `scale_of`.
        cube = max(variance, float(np.finfo(float).eps)) / 9
        off = np.abs(np.cbrt(mean / mean.mean()) - (1 - cube)) / math.sqrt(cube)
        sure &= off > z
    return int(np.where(sure, off, 0.0).argmax()) if sure.any() else None


@functools.cache
def conventions(fan_in: int, fan_out: int, packed: int, head_dim: int = 0) -> tuple[tuple[str, float], ...]:
    """Return conventional scales, as pairs of a name and std·√fan_in.

    `packed` is the total number of columns of queries, keys and values; `head_dim` is the size of the axis within a
    head, which an initialiser may mistake for the fan-in. If one of them is 0, conventions that use it are omitted.
    """
    xavier = math.sqrt(2 * fan_in / (fan_in + fan_out))
    known = [
        ("1/fan_in (lecun)", 1.0),
        ("1/(3 fan_in) (torch.nn.Linear)", 3**-0.5),
        ("2/fan_in (he)", 2**0.5),
        ("2/(fan_in + fan_out) (xavier)", xavier),
    ]
    if packed:
        joint = math.sqrt(2 * fan_in / (fan_in + packed))
        known.append(("2/(fan_in + 3 fan_in) (xavier over packed q, k, v)", joint))
        known.append(("2/(fan_in + 2 fan_in) (xavier over two packed)", math.sqrt(2 * fan_in / (fan_in + 2 * fan_out))))
    if head_dim not in (0, fan_in):
        known.append((MISTAKEN[0], math.sqrt(fan_in / head_dim)))
    known.append(("0.02² (whatever the width)", 0.02 * math.sqrt(fan_in)))
    if head_dim not in (0, fan_out):
        known.append((MISTAKEN[1], math.sqrt(head_dim / fan_out)))
    return tuple(known)


def known_by(scale: ScaleEstimate, known: Sequence[tuple[str, float]], laws: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of conventional scales that lie in the interval of an estimate.

    `known` lists these scales as pairs of a name and a number. A scale may be multiplied by the standard deviation that
    truncation leaves if `laws`, the possible laws of the entries, contains the truncated normal one.

    Examples
    --------
    >>> known_by(ScaleEstimate(0.708, 0.70, 0.72), conventions(64, 64, 192))
    ('2/(fan_in + 3 fan_in) (xavier over packed q, k, v)',)
    >>> known_by(ScaleEstimate(0.88, 0.87, 0.89), conventions(64, 32, 0), ["truncated normal"])
    ('1/fan_in (lecun) before truncation',)
    """
    names = tuple(name for name, std in known if scale.holds(std))
    if names or _TRUNCATED not in laws:
        return names
    return tuple(f"{name} before truncation" for name, std in known if scale.holds(_CUT * std))
