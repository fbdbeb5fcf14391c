"""hypothesis strategies: random attention layers, from the simplest upwards."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from attncheck.attention import ACTIVATIONS, ATTENTION_MAPS, MASKS, SCORE_SCALINGS, AttentionLayer
from attncheck.errors import check_whole

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
HEAD_DIMS = (1, 2, 3, 4, 8, 16)
STDS = (1.0, 0.5, 0.7, 1.5, 2.0)

# What a literal draw may cost in the default run, in weight entries: about 0.2 ms.
DIRECT_ENTRIES = 20_000


@st.composite
def layers(
    draw: st.DrawFn, *, max_entries: int = DIRECT_ENTRIES, min_width: int = 1, max_width: int = 4096
) -> AttentionLayer:
    """Draw attention layers over the whole space that the description spans.

    Widths from `min_width` to `max_width`, 1 to 12 positions (more than the width included), 1 to 16
    heads, full and low-rank heads, all maps, masks, groups, activations, scalings and correlations.
    Small examples come first, so that what hypothesis prints is readable.

    Parameters
    ----------
    max_entries : int
        Cap on the weight entries of one literal draw, about (s + 4H) n²; what bounds the cost of the
        direct reading. Pass a large number for readings without matrices.
    min_width, max_width : int
        Bounds on the width.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, database=None)
    ... @given(layers(max_entries=1000))
    ... def check(layer):
    ...     assert layer.weight_entries <= 1000
    >>> check()
    """
    check_whole("max_entries", max_entries, 5, "pass at least 5, what a layer of width 1 takes")
    seq_len = draw(st.integers(1, 12))
    num_heads = draw(st.sampled_from(HEADS))
    divisors = [d for d in HEADS if num_heads % d == 0]
    num_kv_heads = draw(st.none() | st.sampled_from(divisors))
    fields: dict[str, Any] = {
        "seq_len": seq_len,
        "num_heads": num_heads,
        "num_kv_heads": None if num_kv_heads == num_heads else num_kv_heads,
        "head_dim": draw(st.none() | st.sampled_from(HEAD_DIMS)),
        "score_scaling": draw(st.sampled_from(SCORE_SCALINGS)),
        "attention_map": draw(st.sampled_from(ATTENTION_MAPS)),
        "mask": draw(st.sampled_from(MASKS)),
        "head_scaling": draw(st.sampled_from((True, False))),
        **{f"{name}_std": draw(st.sampled_from(STDS)) for name in ("query", "key", "value", "output", "input")},
        "input_correlation": draw(st.sampled_from((0.0, 0.5, 0.9, 1.0))),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
    }
    if fields["activation"] == "clip":
        fields["clip"] = draw(st.sampled_from((100.0, 1.0)))
    affordable = [n for n in WIDTHS if min_width <= n <= max_width and _entries(n, fields) <= max_entries]
    return AttentionLayer(width=draw(st.sampled_from(affordable or [min_width])), **fields)


def _entries(width: int, fields: dict[str, Any]) -> int:
    return AttentionLayer(width=width, **fields).weight_entries
