"""Hypothesis strategies for attention layers and programs, simplest first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hypothesis import strategies as st

from attncheck._lib.errors import check_choice, check_integer, refuse
from attncheck.layers.attention import SCORE_SCALINGS, AttentionLayer
from attncheck.layers.inputs import ACTIVATIONS, DEFAULT_CLIP, NORMS
from attncheck.layers.nonlinearity import Nonlinearity, clip, erf, identity, relu, sigmoid, sin, tanh
from attncheck.layers.parts import PARTS
from attncheck.layers.parts.attention_map import ATTENTION_MAPS
from attncheck.layers.parts.mask import MASKS
from attncheck.layers.program import LinearCombination, Node, Program, ProgramCase
from attncheck.layers.program.mixes import sigmoid_mix, softmax_mix

__all__ = [
    "layers",
    "program_cases",
    "programs",
]

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
HEAD_DIMS = (1, 2, 3, 4, 8, 16)
STDS = (1.0, 0.5, 0.7, 1.5, 2.0)
# Standard deviations of position vectors, equally likely; two thirds of the layers have no position vectors.
POSITION_STDS = (0.0, 0.0, 0.0, 0.0, 0.5, 1.5)
POSITION_REACHES = (1.0, 0.5, 2.0)
INPUTS: tuple[dict[str, Any], ...] = (
    {"activation": "clip", "clip": DEFAULT_CLIP},
    {"activation": "clip", "clip": 1.0},
    *({"activation": name} for name in ACTIVATIONS if name != "clip"),
)

# Default maximum number of weight entries per draw. With explicit matrices, such a draw takes about 0.2 ms.
DIRECT_ENTRIES = 20_000


@st.composite
def layers(
    draw: st.DrawFn,
    *,
    max_entries: int = DIRECT_ENTRIES,
    min_width: int = 1,
    max_width: int = 4096,
    parts: Collection[str] = (),
) -> AttentionLayer:
    """Draw attention layers over all their options.

    Layers have 1 to 12 positions (possibly more than the width), 1 to 16 heads, full or low-rank
    heads, all maps, masks, groups, activations, scalings, correlations and positions; some tie
    queries to keys. Small examples come first.

    Parameters
    ----------
    max_entries : int
        Maximum number of weight entries per draw, about (s + 4H) n². Pass a large number for methods that draw no
        matrices.
    min_width, max_width : int
        Bounds on the width.
    parts : collection of str
        Parts that the paper's layer lacks and that drawn layers have wherever possible: "norm", "rotary positions",
        "window", "softcap", "sink", "position bias", "QK norm".

    Raises
    ------
    InputError
        If no layer within the bounds has at most `max_entries`, or a part is not known.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, database=None)
    ... @given(layers(max_entries=1000))
    ... def check(layer):
    ...     assert layer.weight_entries <= 1000
    >>> check()
    """
    for name in parts:
        check_choice("parts", name, ("norm", *(part.name for part in PARTS)))
    min_width = check_integer("min_width", min_width, 1, "pass the smallest width")
    max_width = check_integer("max_width", max_width, min_width, "pass a width of at least min_width")
    fields: dict[str, Any] = {
        "width": min_width,
        "seq_len": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 1,
        "input_correlation": 1.0,
    }
    least = AttentionLayer(**fields).weight_entries
    check_integer("max_entries", max_entries, least, f"pass at least {least}, the entries of the smallest layer")

    def choose(field: str, values: Sequence[Any]) -> Any:
        """Draw a value of a field that keeps the layer drawn so far within `max_entries`."""

        def affordable(value: Any) -> bool:
            return AttentionLayer(**{**fields, field: value}).weight_entries <= max_entries

        fields[field] = draw(st.sampled_from(values).filter(affordable))
        return fields[field]

    choose("seq_len", range(1, 13))
    heads = choose("num_heads", HEADS)
    # About half the layers have heads of full width, and about half have no groups, if these fit.
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
    fields["position_std"] = draw(st.sampled_from(POSITION_STDS))
    if fields["position_std"]:
        fields["position_reach"] = draw(st.sampled_from(POSITION_REACHES))
    tieable = fields["num_kv_heads"] is None and fields["query_std"] == fields["key_std"]
    if tieable and fields["score_scaling"] == "1/n":
        fields["tied_query_key"] = draw(st.booleans())
    if "norm" in parts:
        # Layer norm maps a single neuron to 0.
        fields["norm"] = draw(st.sampled_from(NORMS if fields["width"] > 1 else NORMS[:1]))
    layer = AttentionLayer(**fields, **draw(st.sampled_from(INPUTS)))
    for part in PARTS:
        if part.name in parts:
            options = [option for option in part.values(layer) if layer.replace(**option).weight_entries <= max_entries]
            layer = layer.replace(**draw(st.sampled_from(options))) if options else layer
    return layer


BOUNDED: tuple[Nonlinearity, ...] = (tanh(), clip(1.0), erf(), sin(), sigmoid())
UNBOUNDED: tuple[Nonlinearity, ...] = (relu(), identity())
# Matrices on the two sides of each score. In this order: one score; two scores without shared matrices, with the same
# left matrix, with the same right matrix, with both the same, and crossed (W^{1,1} = W^{2,2}); three scores, crossed
# twice and in a cycle.
_SIDES = (
    ("QK",),
    ("QK", "RL"),
    ("QK", "QL"),
    ("QK", "RK"),
    ("QK", "QK"),
    ("QK", "KL"),
    ("QK", "KQ", "QL"),
    ("QK", "KR", "RQ"),
)


@st.composite
def programs(draw: st.DrawFn, *, min_scores: int = 0, max_scores: int = 3) -> Program:
    """Draw Netsor programs with scores that satisfy Assumption 1 except for boundedness.

    Programs have Gaussian initial vectors, reusable matrices, sums, bounded and unbounded nonlinearities,
    scores with shared or crossed matrices, and an output that mixes values by the scores. Small programs come
    first.

    Parameters
    ----------
    min_scores, max_scores : int
        Bounds on the number of scores; 0 and 0 for plain Netsor programs.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, database=None)
    ... @given(programs())
    ... def check(program):
    ...     assert program.coverage().has_limit
    >>> check()
    """
    least = check_integer("min_scores", min_scores, 0, "pass the minimum number of scores of a program")
    most = check_integer("max_scores", max_scores, least, "pass the maximum number of scores of a program")
    program = Program()
    vectors = _draw_initials(draw, program)
    hidden = [program.weight(f"W{k + 1}", draw(st.sampled_from(STDS))) for k in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 3))):
        vector = program.matmul(draw(st.sampled_from(hidden)), draw(st.sampled_from(vectors)))
        if draw(st.booleans()):
            vector = program.nonlin(LinearCombination((1.0, 0.5)), vector, draw(st.sampled_from(vectors)))
        vectors.append(program.nonlin(draw(st.sampled_from(BOUNDED + UNBOUNDED)), vector))
    inputs = vectors[-2:]
    allowed = [()] * (least == 0) + [option for option in _SIDES if least <= len(option) <= most]
    if not allowed:
        refuse("min_scores", least, "is more than any program has", "pass a number from 0 to 3")
    sides: tuple[str, ...] = draw(st.sampled_from(allowed))
    names = dict.fromkeys(name for pair in sides for name in pair)
    weights = {name: program.weight(name, draw(st.sampled_from(STDS))) for name in names}
    scores = []
    for pair in sides:
        first, second = (program.matmul(weights[name], draw(st.sampled_from(inputs))) for name in pair)
        scores.append(program.score(first, second))
    if scores:
        value = program.weight("V")
        values = [program.matmul(value, draw(st.sampled_from(inputs))) for _ in scores]
        program.output(draw(st.sampled_from((softmax_mix, sigmoid_mix))), values, scores)
    return program


def _draw_initials(draw: st.DrawFn, program: Program) -> list[Node]:
    """Draw one to three initial vectors with a common correlation, possibly 0 or 1."""
    count, correlation = draw(st.integers(1, 3)), draw(st.sampled_from((0.0, 0.5, 1.0)))
    variance, mean = draw(st.sampled_from((1.0, 0.25, 4.0))), draw(st.sampled_from((0.0, 0.5)))
    cov = [[variance if i == j else correlation * variance for j in range(count)] for i in range(count)]
    return list(program.initials([f"h{k + 1}" for k in range(count)], [mean] * count, cov))


def program_cases(
    widths: tuple[int, ...], *, min_scores: int = 0, max_scores: int = 3
) -> st.SearchStrategy[ProgramCase]:
    """Draw programs for testing at several widths; see `programs`.

    Parameters
    ----------
    widths : tuple of int
        In ascending order.
    min_scores, max_scores : int
        Bounds on the scores.
    """
    drawn = programs(min_scores=min_scores, max_scores=max_scores)
    return drawn.map(lambda program: ProgramCase.of(program, widths))
