"""hypothesis strategies: random attention layers, programs and stacks, from the simplest upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from attncheck._lib.errors import check_whole, refuse
from attncheck.layers.attention import ATTENTION_MAPS, MASKS, SCORE_SCALINGS, AttentionLayer
from attncheck.layers.inputs import ACTIVATIONS, DEFAULT_CLIP, NORMS
from attncheck.layers.nonlinearity import Nonlinearity, clip, erf, gaussian, identity, relu, sin, tanh
from attncheck.layers.program import LinearCombination, Node, Program, ProgramCase
from attncheck.layers.program.mixes import sigmoid_mix, softmax_mix
from attncheck.layers.stack import AttentionStack

__all__ = [
    "layers",
    "program_cases",
    "programs",
    "stacks",
]

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16)
HEAD_DIMS = (1, 2, 3, 4, 8, 16)
STDS = (1.0, 0.5, 0.7, 1.5, 2.0)
# Two layers in three have no positions.
POSITION_STDS = (0.0, 0.0, 0.0, 0.0, 0.5, 1.5)
POSITION_REACHES = (1.0, 0.5, 2.0)
MLP_RATIOS = (1, 2, 4)
ROTARY_BASES = (10_000.0, 100.0, 500_000.0)
INPUTS: tuple[dict[str, Any], ...] = (
    {"activation": "clip", "clip": DEFAULT_CLIP},
    {"activation": "clip", "clip": 1.0},
    *({"activation": name} for name in ACTIVATIONS if name != "clip"),
)

# What a literal draw may cost in the default run, in weight entries: about 0.2 ms.
DIRECT_ENTRIES = 20_000


@st.composite
def layers(
    draw: st.DrawFn,
    *,
    max_entries: int = DIRECT_ENTRIES,
    min_width: int = 1,
    max_width: int = 4096,
    rotary: bool = False,
    norm: bool = False,
) -> AttentionLayer:
    """Draw attention layers over the whole space that the description spans.

    Widths from `min_width` to `max_width`, 1 to 12 positions (more than the width included), 1 to 16
    heads, full and low-rank heads, all maps, masks, groups, activations, scalings, correlations and
    positions; now and then queries are tied to keys.
    Small examples come first, so that what hypothesis prints is readable.

    Parameters
    ----------
    max_entries : int
        Cap on the weight entries of one literal draw, about (s + 4H) n²; what bounds the cost of the
        direct reading. Pass a large number for readings without matrices.
    min_width, max_width : int
        Bounds on the width.
    rotary : bool
        Whether layers have rotary positions wherever they can: not by default, as the paper's layer has none.
    norm : bool
        Whether layers normalise their inputs, by RMS norm or layer norm: not by default, as the paper's does not.

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

    def within(field: str, values: Sequence[Any]) -> list[Any]:
        """Return the values with which the layer, all else being as it is, costs no more than the cap."""
        return [v for v in values if AttentionLayer(**{**fields, field: v}).weight_entries <= max_entries]

    def choose(field: str, values: Sequence[Any]) -> Any:
        """Draw one of the values within the cap, while all else is small."""
        fields[field] = draw(st.sampled_from(within(field, values)))
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
    fields["position_std"] = draw(st.sampled_from(POSITION_STDS))
    if fields["position_std"]:
        fields["position_reach"] = draw(st.sampled_from(POSITION_REACHES))
    tieable = fields["num_kv_heads"] is None and fields["query_std"] == fields["key_std"]
    if tieable and fields["score_scaling"] == "1/n":
        fields["tied_query_key"] = draw(st.booleans())
    pairs = within("head_dim", [dim for dim in HEAD_DIMS if dim % 2 == 0])
    if rotary and pairs and not fields.get("tied_query_key"):
        fields["head_dim"] = draw(st.sampled_from(pairs))
        fields["rotary_base"] = draw(st.sampled_from(ROTARY_BASES))
    if norm:
        # Layer norm takes the only neuron of a position away.
        fields["norm"] = draw(st.sampled_from(NORMS if fields["width"] > 1 else NORMS[:1]))
    return AttentionLayer(**fields, **draw(st.sampled_from(INPUTS)))


BOUNDED: tuple[Nonlinearity, ...] = (tanh(), clip(1.0), erf(), sin(), gaussian(1.0))
UNBOUNDED: tuple[Nonlinearity, ...] = (relu(), identity())
# Matrices of the two sides of scores: one score, two apart, one side shared, the other side shared, both shared,
# crossed (W^{1,1} = W^{2,2}), crossed both ways, and a cycle.
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
    """Draw Netsor programs with scores that satisfy Assumption 1, but for boundedness.

    Jointly Gaussian initial vectors, some layers of matrices that may be used again, sums of vectors, bounded and
    unbounded nonlinearities, scores with shared and crossed matrices on shared inputs, and an output that mixes
    values by the scores. Small programs come first, and what a failure shrinks to is readable.

    Parameters
    ----------
    min_scores, max_scores : int
        Bounds on the scores; 0 and 0 for plain Netsor programs.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, database=None)
    ... @given(programs())
    ... def check(program):
    ...     assert program.coverage().has_limit
    >>> check()
    """
    least = check_whole("min_scores", min_scores, 0, "pass the fewest scores a program may have")
    most = check_whole("max_scores", max_scores, least, "pass the most scores a program may have")
    program = Program()
    vectors = _draw_initials(draw, program)
    hidden = [program.weight(f"W{k + 1}", draw(st.sampled_from(STDS))) for k in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(1, 3))):
        vector = program.matmul(draw(st.sampled_from(hidden)), draw(st.sampled_from(vectors)))
        if draw(st.booleans()):
            vector = program.nonlin(LinearCombination((1.0, 0.5)), vector, draw(st.sampled_from(vectors)))
        vectors.append(program.nonlin(draw(st.sampled_from(BOUNDED + UNBOUNDED)), vector))
    inputs = vectors[-2:]
    allowed = [()] * (least == 0) + [each for each in _SIDES if least <= len(each) <= most]
    if not allowed:
        refuse("min_scores", least, f"leaves nothing to draw up to max_scores={most}", "programs have up to 3 scores")
    sides: tuple[str, ...] = draw(st.sampled_from(allowed))
    names = dict.fromkeys(name for pair in sides for name in pair)
    weights = {name: program.weight(name, draw(st.sampled_from(STDS))) for name in names}
    scores = []
    for pair in sides:
        left, right = (program.matmul(weights[name], draw(st.sampled_from(inputs))) for name in pair)
        scores.append(program.score(left, right))
    if scores:
        value = program.weight("V")
        values = [program.matmul(value, draw(st.sampled_from(inputs))) for _ in scores]
        program.output(draw(st.sampled_from((softmax_mix, sigmoid_mix))), values, scores)
    return program


def _draw_initials(draw: st.DrawFn, program: Program) -> list[Node]:
    """Write one to three initial vectors of one correlation, which may be 0 or 1."""
    count, correlation = draw(st.integers(1, 3)), draw(st.sampled_from((0.0, 0.5, 1.0)))
    variance, mean = draw(st.sampled_from((1.0, 0.25, 4.0))), draw(st.sampled_from((0.0, 0.5)))
    cov = [[variance if i == j else correlation * variance for j in range(count)] for i in range(count)]
    return list(program.initials([f"h{k + 1}" for k in range(count)], [mean] * count, cov))


def program_cases(
    widths: tuple[int, ...], *, min_scores: int = 0, max_scores: int = 3
) -> st.SearchStrategy[ProgramCase]:
    """Draw programs to be examined at these widths; see `programs`.

    Parameters
    ----------
    widths : tuple of int
        In ascending order.
    min_scores, max_scores : int
        Bounds on the scores.
    """
    drawn = programs(min_scores=min_scores, max_scores=max_scores)
    return drawn.map(lambda program: ProgramCase.of(program, widths))


# Linear attention cubes the scale of its stream at every layer: more of them leave the doubles.
_DEEPEST_LINEAR = 3
# With larger scores softmax is nearly a choice of one key, and 1/n is seen at widths in the thousands only.
_LARGEST_SCORE = 2.0


@st.composite
def stacks(
    draw: st.DrawFn,
    *,
    min_depth: int = 1,
    max_depth: int = 4,
    max_entries: int = DIRECT_ENTRIES,
    regular: bool = False,
    blocks: bool = False,
) -> AttentionStack:
    """Draw stacks of attention layers: any layer, several times, with any activations between them.

    Parameters
    ----------
    min_depth, max_depth : int
        Bounds on the layers; of linear attention there are at most 3, or `min_depth`.
    max_entries : int
        Cap on the weight entries of one literal draw of one layer, its perceptron included.
    regular : bool
        Only stacks that are to approach their limit as 1/n at moderate widths: full heads, 1/√n scaling, softmax or
        sigmoid, σ_Q σ_K σ² of at most 2, σ² the variance of h + e.
    blocks : bool
        Whether stacks have norms before attention and after each sum, and perceptrons, as it comes: not by default, as
        the paper's layers have none.

    Raises
    ------
    InputError
        If no stack is within the bounds.

    Examples
    --------
    >>> from hypothesis import given, settings
    >>> @settings(max_examples=5, database=None)
    ... @given(stacks(max_depth=2, max_entries=1000))
    ... def check(stack):
    ...     assert stack.depth <= 2
    >>> check()
    """
    least = check_whole("min_depth", min_depth, 1, "pass the fewest layers a stack may have")
    deepest = check_whole("max_depth", max_depth, least, "pass the most layers a stack may have")
    layer = draw(layers(max_entries=max_entries))
    if regular:
        bounded = layer.attention_map if layer.attention_map == "sigmoid" else "softmax"
        changes = {"head_dim": None, "score_scaling": "1/sqrt(n)", "attention_map": bounded, "tied_query_key": False}
        layer = layer.replace(**changes)
        if layer.query_std * layer.key_std * layer.inputs.hidden_std**2 > _LARGEST_SCORE:
            layer = layer.replace(query_std=1.0, key_std=1.0, input_std=1.0, position_std=min(1.0, layer.position_std))
    if layer.attention_map == "linear":
        deepest = max(least, min(deepest, _DEEPEST_LINEAR))
    depth = draw(st.integers(least, deepest))
    names = draw(st.lists(st.sampled_from(ACTIVATIONS), min_size=depth, max_size=depth))
    stack = AttentionStack(layer=layer, depth=depth, activations=tuple(names), residual=draw(st.booleans()))
    if not blocks:
        return stack
    # Layer norm takes the only neuron of a position away.
    norms = st.sampled_from((None, *NORMS) if layer.width > 1 else (None, *NORMS[:1]))
    stack = stack.replace(layer=layer.replace(norm=draw(norms)), post_norm=draw(norms))
    ratios = [m for m in MLP_RATIOS if layer.weight_entries + 2 * m * layer.width**2 <= max_entries]
    if ratios and (mlp := draw(st.sampled_from((None, "relu", "gelu")))):
        stack = stack.replace(mlp=mlp, mlp_ratio=draw(st.sampled_from(ratios)), mlp_std=draw(st.sampled_from(STDS)))
    return stack
