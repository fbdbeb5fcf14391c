"""Substitutes for layers that the subject does not support."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from attncheck._lib.errors import InputError
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.regimes import REGIMES
from attncheck.looks.substitutes import substitute
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.strategies import layers
from attncheck.subject import collapsed

GROUPED = REGIMES["causal"]


def made(subject: Any = None) -> Run:
    return Run.of(RunOptions(subject=subject, profile="smoke"))


def supporting(supports: Callable[[AttentionLayer], bool | str]) -> Any:
    simulator: Any = functools.partial(collapsed)
    simulator.supports = supports
    return simulator


def _plain(layer: Any) -> bool | str:
    """Support a mask, and otherwise only defaults."""
    sizes = {name: getattr(layer, name) for name in ("width", "seq_len", "num_heads", "mask")}
    return layer == AttentionLayer(**sizes) or "only masks"


def test_others_stand_in_for_layers_that_are_not_supported() -> None:
    run = made(supporting(_plain))
    items = run.items("scores", layers())
    every = made(collapsed).items("scores", layers())
    # Unsupported cases are planned, to be reported as not examined.
    assert [item.case for item in items][: len(every)] == [item.case for item in every]
    added = [item.case for item in items][len(every) :]
    assert added
    assert all(_plain(layer) is True for layer in added)
    # In place of the unsupported grouped causal fixed case: a causal layer of its sizes.
    assert AttentionLayer(width=16, seq_len=3, num_heads=4, mask="causal") in added
    assert len(set(items)) == len(items)


def test_nothing_stands_in_where_sizes_are_not_supported() -> None:
    run = made(supporting(lambda layer: False))
    assert len(run.items("scores", layers())) == len(made().items("scores", layers()))
    assert substitute(GROUPED, lambda layer: layer.width == 8) is None


def test_a_subject_of_low_rank_heads_alone_is_examined() -> None:
    run = made(supporting(lambda layer: layer.head_dim is not None and layer.mask == "none"))
    added = run.items("scores", layers())[len(made().items("scores", layers())) :]
    assert added
    assert all(isinstance(item.case, AttentionLayer) and item.case.head_dim is not None for item in added)
    # The grouped causal fixed case: heads of width/num_heads, and its groups.
    assert AttentionLayer(width=16, seq_len=3, num_heads=4, num_kv_heads=2, head_dim=4) in [u.case for u in added]
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


def test_a_declaration_that_fails_does_not_stop_the_plan() -> None:
    def failing(layer: AttentionLayer) -> bool:
        raise RuntimeError("no licence")

    run = made(supporting(failing))
    assert run.items("scores", layers()) == made().items("scores", layers())


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (AttentionLayer(width=8), "layers=AttentionLayer.*is not a list of layers; list one"),
        ([], r"layers=\[\]: is empty"),
        ([AttentionLayer(width=8), 4], r"layers\[1\]=4: is not an AttentionLayer"),
    ],
)
def test_layers_that_are_none_are_refused(declared: object, message: str) -> None:
    simulator: Any = functools.partial(collapsed)
    simulator.layers = declared
    with pytest.raises(InputError, match=message):
        made(simulator)
