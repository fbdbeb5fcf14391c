"""Substitutes for layers that the subject does not support."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from attncheck.layers.attention import AttentionLayer
from attncheck.layers.regimes import REGIMES
from attncheck.looks.substitutes import substitute
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.strategies import layers
from attncheck.subject import collapsed
from tests.refusals import refused

GROUPED = REGIMES["causal"]


def planned(subject: Any) -> list[Any]:
    """Return the cases of scores that are planned."""
    return [item.case for item in Run.of(RunOptions(subject=subject, profile="smoke")).items("scores", layers())]


def declaring(**attributes: Any) -> Any:
    """Return a right simulator with attributes."""
    simulator: Any = functools.partial(collapsed)
    vars(simulator).update(attributes)
    return simulator


def added(supports: Callable[[AttentionLayer], bool | str]) -> list[Any]:
    """Return the cases that are planned in place of unsupported ones, which are planned too, as not examined."""
    cases, every = planned(declaring(supports=supports)), planned(collapsed)
    assert cases[: len(every)] == every
    assert len(set(cases)) == len(cases)
    return cases[len(every) :]


def plain(layer: Any) -> bool | str:
    """Support a mask, and otherwise only defaults."""
    sizes = {name: getattr(layer, name) for name in ("width", "seq_len", "num_heads", "mask")}
    return layer == AttentionLayer(**sizes) or "only masks"


def test_others_stand_in_for_layers_that_are_not_supported() -> None:
    cases = added(plain)
    assert all(plain(layer) is True for layer in cases)
    # In place of the unsupported grouped causal fixed case: a causal layer of its sizes.
    assert AttentionLayer(width=16, seq_len=3, num_heads=4, mask="causal") in cases


def failing(layer: AttentionLayer) -> bool:
    raise RuntimeError("no licence")


def test_nothing_stands_in_where_sizes_are_not_supported_or_a_declaration_fails() -> None:
    assert added(lambda layer: False) == added(failing) == []
    assert substitute(GROUPED, lambda layer: layer.width == 8) is None
    alone = substitute(GROUPED, lambda layer: layer.num_heads == 1 and layer.mask == "causal")
    assert alone is not None
    assert (alone.width, alone.seq_len, alone.num_heads) == (GROUPED.width, GROUPED.seq_len, 1)


def test_a_subject_of_low_rank_heads_alone_is_examined() -> None:
    cases = added(lambda layer: layer.head_dim is not None and layer.mask == "none")
    assert all(layer.head_dim is not None for layer in cases)
    # The grouped causal fixed case: heads of width/num_heads, and its groups.
    assert AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, head_dim=4) in cases
    # The first supported plain layer is the base, overridden by the layer's own fields.
    wide = AttentionLayer(width=16, num_heads=4, head_dim=8, score_scaling="1/n")
    assert substitute(wide, lambda layer: layer.head_dim is not None) == wide
    linear = substitute(wide, lambda layer: layer.attention_map == "linear" and layer.head_dim is None)
    assert linear == AttentionLayer(width=16, num_heads=4, attention_map="linear", score_scaling="1/n")


def test_stand_ins_keep_all_that_is_supported() -> None:
    tied = REGIMES["tied queries and keys"]
    assert substitute(tied, lambda layer: layer.mask == "none") == tied
    assert substitute(tied, lambda layer: not layer.tied_query_key) == tied.replace(tied_query_key=False)
    # Fields supported only together, in any order.
    together = AttentionLayer(width=4, head_dim=2, mask="causal")
    assert substitute(together, lambda layer: layer.head_dim is None or layer.mask == "causal") == together


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (AttentionLayer(width=8), "layers=AttentionLayer.*is not a list of layers; list one"),
        ([], r"layers=\[\]: is empty"),
        ([AttentionLayer(width=8), 4], r"layers\[1\]=4: is not an AttentionLayer"),
    ],
)
def test_layers_that_are_none_are_refused(declared: object, message: str) -> None:
    refused(lambda: planned(declaring(layers=declared)), message)
