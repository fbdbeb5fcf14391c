"""Inequalities used in the proofs: Lemmas 4 and 7, Proposition 6, and that softmax is Lipschitz.

They hold for all numbers, so there are no false alarms beyond the rounding allowed for; examples are the same in
every run. Each test also refutes a slightly stronger inequality, so the constants are those of the theory.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attncheck import AttentionLayer
from attncheck.layers.nonlinearity import Nonlinearity, clip, declared, erf, identity, relu, sigmoid, sin, tanh

FloatArray = NDArray[np.float64]

# Rounding, relative to the numbers compared or subtracted.
ROUNDING = 1e-12

same_every_run = settings(max_examples=200, database=None, deadline=None, derandomize=True)
numbers = st.floats(-1e3, 1e3, allow_subnormal=False)


@dataclasses.dataclass(frozen=True)
class PseudoLipschitz:
    """φ with |φ(x) - φ(y)| ≤ c |x - y| (1 + |x|^{d-1} + |y|^{d-1}), d = `order`, c = `constant`."""

    function: Callable[[float], float]
    order: int
    constant: float

    def holds(self, x: float, y: float) -> bool:
        """Return whether the inequality holds at a pair of points."""
        at_x, at_y = self.function(x), self.function(y)
        bound = self.constant * abs(x - y) * (1.0 + abs(x) ** (self.order - 1) + abs(y) ** (self.order - 1))
        return abs(at_x - at_y) <= bound + ROUNDING * (abs(at_x) + abs(at_y))

    @property
    def growth(self) -> tuple[float, float]:
        """A and B with |φ(x)| ≤ A + B |x|^d: the inequality with y = 0, and |x| ≤ 1 + |x|^d."""
        return abs(self.function(0.0)) + 2.0 * self.constant, 3.0 * self.constant

    def after(self, inner: PseudoLipschitz) -> PseudoLipschitz:
        """Return φ∘ψ, ψ = `inner`, with the order and the constant of Proposition 6."""
        first, power = inner.growth
        exponent = self.order - 1
        # Lemma 4, and that t ↦ t^e is subadditive for e ≤ 1.
        spread = max(1.0, 2.0 ** (exponent - 1))
        factor = 1.0 + 2.0 * spread * (first**exponent + power**exponent)
        return PseudoLipschitz(
            lambda x: self.function(inner.function(x)),
            self.order * inner.order,
            3.0 * self.constant * inner.constant * factor,
        )

    def times(self, other: PseudoLipschitz) -> PseudoLipschitz:
        """Return φ·ψ, ψ = `other`, with the order and the constant of Proposition 6."""
        constant = 3.0 * (other.constant * sum(self.growth) + self.constant * sum(other.growth))
        return PseudoLipschitz(lambda x: self.function(x) * other.function(x), self.order + other.order, constant)


def of(phi: Nonlinearity, lipschitz: float) -> PseudoLipschitz:
    """Return a Lipschitz φ as pseudo-Lipschitz of order 1, where the last factor of the definition is 3."""
    return PseudoLipschitz(lambda x: float(phi(x)), 1, lipschitz / 3.0)


def power(degree: int) -> PseudoLipschitz:
    """Return x^d: |x^d - y^d| ≤ |x - y| Σ_i |x|^i |y|^{d-1-i} ≤ |x - y| d (|x|^{d-1} + |y|^{d-1}) / 2."""
    return PseudoLipschitz(lambda x: x**degree, degree, degree / 2.0)


LEAKY = declared(lambda x: np.where(x > 0, x, -2.0 * x), order=1, bounded=False, name="leaky_relu(-2)")
FUNCTIONS = {
    "identity": of(identity(), 1.0),
    "relu": of(relu(), 1.0),
    "leaky_relu(-2)": of(LEAKY, 2.0),
    "clip(1)": of(clip(1.0), 1.0),
    "tanh": of(tanh(), 1.0),
    "sigmoid": of(sigmoid(), 0.25),
    "erf": of(erf(), 2.0 / math.pi**0.5),
    "sin": of(sin(), 1.0),
    "x^2": power(2),
    "x^3": power(3),
}
functions = st.sampled_from(sorted(FUNCTIONS))


@same_every_run
@given(functions, numbers, numbers)
def test_functions_have_their_order_and_constant(name: str, x: float, y: float) -> None:
    """The definition, for each φ used below; half of the constant is never enough."""
    phi = FUNCTIONS[name]
    assert phi.holds(x, y)
    half = dataclasses.replace(phi, constant=phi.constant / 2.0)
    # Where φ is steepest: at 0, for powers of degree above 1 far out.
    steep = {"x^2": (1e3, 999.0), "x^3": (1e3, 999.0), "leaky_relu(-2)": (0.0, -0.1)}
    assert not half.holds(*steep.get(name, (0.0, 0.1)))


@same_every_run
@given(st.lists(numbers, min_size=1, max_size=12), st.floats(1.0, 8.0))
def test_powers_of_sums(terms: list[float], exponent: float) -> None:
    """Lemma 4: |Σ_{i≤k} x_i|^d ≤ k^{d-1} Σ_i |x_i|^d for d ≥ 1; equal terms attain it."""

    def holds(x: list[float], constant: float) -> bool:
        left = abs(math.fsum(x)) ** exponent
        right = constant * math.fsum(abs(each) ** exponent for each in x)
        # Powers below the smallest normal number have lost digits.
        return bool(left <= (1.0 + ROUNDING) * right + sys.float_info.min)

    constant = float(len(terms)) ** (exponent - 1.0)
    assert holds(terms, constant)
    assert not holds([0.7] * len(terms), 0.999 * constant)


@same_every_run
@given(functions, functions, numbers, numbers)
def test_compositions(outer: str, inner: str, x: float, y: float) -> None:
    """Proposition 6: φ∘ψ is pseudo-Lipschitz of order d₁d₂ if φ is of order d₁ and ψ of order d₂.

    With e = d₁ - 1 and |ψ(x)| ≤ A + B|x|^{d₂}, A = |ψ(0)| + 2c₂, B = 3c₂: |φ(ψ(x)) - φ(ψ(y))| ≤ c₁ |ψ(x) - ψ(y)| (1 +
    |ψ(x)|^e + |ψ(y)|^e) ≤ c₁c₂ |x - y| (1 + |x|^{d₂-1} + |y|^{d₂-1}) (1 + 2κA^e + κB^e (|x|^{d₂e} + |y|^{d₂e})), κ =
    max(1, 2^{e-1}), and |x|^a |y|^b ≤ 1 + |x|^m + |y|^m for a + b ≤ m = d₁d₂ - 1 makes the constant 3c₁c₂(1 + 2κ(A^e
    + B^e)).
    """
    assert FUNCTIONS[outer].after(FUNCTIONS[inner]).holds(x, y)


@same_every_run
@given(functions, functions, numbers, numbers)
def test_products(one: str, other: str, x: float, y: float) -> None:
    """Proposition 6: φ·ψ is pseudo-Lipschitz of order d₁ + d₂ if φ is of order d₁ and ψ of order d₂.

    |φ(x)ψ(x) - φ(y)ψ(y)| ≤ |φ(x)| |ψ(x) - ψ(y)| + |ψ(y)| |φ(x) - φ(y)| with |φ(x)| ≤ A₁ + B₁|x|^{d₁} and
    |ψ(y)| ≤ A₂ + B₂|y|^{d₂}, and |x|^a |y|^b ≤ 1 + |x|^m + |y|^m for a + b ≤ m = d₁ + d₂ - 1, make the constant
    3(c₂(A₁ + B₁) + c₁(A₂ + B₂)); A and B as for compositions.
    """
    assert FUNCTIONS[one].times(FUNCTIONS[other]).holds(x, y)


def test_orders_of_proposition_6_are_the_least() -> None:
    """No constant works with one order less, for powers; a seventh of the constant fails for the identity."""
    square, cube, same = FUNCTIONS["x^2"], FUNCTIONS["x^3"], FUNCTIONS["identity"]
    for combined, order in ((square.after(cube), 6), (square.times(cube), 5)):
        assert combined.order == order
        lower = dataclasses.replace(combined, order=order - 1)
        assert combined.holds(1e6, 0.0)
        assert not lower.holds(1e6, 0.0)
    for combined, point in ((same.after(same), 1.0), (same.times(same), 1e6)):
        assert combined.holds(point, 0.0)
        assert not dataclasses.replace(combined, constant=combined.constant / 7.0).holds(point, 0.0)


def product_holds(point: tuple[float, float], other: tuple[float, float], constant: float) -> bool:
    """Return whether |xy - x'y'| ≤ c |z - z'| (1 + |z| + |z'|) at z = (x, y) and z' = (x', y')."""
    at_point, at_other = point[0] * point[1], other[0] * other[1]
    distance = math.hypot(point[0] - other[0], point[1] - other[1])
    bound = constant * distance * (1.0 + math.hypot(*point) + math.hypot(*other))
    return abs(at_point - at_other) <= bound + ROUNDING * (abs(at_point) + abs(at_other))


@same_every_run
@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers))
def test_the_product_of_two_numbers(point: tuple[float, float], other: tuple[float, float]) -> None:
    """Lemma 7: (x, y) ↦ xy is pseudo-Lipschitz of order 2, with best constant 1/2 in the Euclidean norm.

    xy - x'y' = (z - z')ᵀS(z + z') with S = ((0, 1/2), (1/2, 0)), whose norm is 1/2; far out on the diagonal, against
    0, this is nearly attained. It is not of order 1.
    """
    assert product_holds(point, other, 0.5)
    assert not product_holds((1e3, 1e3), (0.0, 0.0), 0.499)


def softmax(scores: FloatArray) -> FloatArray:
    size = len(scores)
    layer = AttentionLayer(width=1, seq_len=size, num_heads=1)
    first: FloatArray = layer.attention_weights(np.broadcast_to(scores, (size, size)))[0]
    return first


def softmax_holds(scores: FloatArray, others: FloatArray, constant: float) -> tuple[bool, bool]:
    """Return whether |softmax(p) - softmax(q)| ≤ c |p - q| in the Euclidean and in the sup norm."""
    weights, theirs = softmax(scores), softmax(others)

    def holds(norm: float) -> bool:
        left = float(np.linalg.norm(weights - theirs, norm))
        rounding = ROUNDING * float(np.linalg.norm(weights + theirs, norm))
        return left <= constant * float(np.linalg.norm(scores - others, norm)) + rounding

    return holds(2), holds(np.inf)


@same_every_run
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(-50, 50)), min_size=1, max_size=12))
def test_softmax(pairs: list[tuple[float, float]]) -> None:
    """Softmax is Lipschitz with best constant 1/2 in the Euclidean and in the sup norm.

    Its derivative at weights a is diag(a) - aaᵀ: rows have absolute sum 2a_i(1 - a_i) ≤ 1/2, which bounds the sup
    norm, and by symmetry the Euclidean one; two positions of equal weight attain it.
    """
    scores, others = np.array(pairs).T
    assert softmax_holds(scores, others, 0.5) == (True, True)
    assert softmax_holds(np.array([0.01, -0.01]), np.zeros(2), 0.499) == (False, False)
