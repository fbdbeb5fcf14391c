"""Control variates for softmax: means of products of exponentials of normals, and the regression on them."""

from __future__ import annotations

import numpy as np

from attncheck.layers.kernel import FloatArray

# What keeps the regression solvable where controls are nearly dependent.
_RIDGE = 1e-7


def regress(moments: FloatArray) -> FloatArray:
    """Return the mean in each scrambling, by the controls' known means where that lessens the spread.

    The coefficients are those of the other scramblings, so that they are independent of what they are used on.

    Parameters
    ----------
    moments : ndarray, shape (REPLICATES, 2 + m, 2 + m)
        Means of products of (1, controls, integrand); the controls have their known means taken off.
    """
    others = (moments.sum(axis=0) - moments) / (len(moments) - 1)
    centred = others - others[:, 0, :, None] * others[:, 0, None, :]
    spread = np.sqrt(np.maximum(np.diagonal(centred, axis1=1, axis2=2)[:, 1:-1], 0.0))
    # Constant controls have rounding only to give.
    scale = np.where(spread > 1e-13, spread, np.inf)
    correlations = centred[:, 1:-1, 1:-1] / (scale[:, :, None] * scale[:, None, :])
    correlations += _RIDGE * np.eye(scale.shape[1])
    coefficients = np.linalg.solve(correlations, (centred[:, 1:-1, -1] / scale)[:, :, None])[:, :, 0] / scale
    plain = moments[:, 0, -1]
    controlled = plain - np.einsum("rm,rm->r", moments[:, 0, 1:-1], coefficients)
    # In few directions Sobol points alone do better, and so they do where scores are large.
    return np.asarray(controlled if controlled.std() < 0.5 * plain.std() else plain)


def less_known(controls: FloatArray, known: FloatArray) -> FloatArray:
    """Return controls, (controls, points), less their means and over them, where these are not 0."""
    scale = np.where(known != 0, known, 1.0)
    return np.asarray(controls / scale[:, None] - (known != 0)[:, None])


def exponential_means(
    kernel: FloatArray, u: FloatArray, x: FloatArray, cross: FloatArray, squares: bool
) -> list[float]:
    """Return the means of b, d, e, de, dd, ee, bd, be and, where wanted, bde, bdd, bee at one power."""
    m, n = np.exp(0.5 * np.diagonal(u)), np.exp(0.5 * np.diagonal(x))
    eu, ex, ec = np.exp(u), np.exp(x), np.exp(cross)
    weights = kernel * np.outer(m, n) * ec
    means = [
        float(weights.sum()),
        float(m.sum()),
        float(n.sum()),
        float(m @ ec @ n),
        float(m @ eu @ m),
        float(n @ ex @ n),
        float((weights * ((eu * m) @ ec)).sum()),
        float((weights * ((ec * n) @ ex)).sum()),
    ]
    if squares:
        # Of one more u given j and l, and of one more x: (j, l, m) and (j, l, n).
        further_u = (eu * m)[:, None, :] * ec.T[None, :, :]
        further_x = (ec * n)[:, None, :] * ex[None, :, :]
        means += [
            float((weights * np.einsum("jlm,jlm->jl", further_u @ ec, further_x)).sum()),
            float((weights * np.einsum("jlm,jlm->jl", further_u @ eu, further_u)).sum()),
            float((weights * np.einsum("jln,jln->jl", further_x @ ex, further_x)).sum()),
        ]
    return means
