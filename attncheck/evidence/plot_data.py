"""Plot data in records: a named kind and a few dozen rounded numbers of built-in types.

No verdict or digest depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from attncheck._lib.arrays import FloatArray
from attncheck.evidence.bands import QUANTILES

#: Quantiles that are labelled in plots.
LABELLED = (0.0001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.9999)
# Residuals beyond this many standard deviations share the outermost bins.
_WIDEST = 4.0
_BINS = 32
# Decimals of numbers between -1 and 1.
_DIGITS = 5


def cdf_of_uniform(values: FloatArray, allowance: float) -> dict[str, Any]:
    """Return the number of sorted values up to each of `attncheck.evidence.bands.QUANTILES`.

    Examples
    --------
    >>> plot = cdf_of_uniform((np.arange(640) + 0.5) / 640, 0.0)
    >>> plot["kind"], plot["below"][16:19], plot["count"]
    ('counts', [20, 40, 60], 640)
    """
    below = np.searchsorted(values, QUANTILES, side="right").tolist()
    return {"kind": "counts", "below": below, "count": int(values.size), "allowance": round(allowance, _DIGITS)}


def cdf_of_two(ours: FloatArray, theirs: FloatArray, rounding: Callable[[FloatArray], FloatArray]) -> dict[str, Any]:
    """Return counts of values up to joint quantiles, in the first of two sorted samples and in both.

    ``labels`` are the joint quantiles at `LABELLED`.

    Examples
    --------
    >>> cdf_of_two(np.array([1.0, 3.0]), np.array([2.0, 4.0]), np.zeros_like)["below"]
    [1, 1, 2]
    """
    values = np.sort(np.concatenate([ours, theirs]))
    points = values[np.ceil(QUANTILES * values.size).astype(int) - 1]
    first, second = (np.searchsorted(sample, points + rounding(points), side="right") for sample in (ours, theirs))
    pooled, places = np.unique(first + second, return_index=True)
    apart = pooled < values.size
    below = {"below": first[places][apart].tolist(), "pooled": pooled[apart].tolist()}
    labels = _significant(np.quantile(values, LABELLED, method="inverted_cdf"))
    return {"kind": "paired counts", **below, "labels": labels, "count": int(ours.size), "against": int(theirs.size)}


def density(
    values: FloatArray, std: float = 1.0, cdf: Callable[[FloatArray], FloatArray] = special.ndtr
) -> dict[str, Any]:
    """Return shares of values in bins from -4 to 4 standard deviations, and those of a law with this `cdf`.

    The outer bins include the tails. By default, the law is N(0, 1), as of whitened residuals.

    Examples
    --------
    >>> uniform = density(np.zeros(10), 2.0, lambda points: np.clip((points + 2.0) / 4.0, 0.0, 1.0))
    >>> uniform["law"][11:14], uniform["shares"][16]
    ([0.0, 0.125, 0.125], 1.0)
    """
    edges = np.linspace(-_WIDEST, _WIDEST, _BINS + 1)
    inside = np.clip(values / std, edges[0], edges[-1])
    return {
        "kind": "density",
        "shares": _decimals(np.histogram(inside, edges)[0] / max(1, values.size)),
        "law": _decimals(np.diff(cdf(std * edges[1:-1]), prepend=0.0, append=1.0)),
        "widest": _WIDEST,
        "std": float(f"{std:.4g}"),
        "count": int(values.size),
    }


def matrix(
    observed: FloatArray, declared: FloatArray, error: FloatArray, of: str, what: str, count: int
) -> dict[str, Any]:
    """Return the lower triangle of a symmetric matrix, row by row, with standard errors.

    Rows are named by `of` (heads, positions), entries by `what`.

    Examples
    --------
    >>> matrix(np.eye(2), np.zeros((2, 2)), np.ones((2, 2)), "heads", "correlations", 10)["observed"]
    [1.0, 0.0, 1.0]
    """
    places = np.tril_indices(len(observed))
    entries = _columns(observed=observed[places], declared=declared[places], error=error[places])
    return {"kind": "matrix", **entries, "of": of, "what": what, "size": len(observed), "count": count}


def positions(observed: ArrayLike, declared: ArrayLike, of: str, what: str) -> dict[str, Any]:
    """Return an observed and a declared square matrix, row by row.

    Rows are positions of queries, columns are positions of keys or inputs, as `of` says; `what` names the entries.

    Examples
    --------
    >>> positions(np.eye(2), np.ones((2, 2)), "key", "attention weights")["observed"]
    [1.0, 0.0, 0.0, 1.0]
    """
    entries = _columns(observed=observed, declared=declared)
    return {"kind": "positions", **entries, "of": of, "what": what, "size": len(np.asarray(observed))}


def profile(
    places: ArrayLike, observed: ArrayLike, half: ArrayLike, declared: float, of: str, what: str
) -> dict[str, Any]:
    """Return estimates at numbered places with half-widths of their intervals, and their common declared value.

    Places are heads, positions or the like, as `of` says; `what` names the estimates.

    Examples
    --------
    >>> profile([0, 1], [1.0, 1.7], [0.1, 0.1], 1.0, "head", "score variance")["observed"]
    [1.0, 1.7]
    """
    columns = _columns(places=places, observed=observed, half=half)
    return {"kind": "profile", **columns, "declared": declared, "of": of, "what": what}


def covariances(predicted: FloatArray, products: FloatArray) -> dict[str, Any]:
    """Return mean predictions and observations, each (draws, pairs), with errors of their differences."""
    size = max(1, len(products))
    errors = (products - predicted).std(axis=0) / size**0.5
    columns = _columns(predicted=predicted.mean(axis=0), observed=products.mean(axis=0), error=errors)
    return {"kind": "covariances", **columns, "count": size}


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge plot data of one kind from several samples, as means weighted by sample size.

    Examples
    --------
    >>> one, other = (density(np.full(size, value)) for size, value in ((10, 0.0), (30, 3.0)))
    >>> both = joined([one, other])
    >>> both["shares"][16], both["shares"][28], both["count"]
    (0.25, 0.75, 40)
    """
    counts = np.array([part["count"] for part in parts])
    weights = counts / max(1, counts.sum())
    found = {**parts[0], "count": int(counts.sum())}
    for name, rounded in _MEANS.items():
        if name in found:
            found[name] = rounded(weights @ np.array([part[name] for part in parts]))
    if "error" in found:
        found["error"] = _significant(np.sqrt(weights**2 @ np.array([part["error"] for part in parts]) ** 2))
    return found


def _decimals(values: FloatArray) -> list[float]:
    """Round values, without negative zeros."""
    numbers: list[float] = (np.round(values, _DIGITS) + 0.0).tolist()
    return numbers


def _significant(values: FloatArray) -> list[float]:
    """Round values to four significant digits."""
    return [float(f"{value:.4g}") for value in values]


def _columns(**columns: ArrayLike) -> dict[str, list[float]]:
    """Return columns of numbers by name, rounded."""
    return {name: _significant(np.asarray(values, dtype=np.float64).ravel()) for name, values in columns.items()}


# Fields that are means over draws, with their rounding.
_MEANS = {"shares": _decimals, **dict.fromkeys(("predicted", "observed", "declared"), _significant)}
