"""Numbers whose limit is 0: with scores divided by n, scores themselves, and outputs of maps that vanish at 0.

Linear and relu maps are homogeneous. An output y of a layer with "1/n" is therefore, draw by draw and at every width,
ν^{-1/2} times that of the same layer with "1/√n", ν = n or head_dim; and so is a score with any map. √ν y has the
theorem's limit, and is as far from it as the theorem's output: this is the statement on the scale of y.
"""

from __future__ import annotations

from attncheck.layers.attention import AttentionLayer

#: Maps A of scores with A(c p) = c A(p) for c > 0.
HOMOGENEOUS: tuple[str, ...] = ("linear", "relu")


def vanishes(layer: AttentionLayer, of: str = "outputs") -> bool:
    """Say whether outputs, or scores, are 0 in the limit.

    Parameters
    ----------
    layer : AttentionLayer
    of : {"outputs", "scores"}

    Examples
    --------
    >>> layer = AttentionLayer(width=8, score_scaling="1/n")
    >>> vanishes(layer), vanishes(layer, "scores"), vanishes(layer.replace(attention_map="linear"))
    (False, True, True)
    """
    if layer.score_scaling != "1/n" or layer.tied_query_key:
        return False
    return of == "scores" or layer.attention_map in HOMOGENEOUS


def restored(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer with the theorem's scaling, of whose numbers these are `AttentionLayer.score_factor` times."""
    return layer.replace(score_scaling="1/sqrt(n)")
