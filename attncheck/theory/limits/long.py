"""Long sequences: distance of attention from uniform, and condensation on few positions.

Let n → ∞ first, making the scores of a row Gaussian, then s → ∞. For independent positions the scores are N(0, σ²), and

    E Σ_j A_j² = s ∫ t L''(t) L(t)^{s-1} dt,   L(t) = E exp(-t e^p),

by 1/Z² = ∫ t e^{-tZ} dt. In the logarithm of each variable the trapezoidal rule converges geometrically for any s.

- σ fixed, s → ∞: s E Σ A² → e^{σ²} and ‖A - 11ᵀ/s‖²_F → e^{σ²} - 1 (arXiv:2410.07799).
- σ² = b² ln s: E Σ A² → max(0, 1 - √2/b); above b = √2, few positions have all weight (random energy model;
  arXiv:2505.24333).
"""

from __future__ import annotations

import math

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import check_number, check_whole, refuse
from attncheck.layers.attention import AttentionLayer, check_layer
from attncheck.layers.kernel import input_kernel
from attncheck.layers.parts import refuse_parts
from attncheck.layers.parts.mask import visible_counts

# Steps in log t and in the scores, for which even twice the step is exact to rounding. Contributions below e^-40 of
# the total are dropped, as is the double exponential beyond 5.
_STEP, _INNER_STEP, _SMALL, _ABOVE = 0.125, 0.25, 40.0, 5.0
_BLOCK = 2**21
# Maximum step in log χ²/ν, and the negative log density beyond which points are dropped.
_CHI_STEP, _CHI_SMALL = 0.25, 36.0
_MOST, _LONGEST = 100.0, 1e100


def inverse_participation(seq_len: int, score_std: float) -> float:
    """Return E Σ_j A_j² for A the softmax of seq_len independent N(0, score_std²) scores.

    It is 1/seq_len for uniform attention, and 1 if one position has all the weight.

    Parameters
    ----------
    seq_len : int
        s, from 1 to 1e100; the cost grows as log s.
    score_std : float
        σ, from 0 to 100.

    Returns
    -------
    float
        With relative error below 1e-9.

    Raises
    ------
    InputError
        If a number is out of range.

    Examples
    --------
    >>> round(inverse_participation(1, 1.0), 9), round(inverse_participation(4, 0.0), 9)
    (1.0, 0.25)
    >>> round(10**6 * inverse_participation(10**6, 1.0), 4), round(math.exp(1.0), 4)
    (2.7183, 2.7183)
    """
    s = check_whole("seq_len", seq_len, 1, "pass the number of positions, e.g. seq_len=2048")
    if s > _LONGEST:
        refuse("seq_len", s, f"exceeds {_LONGEST:.0e}", "pass a shorter sequence")
    std = check_number("score_std", score_std, "pass σ_Q σ_K, e.g. 1.0", minimum=0.0, maximum=_MOST)
    if s == 1 or std == 0.0:
        return 1.0 / s
    # The integrand is at most s e^{2u + 2σ²} below u = -2σ², and s e^{-u²/2σ²} above. It is as wide as the tail of
    # probability 1/s of a normal.
    logs = math.log(s)
    reach = math.sqrt(2.0 * (2.0 * logs + _SMALL))
    low = -std * reach - _ABOVE if reach < 2.0 * std else -(std**2) - logs - 0.5 * _SMALL
    wide = _STEP * max(1.0, 0.5 * std / math.sqrt(1.0 + logs))
    u = np.arange(low, std * reach + _ABOVE, wide)
    step = _INNER_STEP / max(1.0, std)
    z = np.arange(-reach - 1.0, reach + 1.0, step)
    mass = step * np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    block = max(1, _BLOCK // len(z))
    parts = [_integrand(u[start : start + block], z, mass, std, s) for start in range(0, len(u), block)]
    return float(wide * np.concatenate(parts).sum())


def _integrand(u: FloatArray, z: FloatArray, mass: FloatArray, std: float, s: int) -> FloatArray:
    """Return s t² L''(t) L(t)^{s-1} at t = e^u."""
    x = np.minimum(u[:, None] + std * z, 700.0)
    t = np.exp(x)
    second = np.exp(2.0 * x - t) @ mass
    less = -np.expm1(-t) @ mass  # 1 - L, kept below 1 so that log1p is finite if L rounds to 0
    powers = np.exp((s - 1.0) * np.log1p(-np.minimum(less, 1.0 - 2.0**-53)))
    return np.asarray(float(s) * second * powers)


def condensed(b: float) -> float:
    """Return the limit of `inverse_participation` as s → ∞ with score_std² = b² ln s: max(0, 1 - √2/b).

    Examples
    --------
    >>> condensed(1.0), round(condensed(2.0), 4)
    (0.0, 0.2929)
    """
    b = check_number("b", b, "pass σ divided by the root of ln s, e.g. 2.0", minimum=0.0)
    return max(0.0, 1.0 - math.sqrt(2.0) / b) if b > 0 else 0.0


def distance_from_uniform(layer: AttentionLayer) -> float:
    """Return E‖A - U‖²_F at infinite width, with U uniform over the visible positions of each row.

    Parameters
    ----------
    layer : AttentionLayer
        With softmax and exchangeable inputs (no `position_std` or rotary positions). `head_dim` stays fixed as the
        width grows, and requires untied queries and keys.

    Returns
    -------
    float
        Σ_i (E Σ_j A_ij² - 1/m_i), where row i has m_i visible positions. Scores with correlation ρ act as independent
        scores of 1 - ρ times the variance, as softmax ignores a common shift. Without a mask, the limit of long
        sequences is e^{σ²} - 1. With ν = `head_dim`, σ²χ²_ν/ν replaces σ², and this limit becomes
        (1 - 2σ²/ν)^{-ν/2} - 1, or infinity if ν ≤ 2σ².

    Raises
    ------
    InputError
        For other layers.

    Examples
    --------
    >>> layer = AttentionLayer(width=64, seq_len=2048)
    >>> round(distance_from_uniform(layer), 3), round(math.exp(1.0) - 1.0, 3)
    (1.708, 1.718)
    >>> round(distance_from_uniform(layer.replace(head_dim=16)), 3), round((1.0 - 2.0 / 16) ** -8 - 1.0, 3)
    (1.886, 1.91)
    """
    check_layer(layer)
    if layer.attention_map != "softmax":
        refuse("layer.attention_map", layer.attention_map, "has rows that do not sum to 1", "use softmax")
    if layer.position_std:
        refuse("layer.position_std", layer.position_std, "distinguishes positions", "use position_std=0.0")
    refuse_parts(layer, "long sequences")
    kernel = input_kernel(layer.replace(seq_len=min(layer.seq_len, 2)).inputs).matrix
    own, other = float(kernel[0, 0]), float(kernel[0, -1]) if layer.seq_len > 1 else 0.0
    scale, apart = layer.query_std * layer.key_std, max(0.0, own - other)
    counts, repeats = np.unique(visible_counts(layer), return_counts=True)
    if layer.tied_query_key:
        if layer.head_dim is not None:
            problem = "has no known law of scores with tied queries and keys"
            refuse("layer.head_dim", layer.head_dim, problem, "use full heads, head_dim=None")
        each = [_constant(m, scale * apart) - 1.0 / m for m in counts]
        return float(np.dot(repeats, each))
    stds, shares = _score_stds(layer, scale * math.sqrt(own * apart))
    found = [[inverse_participation(int(m), std) - 1.0 / m for std in stds] for m in counts]
    return float(repeats @ (np.array(found) @ shares))


def _constant(m: int, ahead: float) -> float:
    """Return Σ A² for m scores, of which one is larger by `ahead` than the others, which are equal."""
    others = math.exp(-min(ahead, 700.0))
    return (1.0 + (m - 1) * others**2) / (1.0 + (m - 1) * others) ** 2


def _score_stds(layer: AttentionLayer, std: float) -> tuple[FloatArray, FloatArray]:
    """Return score standard deviations std √(χ²_ν/ν) and weights, by the trapezoidal rule in log χ²."""
    if layer.head_dim is None:
        return np.array([std if layer.score_scaling == "1/sqrt(n)" else 0.0]), np.ones(1)
    nu = float(layer.head_dim)
    step = min(_CHI_STEP, 2.8 * _CHI_STEP * math.sqrt(2.0 / nu))
    below, above = 1.0 + 2.0 * _CHI_SMALL / nu, math.log(6.0 + 4.0 * _CHI_SMALL / nu)
    t = step * np.arange(-math.ceil(below / step), math.ceil(above / step) + 1)
    density = 0.5 * nu * (t - np.expm1(t))
    kept = density > -_CHI_SMALL
    shares = np.exp(density[kept])
    return layer.score_factor * std * np.exp(0.5 * t[kept]), np.asarray(shares / shares.sum())
