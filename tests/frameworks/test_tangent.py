"""A real module's tangent kernel by torch's autograd equals the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attncheck as ac
from attncheck.simulators.tangent import literal_kernel

pytest.importorskip("torch")

import torch
from torch import nn

FloatArray = NDArray[np.float64]


def autograd_kernel(module: Any, x: Any, neurons: int, mask: Any) -> FloatArray:
    """Return Σ ∂y_r^i/∂W ∂y_r'^i'/∂W over the entries of all matrices, over fan-in: (k, k, s, s)."""
    y = module(x, x, x, attn_mask=mask, need_weights=False)[0][0]
    s, width = y.shape
    rows = [
        torch.cat([each.flatten() for each in torch.autograd.grad(y[r, i], [*module.parameters()], retain_graph=True)])
        for i in range(neurons)
        for r in range(s)
    ]
    gradients = torch.stack(rows).reshape(neurons, s, -1).numpy()
    return np.asarray(np.einsum("ire,jqe->ijrq", gradients, gradients) / width)


@pytest.mark.parametrize("causal", [False, True])
def test_autograd_gives_the_same_kernel(causal: bool) -> None:
    n, heads, s, neurons = 12, 3, 4, 3
    torch.manual_seed(0)
    module = nn.MultiheadAttention(n, heads, bias=False, batch_first=True, dtype=torch.float64)
    # Packed projections draw small weights: larger ones make attention uneven.
    with torch.no_grad():
        for each in module.parameters():
            each.mul_(2.0)
    x = torch.randn(1, s, n, dtype=torch.float64)
    mask = torch.triu(torch.full((s, s), -torch.inf, dtype=torch.float64), 1) if causal else None
    theirs = autograd_kernel(module, x, neurons, mask)

    layer = ac.AttentionLayer(
        width=n, seq_len=s, num_heads=heads, head_dim=n // heads, mask="causal" if causal else "none"
    )
    # ω = √fan-in W, in the form (heads, in, ν); the output's fan-in is that of all heads.
    packed = module.in_proj_weight.detach().numpy().reshape(3, heads, n // heads, n).swapaxes(-1, -2) * n**0.5
    output = module.out_proj.weight.detach().numpy().T.reshape(heads, n // heads, n)[:, :, :neurons] * n**0.5
    query, key, value = (each[None] for each in packed)
    ours = literal_kernel(layer, x.numpy(), query, key, value, output[None])
    np.testing.assert_allclose(ours.kernel[0], theirs, rtol=1e-10, atol=1e-12 * np.abs(theirs).max())
