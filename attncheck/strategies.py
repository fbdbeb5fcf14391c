"""hypothesis strategies: random attention layers, from the simplest upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from attncheck.attention import (
    ACTIVATIONS,
    ATTENTION_MAPS,
    DEFAULT_CLIP,
    MASKS,
    SCORE_SCALINGS,
    AttentionLayer,
)
from attncheck.errors import check_whole

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
HEAD_DIMS = (1, 2, 3, 4, 8, 16)
STDS = (1.0, 0.5, 0.7, 1.5, 2.0)
INPUTS: tuple[dict[str, Any], ...] = (
    {"activation": "clip", "clip": DEFAULT_CLIP},
    {"activation": "clip", "clip": 1.0},
    *({"activation": name} for name in ACTIVATIONS if name != "clip"),
)

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

    Raises
    ------
    InputError
        If no layer within the bounds is that cheap.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, database=None)
    ... @given(layers(max_entries=1000))
    ... def check(layer):
    ...     assert layer.weight_entries <= 1000
    >>> check()
    """
    min_width = check_whole("min_width", min_width, 1, "pass the smallest width")
    max_width = check_whole("max_width", max_width, min_width, "pass a width of at least min_width")
    fields: dict[str, Any] = {
        "width": min_width,
        "seq_len": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 1,
        "input_correlation": 1.0,
    }
    least = AttentionLayer(**fields).weight_entries
    check_whole("max_entries", max_entries, least, f"pass at least what the smallest layer takes, {least}")

    def choose(field: str, values: Sequence[Any]) -> Any:
        """Draw one of the values with which the layer, all else being small, still costs no more than the cap."""
        within = [v for v in values if AttentionLayer(**{**fields, field: v}).weight_entries <= max_entries]
        fields[field] = draw(st.sampled_from(within))
        return fields[field]

    choose("seq_len", range(1, 13))
    heads = choose("num_heads", HEADS)
    # Half the time full heads and no groups, if they fit.
    divisors = [d for d in HEADS if heads % d == 0 and d < heads]
    choose("num_kv_heads", [None] * max(1, len(divisors)) + divisors)
    choose("head_dim", [None] * len(HEAD_DIMS) + [*HEAD_DIMS])
    choose("input_correlation", (0.0, 0.5, 0.9, 1.0))
    choose("width", [min_width, *(n for n in WIDTHS if min_width < n <= max_width)])
    free: dict[str, Sequence[Any]] = {
        "score_scaling": SCORE_SCALINGS,
        "attention_map": ATTENTION_MAPS,
        "mask": MASKS,
        "head_scaling": (True, False),
        **{f"{name}_std": STDS for name in ("query", "key", "value", "output", "input")},
    }
    for field, values in free.items():
        fields[field] = draw(st.sampled_from(values))
    return AttentionLayer(**fields, **draw(st.sampled_from(INPUTS)))
