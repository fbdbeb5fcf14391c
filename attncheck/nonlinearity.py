"""Nonlinearities φ of a Netsor program: what the theorem asks of them, and E[φ(Z₁)φ(Z₂)].

Adding one takes a record in the table at the end of this file: the function, the order and the
boundedness that Assumption 1 asks about, and the closed form of its dual, or None where a
quadrature for smooth functions is to be used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from attncheck.attention import AttentionLayer
from attncheck.errors import check_choice, check_number, refuse

FloatArray = NDArray[np.float64]
Parameters = tuple[float, ...]
# A value and a bound on its error.
Bounded = tuple[FloatArray, FloatArray]
Dual = Callable[[FloatArray, FloatArray, FloatArray, Parameters], Bounded]

_EPS: Final = float(np.finfo(np.float64).eps)
# Beyond nine standard deviations lies 2e-19 of the normal law.
_QUADRATURE_REACH: Final = 9.0
_QUADRATURE_STEPS: Final = (64, 128, 256, 512, 1024, 2048)


@dataclasses.dataclass(frozen=True)
class Nonlinearity:
    """A function φ applied to each coordinate, with what the theorem needs to know about it.

    Build one with `clip`, `relu`, `tanh`, `erf`, `identity` or `from_layer`.

    Parameters
    ----------
    name : str
        Which function.
    parameters : tuple of float
        Its parameters, e.g. the bound of clip.
    order : int
        d for which φ is pseudo-Lipschitz: |φ(x) - φ(y)| ≤ c |x - y| (1 + |x|^(d-1) + |y|^(d-1)).
    bounded : bool
        Whether φ is bounded, as Assumption 1 of the paper asks of what enters a score.

    Raises
    ------
    InputError
        If the name is unknown, or the other fields do not belong to it.

    Examples
    --------
    >>> phi = clip(1.0)
    >>> phi(np.array([-3.0, 0.5]))
    array([-1. ,  0.5])
    >>> value, error = relu().dual(1.0, 1.0, 0.0)
    >>> round(float(value) * 2 * np.pi, 12), bool(error < 1e-14)
    (1.0, True)
    """

    name: str
    parameters: tuple[float, ...]
    order: int
    bounded: bool

    def __post_init__(self) -> None:
        check_choice("nonlinearity.name", self.name, tuple(_FAMILIES))
        family = _FAMILIES[self.name]
        if len(self.parameters) != family.parameters:
            remedy = f"{self.name} takes {family.parameters}; use attncheck.nonlinearity.{self.name}()"
            refuse("nonlinearity.parameters", self.parameters, "is the wrong number of parameters", remedy)
        for field in ("order", "bounded"):
            given, right = getattr(self, field), getattr(family, field)
            if given != right:
                refuse(f"nonlinearity.{field}", given, f"is wrong for {self.name}", f"pass {right}")

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Return φ of every entry of `x`, in the shape of `x`."""
        return _FAMILIES[self.name].function(np.asarray(x, dtype=np.float64), self.parameters)

    def dual(self, var1: ArrayLike, var2: ArrayLike, cov: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Return E[φ(Z₁)φ(Z₂)] for zero-mean Gaussian (Z₁, Z₂), and a bound on the error.

        This is step (iii) of the paper's Definition 1: the covariance of Z^{φ(h)} and Z^{φ(h')}
        from that of Z^h and Z^{h'}.  Zero variance and perfect correlation are allowed.

        Parameters
        ----------
        var1, var2 : array_like
            Variances of Z₁ and Z₂.
        cov : array_like
            Their covariance; broadcast against the variances.

        Returns
        -------
        value, error : ndarray
            In the broadcast shape. For closed forms `error` bounds the rounding; for quadrature
            it is the difference that the last doubling of the points made.

        Raises
        ------
        InputError
            If an entry is not finite, a variance is negative, or |cov| > √(var1·var2).
        """
        v1, v2, c = _check_covariances(var1, var2, cov)
        closed_form = _FAMILIES[self.name].dual
        if closed_form is not None:
            return closed_form(v1, v2, c, self.parameters)
        return _smooth_dual(self, v1, v2, c)


def clip(bound: float) -> Nonlinearity:
    """Return φ(x) = min(max(x, -bound), bound), the paper's choice with bound 100."""
    bound = check_number("bound", bound, "pass a positive bound, e.g. 100.0", above=0.0)
    return _make("clip", (bound,))


def relu() -> Nonlinearity:
    """Return φ(x) = max(x, 0); unbounded, so outside Assumption 1 as stated."""
    return _make("relu")


def tanh() -> Nonlinearity:
    """Return φ(x) = tanh x."""
    return _make("tanh")


def erf() -> Nonlinearity:
    """Return φ(x) = erf x = (2/√π) ∫₀ˣ exp(-u²) du."""
    return _make("erf")


def identity() -> Nonlinearity:
    """Return φ(x) = x; unbounded, so outside Assumption 1 as stated."""
    return _make("identity")


def from_layer(layer: AttentionLayer) -> Nonlinearity:
    """Return the φ of a layer's inputs x^i = φ(h^i).

    Examples
    --------
    >>> from_layer(AttentionLayer(width=8, clip=2.0))
    Nonlinearity(name='clip', parameters=(2.0,), order=1, bounded=True)
    """
    return _make(layer.activation, (layer.clip,) if layer.activation == "clip" else ())


def _make(name: str, parameters: Parameters = ()) -> Nonlinearity:
    family = _FAMILIES[name]
    return Nonlinearity(name, parameters, family.order, family.bounded)


def _check_covariances(var1: ArrayLike, var2: ArrayLike, cov: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    given = {"var1": var1, "var2": var2, "cov": cov}
    arrays = {}
    for field, value in given.items():
        try:
            arrays[field] = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            refuse(field, value, "must be numbers", "pass a number or an array of them")
        if not np.all(np.isfinite(arrays[field])):
            refuse(field, value, "must be finite", "remove NaN and infinite entries")
        if field != "cov" and np.any(arrays[field] < 0):
            refuse(field, value, "must not be negative", "pass a variance")
    try:
        v1, v2, c = np.broadcast_arrays(arrays["var1"], arrays["var2"], arrays["cov"])
    except ValueError:
        refuse("cov", cov, "does not broadcast against the variances", "pass arrays of matching shapes")
    largest = np.sqrt(v1) * np.sqrt(v2)
    if np.any(np.abs(c) > largest * (1 + 1e-9)):
        refuse("cov", cov, "is larger than √(var1·var2)", "pass a covariance that can exist")
    # What rounding leaves above the largest possible covariance is perfect correlation.
    return v1, v2, np.clip(c, -largest, largest)


def _correlation(v1: FloatArray, v2: FloatArray, c: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the correlation (0 where a variance is 0) and √(v1·v2)."""
    scale = np.sqrt(v1) * np.sqrt(v2)
    rho = np.divide(c, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.clip(rho, -1.0, 1.0), scale


def _identity_dual(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    return c.copy(), 2 * _EPS * np.abs(c)


def _relu_dual(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """The arc-cosine kernel of degree one."""
    rho, scale = _correlation(v1, v2, c)
    sine = np.sqrt((1 - rho) * (1 + rho))
    value = scale * (sine + (np.pi - np.arccos(rho)) * rho) / (2 * np.pi)
    return value, 4 * _EPS * scale


def _erf_dual(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    # The arctangent form keeps its digits where the arcsine's argument comes close to one.
    scale = np.sqrt(v1) * np.sqrt(v2)
    rest = 1 + 2 * (v1 + v2) + 4 * (scale - c) * (scale + c)
    value = (2 / np.pi) * np.arctan2(2 * c, np.sqrt(rest))
    return value, 8 * _EPS * np.abs(value)


def _clip_dual(v1: FloatArray, v2: FloatArray, c: FloatArray, parameters: Parameters) -> Bounded:
    """E[clip·clip] from clip(X) = X - (X-a)₊ + (-X-a)₊ on standardised variables."""
    (bound,) = parameters
    rho, scale = _correlation(v1, v2, c)
    # Beyond 40 standard deviations nothing is clipped that a double could show.
    a, b = (np.minimum(bound / np.sqrt(np.where(v > 0, v, 1.0)), 40.0) for v in (v1, v2))
    inner = rho * (special.erf(a / np.sqrt(2)) - 2 * special.ndtr(-b))
    overshoot = _excess_product(a, b, rho) - _excess_product(a, b, -rho)
    return scale * (inner + 2 * overshoot), 16 * _EPS * scale


def _excess_product(a: FloatArray, b: FloatArray, rho: FloatArray) -> FloatArray:
    """Return E[(X-a)₊(Y-b)₊] for standard normal X, Y of correlation rho and a, b > 0."""
    sine = np.sqrt((1 - rho) * (1 + rho))
    # a - rho·b, written so that a = b and rho → 1 lose no digits.
    above_a, above_b = (a - b) + (1 - rho) * b, (b - a) + (1 - rho) * a
    both = (
        0.5 * (special.ndtr(-a) + special.ndtr(-b))
        - special.owens_t(a, _ratio(above_b, a * sine))
        - special.owens_t(b, _ratio(above_a, b * sine))
    )
    at_a = b * _density(a) * special.ndtr(-_ratio(above_b, sine))
    at_b = a * _density(b) * special.ndtr(-_ratio(above_a, sine))
    # (1-ρ²) times the joint density, whose own factor is (1-ρ²)^{-1/2}.
    corner = sine * _density(a) * np.exp(-0.5 * _ratio(above_b, sine) ** 2) / np.sqrt(2 * np.pi)
    return np.asarray((rho + a * b) * both - at_a - at_b + corner, dtype=np.float64)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the quotient, with its limits 0 and ±∞ where the denominator (≥ 0) vanishes."""
    limit = np.where(numerator == 0, 0.0, np.copysign(np.inf, numerator))
    with np.errstate(over="ignore"):
        return np.divide(numerator, denominator, out=limit, where=denominator > 0)


def _density(x: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi), dtype=np.float64)


def _smooth_dual(
    phi: Callable[[FloatArray], FloatArray], v1: FloatArray, v2: FloatArray, c: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Trapezoidal quadrature, once for each distinct covariance (a kernel has few)."""
    rows = np.stack([v1.ravel(), v2.ravel(), c.ravel()], axis=-1)
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    results = np.array([_smooth_dual_of_one(phi, *row) for row in distinct.tolist()]).reshape(-1, 2)
    spread = results[np.reshape(inverse, -1)]
    return spread[:, 0].reshape(v1.shape), spread[:, 1].reshape(v1.shape)


def _smooth_dual_of_one(phi: Callable[[FloatArray], FloatArray], v1: float, v2: float, c: float) -> tuple[float, float]:
    """Double the points of the trapezoidal rule until the value settles.

    It converges geometrically for functions analytic in a strip; Gauss-Hermite is spoilt by poles
    that come close where the variance is large.
    """
    rho, _ = _correlation(np.asarray(v1), np.asarray(v2), np.asarray(c))
    sine = float(np.sqrt((1 - rho) * (1 + rho)))
    previous, value, change = np.nan, np.nan, np.inf
    for steps in _QUADRATURE_STEPS:
        nodes = np.linspace(-_QUADRATURE_REACH, _QUADRATURE_REACH, steps + 1)
        weights = _density(nodes) * (2 * _QUADRATURE_REACH / steps)
        # With perfect correlation the second direction is not there to integrate over.
        other, other_weights = (nodes, weights) if sine > 0 else (np.zeros(1), np.ones(1))
        second = phi(np.sqrt(v2) * (rho * nodes[:, None] + sine * other))
        value = float(weights * phi(np.sqrt(v1) * nodes) @ (second @ other_weights))
        change = abs(value - previous)
        if change <= 4 * _EPS * abs(value):
            break
        previous = value
    return value, change + 16 * _EPS * abs(value)


@dataclasses.dataclass(frozen=True)
class _Family:
    """What is known of one kind of φ; `dual` is None for quadrature, which φ must be smooth for."""

    function: Callable[[FloatArray, Parameters], FloatArray]
    dual: Dual | None
    order: int
    bounded: bool
    parameters: int = 0


_FAMILIES: Final[Mapping[str, _Family]] = {
    "identity": _Family(lambda x, _: x.copy(), _identity_dual, order=1, bounded=False),
    "relu": _Family(lambda x, _: np.maximum(x, 0.0), _relu_dual, order=1, bounded=False),
    "erf": _Family(lambda x, _: np.asarray(special.erf(x)), _erf_dual, order=1, bounded=True),
    "clip": _Family(lambda x, p: np.clip(x, -p[0], p[0]), _clip_dual, order=1, bounded=True, parameters=1),
    "tanh": _Family(lambda x, _: np.tanh(x), None, order=1, bounded=True),
}
