"""Data that checks compute from returned arrays, and reasons why a layer or its arrays do not determine them.

If queries and keys are normalised, scores are not Gaussian given the keys. Rotary positions do not change the law of
keys, values and single scores given the inputs, but conditioning scores on keys then needs the keys themselves, not
only their Gram matrices.

If the scores cannot be whitened by rows and columns, `attncheck.checks.sample` whitens all visible scores of a head at
once, for a limited number of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from attncheck.checks.claims import NOT_EXPOSED
from attncheck.checks.sample import whitens_jointly
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.parts import refusing

#: Maximum number s of positions for whitening all scores of a head jointly, which takes s⁶ operations.
MOST_POSITIONS = 16
#: Names of derived data, which a check can list among its needs. NORMAL: each score is normal given inputs and keys.
#: WHITENED: all scores can be whitened given inputs and keys. BY_ROWS: they can be whitened by rows and by columns.
NORMAL, WHITENED, BY_ROWS = "normal scores", "whitened scores", "scores whitened by rows and columns"


def _not_normal(layer: AttentionLayer, exposed: Collection[str]) -> str:
    return next((part.refusals_of(layer)["normal scores"] for part in refusing(layer, "normal scores")), "")


def _not_by_rows(layer: AttentionLayer, exposed: Collection[str]) -> str:
    if reason := _not_normal(layer, exposed):
        return reason
    return f"{_cause(layer)}: there are no {BY_ROWS}" if whitens_jointly(layer, exposed) else ""


def _not_whitened(layer: AttentionLayer, exposed: Collection[str]) -> str:
    if reason := _not_normal(layer, exposed):
        return reason
    if not whitens_jointly(layer, exposed):
        return ""
    if layer.rotary_base is not None and "keys" not in exposed:
        return NOT_EXPOSED + "keys"
    problem = f"scores of more than {MOST_POSITIONS} positions are not whitened"
    return f"{_cause(layer)}: {problem}" if layer.seq_len > MOST_POSITIONS else ""


def _cause(layer: AttentionLayer) -> str:
    """Return why the layer's scores are whitened jointly rather than by rows and columns."""
    if layer.rotary_base is not None:
        return "rotary positions"
    return "random biases" if layer.bias_std else "hidden scores"


#: For each kind of derived data, a function of the layer and its exposed arrays. It returns the reason why these arrays
#: do not determine the data, or an empty string.
DERIVED: Mapping[str, Callable[[AttentionLayer, Collection[str]], str]] = {
    NORMAL: _not_normal,
    WHITENED: _not_whitened,
    BY_ROWS: _not_by_rows,
}
