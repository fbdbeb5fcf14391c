"""Scores and outputs whose limit is 0: scores divided by n, and outputs of homogeneous maps of such scores.

In every draw they are ν^{-1/2} times those of the same layer with 1/√n, where ν = n or head_dim. Multiplied by √ν they
have the theorem's limit and distance from it.
"""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer


def vanishes(layer: AttentionLayer, of: str = "outputs") -> bool:
    """Return whether outputs, or scores, are 0 in the limit.

    Examples
    --------
    >>> layer = AttentionLayer(width=8, score_scaling="1/n")
    >>> vanishes(layer), vanishes(layer, "scores"), vanishes(layer.replace(attention_map="linear"))
    (False, True, True)
    """
    if layer.score_scaling != "1/n" or layer.tied_query_key:
        return False
    return of == "scores" or layer.map.traits.homogeneous


def restored(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer with 1/√n scaling."""
    return layer.replace(score_scaling="1/sqrt(n)")
