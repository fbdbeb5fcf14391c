"""The matrices W_Q, W_K and W_V of each head, as whitened scores, keys and values show them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from attncheck._lib.arrays import FloatArray
from attncheck.checks.check import Setting
from attncheck.checks.sample import Sample
from attncheck.layers.requirement import ANY
from attncheck.layers.requirements import SEVERAL_GROUPS, SEVERAL_HEADS, UNTIED, OfLayer


@dataclasses.dataclass(frozen=True)
class HeadMatrix:
    """A matrix that each head, or each group of heads, has.

    Attributes
    ----------
    name : str
    images : str
        What it makes: "scores", "keys" or "values".
    needs : frozenset of str
        Arrays that whitening the images needs.
    energy : callable Sample -> (squares, dof)
        Sums of squares of the whitened images, χ² given the inputs, and their degrees of freedom, (draws, matrices).
    count, dof : callable Setting -> int
        Number of matrices, and degrees of freedom of one of them in a draw.
    several : Requirement
        That there are several.
    requires : Requirement
        That it is a separate matrix.
    """

    name: str
    images: str
    needs: frozenset[str]
    energy: Callable[[Sample], tuple[FloatArray, FloatArray]]
    count: Callable[[Setting], int]
    dof: Callable[[Setting], int]
    several: OfLayer
    requires: OfLayer = ANY


def _score_entries(setting: Setting) -> int:
    whole = setting.input_rank * setting.head_rank
    return whole if setting.layer.rotary_base is None else setting.score_entries


QUERY = HeadMatrix(
    "W_Q",
    "scores",
    frozenset({"scores", "input_gram", "key_gram"}),
    lambda sample: sample.whitened_scores.squares(2),
    lambda setting: setting.layer.num_heads,
    _score_entries,
    SEVERAL_HEADS,
    UNTIED,
)
KEY, VALUE = (
    HeadMatrix(
        f"W_{name[0].upper()}",
        f"{name}s",
        frozenset({"input_gram", f"{name}_gram"}),
        functools.partial(Sample.gram_energy, name=name),
        lambda setting: setting.layer.kv_heads,
        lambda setting: setting.input_rank * setting.layer.head_width,
        SEVERAL_GROUPS,
    )
    for name in ("key", "value")
)
#: All of them.
HEAD_MATRICES = (QUERY, KEY, VALUE)
