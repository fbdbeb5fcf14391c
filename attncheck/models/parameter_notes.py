"""Notes on parameters of a model that differ from their family or from the rest of the model."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attncheck._lib.names import grouped, indices, part_of, pattern_of
from attncheck._lib.text import counted, first_few, listed
from attncheck.frameworks.framework import Parameter
from attncheck.frameworks.initialiser import same_layers
from attncheck.frameworks.notes import ASKS, NOTE, WRONG, Note, asks, wrong, wrong_first
from attncheck.models.families import STATES, Family, families, kinds, parts_of, state_of
from attncheck.models.parameters import (
    NEVER_DRAWN,
    NOT_FINITE,
    NOT_INITIALISED,
    NOT_USED,
    ParameterStatistics,
)

# Fraction of families, or of the other members of a family, that counts as "most".
_MOST = 2 / 3
# Largest ratio of the standard deviations of two layers that a convention for the depth may explain.
_DEPTH = 2.0
# Maximum number of parts of a family that a note lists.
_LISTED = 4
# A standard deviation of 1 is an error if the fan-in is at least `_MANY`. To be identified, it must have an interval
# whose ends have a ratio of at most `_NARROW`.
_MANY, _NARROW = 16, 1.25
_BIAS_NAMES = {"bias", "beta", "b"}
# Words in the names of projections to queries, keys and values.
_INWARD = {"q", "k", "v", "query", "key", "value", "wq", "wk", "wv"}


def notes_of(table: Sequence[ParameterStatistics], causal: bool = False) -> list[Note]:
    """Return notes on the parameters of a model, worst first.

    With `causal` attention, a lack of depth scaling is noted too. The probability that chance alone causes any note
    that reports an error is at most 1e-6 for the whole table.
    """
    split, every = parts_of(table), families(table)
    return wrong_first(
        [
            *_states(every, table),
            *_unused(table),
            *_within_families(split),
            *_constant_projections(split),
            *_among_projections(split, every, causal),
            *_biases(every),
            *_norms(every),
        ]
    )


def copied(parameters: Sequence[Parameter]) -> list[Note]:
    """Report random parameters that are equal in several layers.

    Shared parameters, or equal biases alone, may be intended.

    Examples
    --------
    >>> import numpy as np
    >>> entries = (np.arange(4.0),)
    >>> print(*copied([Parameter(f"h.{i}.weight", (2, 2), "Linear", (2, 2), entries) for i in range(2)]))
    layers 0 and 1 have the same weights: h.*.weight
    """
    drawn = [parameter for parameter in parameters if parameter.drawn and parameter.initialised]
    weights, biases = (
        {p.name: p.entries[0][None] for p in drawn if (len(p.shape) > 1) == many} for many in (True, False)
    )
    shared = {name: p.entries[0][None] for p in drawn if p.tied for name in (p.name, *p.tied)}
    notes = same_layers(weights) or same_layers(biases, "have the same biases", ASKS)
    return notes + same_layers(shared, "share their weights", ASKS)


def _names(rows: Iterable[ParameterStatistics], table: Sequence[ParameterStatistics]) -> str:
    """Join the names of some parameters of a table; names that differ only in numbers become one, such as "h.*.w"."""
    chosen, all_names = (grouped([row.name for row in group], pattern_of) for group in (rows, table))
    return first_few(part_of(members, all_names[pattern]) for pattern, members in chosen.items())


def _states(every: Sequence[Family], table: Sequence[ParameterStatistics]) -> Iterator[Note]:
    """Report parameters that are not initialised, not finite or never drawn.

    `every` has the families of all parameters in `table`.
    """
    rows: dict[str, list[ParameterStatistics]] = {state: [] for state in (*STATES, "")}
    for family in every:
        rows[state_of(family.first)] += family.members
    texts = {
        NOT_INITIALISED: "{} not initialised: nothing, or NaN, was written to this memory",
        NOT_FINITE: "{}: NaN or infinite entries",
        NEVER_DRAWN: "{}: random entries, the same in every draw",
    }
    if rows[NEVER_DRAWN] and all(row.constant for row in rows[""]):
        texts[NEVER_DRAWN] = "all parameters are the same in every draw: make returns the same weights"
    for state, text in texts.items():
        if rows[state]:
            yield wrong(text.format(_names(rows[state], table)))


def _within_families(split: Sequence[Sequence[Family]]) -> Iterator[Note]:
    """Report comparable parameters that have different initialisers; `split` is the result of `parts_of`."""
    for parts in split:
        main, rest = parts[0], parts[1:]
        if not rest or state_of(main.first):
            continue
        members = [member for part in parts for member in part.members]
        name = _names(members, members)
        if _dominates(parts) and not _may_be_trend(members, parts):
            yield from (_different(part, main, members) for part in rest)
        else:
            text = f"{name} differ: {'; '.join(f'{part}: {part.text}' for part in parts[:_LISTED])}"
            yield asks(text, *(member.name for member in members)) if _are_two(parts) else Note(text)


def _are_two(parts: Sequence[Family]) -> bool:
    """Return whether there are only two parameters, whose scales differ more than depth scaling explains.

    `parts` are the families into which comparable parameters are split.
    """
    stds = [member.scale.std for part in parts for member in part.members if not member.constant]
    return len(stds) == len(parts) == 2 and max(stds) > _DEPTH * min(stds)


def _dominates(parts: Sequence[Family]) -> bool:
    """Return whether most of the comparable parameters that are split into `parts` are in the first part."""
    count = sum(len(part.members) for part in parts)
    return len(parts[0].members) >= max(2, _MOST * (count - 1))


def _different(part: Family, main: Family, members: Sequence[ParameterStatistics]) -> Note:
    """Report a part of comparable parameters whose initialiser differs from that of the largest part, `main`.

    `members` are the parameters of all parts. Zeros in the last layer are a convention, so the note only asks about
    them.
    """
    last = max(members, key=lambda member: indices(member.name))
    zero = part.members == (last,) and last.law == "zeros"
    text = f"{part}: {part.text_with_default}; {main.name} elsewhere: {main.text_with_default}"
    return asks(text, last.name) if zero else wrong(text)


def _may_be_trend(members: Sequence[ParameterStatistics], parts: Sequence[Family]) -> bool:
    """Return whether the parts may differ because the standard deviation is monotonic in the depth.

    `members` are the parameters of all parts. A single member whose interval is disjoint from all others is no trend.
    """
    main = parts[0].members
    low, high = (f(m.mean_bounds[k] for p in parts for m in p.members) for f, k in ((max, 0), (min, 1)))
    if low > high:  # means differ
        return False
    outside = [member for part in parts[1:] for member in part.members]
    if not all(kinds(member) & kinds(main[0]) for member in outside):
        return False
    only = outside[0].scale
    is_disjoint = all(only.low > member.scale.high or only.high < member.scale.low for member in main)
    if len(outside) == 1 and is_disjoint:
        return False
    scales = [member.scale for member in sorted(members, key=lambda member: indices(member.name))]
    pairs = list(itertools.combinations(scales, 2))
    return all(first.high >= second.low for first, second in pairs) or all(
        first.low <= second.high for first, second in pairs
    )


def _constant_projections(split: Sequence[Sequence[Family]]) -> Iterator[Note]:
    """Report projections whose entries are all the same, if they are the largest part of comparable parameters."""
    for main, *_ in split:
        if main.first.constant and main.first.fans is not None:
            text = f"{main}: {main.first.law}: this initialiser does not draw the projection"
            yield Note(text, WRONG if main.first.mean else ASKS, (main.first.name,))


def _divisors(family: Family) -> list[tuple[str, float]]:
    """Return the divisors that depth scaling allows for the standard deviation of a family, as pairs (name, number).

    The first one is 1, without a name.
    """
    depth = family.depth
    if depth <= 1:
        return [("", 1.0)]
    return [("", 1.0), (f"sqrt(2·{depth})", math.sqrt(2 * depth)), (f"sqrt({depth})", math.sqrt(depth))]


def _divisor(family: Family, std: float) -> str | None:
    """Return the name of the divisor for which ``std / divisor`` is within the bounds of a family.

    The result is None if there is no such divisor.
    """
    low, high = family.bounds
    return next((text for text, by in _divisors(family) if low <= std / by <= high), None)


def _common_initialiser(projections: Sequence[Family]) -> dict[str, str]:
    """Find the initialiser, other than a default, that most projections share up to depth scaling.

    Return a mapping with one entry per family that shares this initialiser: from the name of the family's first member
    to the name of its divisor. It is empty if there is no such initialiser.
    """
    chosen = {family.first.name for family in projections if not family.keeps_default}
    best, score = dict[str, str](), (0, 0, 0)
    for kind in sorted({kind for family in projections for kind in kinds(family.first)}):
        same = [family for family in projections if kind in kinds(family.first)]
        for point in sorted({family.bounds[0] * by for family in same for _, by in _divisors(family)}):
            fits = {f.first.name: text for f in same if (text := _divisor(f, point)) is not None}
            direct = sum(fits[name] == "" for name in fits.keys() & chosen)
            best, score = max((best, score), (fits, (len(fits.keys() & chosen), len(fits), direct)), key=lambda x: x[1])
    return best if score[2] > 1 and score[0] >= _MOST * len(projections) else {}


def _representatives(split: Sequence[Sequence[Family]]) -> list[Family]:
    """Return the largest part of each group of comparable parameters, and some other parts.

    If the largest part of a group does not contain most members, the other parts that keep a default initialiser are
    added.
    """
    defaults = [part for parts in split if not _dominates(parts) for part in parts[1:] if part.keeps_default]
    return [*(parts[0] for parts in split), *defaults]


def _among_projections(split: Sequence[Sequence[Family]], every: Sequence[Family], causal: bool) -> Iterator[Note]:
    """Report projections whose initialisers differ from that of most others, unless one known initialiser fits both.

    `split` is the result of `parts_of`, and `every` has all families.
    """
    projections = [family for family in _representatives(split) if family.first.fans is not None and family.drawn]
    common = _common_initialiser(projections)
    direct = [family for family in projections if common.get(family.first.name) == ""]
    if not direct:
        return
    main = Family("projections", tuple(member for family in direct for member in family.members))
    which = "all other" if len(direct) == len(projections) - 1 else "most"
    rest = [f for f in projections if common.get(f.first.name) != "" and not f.matches & main.matches]
    scaled = [family for family in rest if family.first.name in common]
    outliers = [family for family in rest if family not in scaled]
    yield from (_depth_scaled(f, f"{main.std:.2g}/{common[f.first.name]}", direct) for f in scaled)
    blocks = [family for family in projections if family.depth > 1]
    if causal and not scaled and _unscaled(blocks, main, common):
        yield Note(f"depth scaling: no; std {main.std:.2g} in every projection of the blocks")
    yield from _distinct_notes(outliers, projections, f"{which} projections: {main.text}")
    for family in every:
        if family.first.owner == "Embedding" and family.keeps_default and not family.matches & main.matches:
            # A readout that is tied to this matrix has logits of size √fan-in. Other embeddings may share it, too.
            head = next((name for name in family.first.tied if "emb" not in name), "")
            which = f"{family}, tied to {head}," if head else str(family)
            text = f"{which} keeps the default of Embedding: {family.text}; projections: {main.text}"
            yield asks(text, *_members([family])) if head else Note(text)


def _depth_scaled(scaled: Family, std: str, candidates: Sequence[Family]) -> Note:
    """Report a depth-scaled family, and projections of the blocks with as many outputs that are not scaled.

    `std` is the scaled standard deviation as text, and `candidates` are the projections that are not scaled.
    Projections to queries, keys or values, known by name, are left out: they do not write to the residual path.
    """
    same = [family for family in candidates if family.depth > 1 and _outputs(family) == _outputs(scaled)]
    unscaled = [family for family in same if _INWARD.isdisjoint(re.split(r"[./_]", family.first.name.lower()))]
    where = f", not in {listed(family.name for family in unscaled)}" if unscaled else ""
    text = f"depth scaling: {std} in {scaled.name}{where}"
    return asks(text, *_members(unscaled)) if unscaled else Note(text)


def _members(families: Iterable[Family]) -> list[str]:
    """Return the names of all parameters of families."""
    return [member.name for family in families for member in family.members]


def _outputs(family: Family) -> int:
    return family.first.fans[1] if family.first.fans else 0


def _unscaled(blocks: Sequence[Family], main: Family, common: Mapping[str, str]) -> bool:
    """Return whether all projections of the blocks are normal with the same standard deviation, whatever their fan-in.

    The fan-ins must differ, and the intervals must exclude depth scaling. `main` has the projections that have the
    common initialiser, and `common` is the result of `_common_initialiser`.
    """
    fans = {family.first.fans for family in blocks}
    exact = all(common.get(f.first.name) == "" and f.bounds[0] * f.depth**0.5 > main.std for f in blocks)
    return exact and len({pair[0] for pair in fans if pair}) > 1 and any("normal" in law for law in main.laws)


def _distinct_notes(outliers: Sequence[Family], projections: Sequence[Family], reference: str) -> Iterator[Note]:
    """Report `outliers`, whose initialiser differs from that of most projections in the model.

    `reference` is a text on the initialiser of most projections.
    """
    chosen = {family.first.owner for family in projections if not family.keeps_default}
    unit = [family.name for family in outliers if _is_unit(family)]
    if unit:
        more = f" and {counted(len(unit) - 1, 'other')}" if len(unit) > 1 else ""
        text = f"{unit[0]}{more}: normal, std 1 for any fan-in, the default of torch's normal_"
        yield wrong(f"{text}; {reference}")
    classes: dict[str, list[Family]] = {}
    for family in (family for family in outliers if not _is_unit(family)):
        owner = family.first.owner
        if family.keeps_default and owner not in chosen:
            classes.setdefault(owner, []).append(family)
            continue
        default_text = f" keeps the default of {owner}" if family.keeps_default else ""
        yield Note(f"{family.name}{default_text}: {family.text}; {reference}", WRONG if default_text else NOTE)
    for owner, members in classes.items():
        names = listed(family.name for family in members)
        yield asks(f"every {owner} keeps its default: {names}; {reference}", *_members(members))


def _is_unit(family: Family) -> bool:
    """Return whether the entries of a projection are standard normal although its fan-in is large."""
    low, high = family.bounds
    summed = family.first.fans is not None and family.first.fans[0] >= _MANY
    return summed and "normal" in family.laws and low <= 1 <= high <= _NARROW * low


def _is_norm(row: ParameterStatistics) -> bool:
    return "norm" in row.owner.lower()


def _last_word(row: ParameterStatistics) -> str:
    return re.split(r"[./_]", row.name)[-1]


def _biases(every: Sequence[Family]) -> Iterator[Note]:
    """Report random biases if other biases are zero."""
    biases = [f for f in every if _last_word(f.first) in _BIAS_NAMES and not _is_norm(f.first)]
    drawn = [family for family in biases if family.drawn]
    if drawn and any(family.first.law == "zeros" for family in biases):
        texts = "; ".join(f"{family}: {family.text_with_default}" for family in drawn)
        yield Note(f"random biases, while others are zeros: {texts}")


def _norms(every: Sequence[Family]) -> Iterator[Note]:
    """Report norms whose scale is not one or whose bias is not zero."""
    around_zero: dict[str, list[str]] = {}
    for family in every:
        first = family.first
        law = "zeros" if _last_word(first) in _BIAS_NAMES else "ones"
        if not _is_norm(first) or state_of(first) or first.law == law:
            continue
        if law == "ones" and family.drawn and first.mean_bounds[0] <= 0 <= first.mean_bounds[1]:
            around_zero.setdefault(first.owner, []).extend(member.name for member in family.members)
        else:
            yield Note(f"{family} of {first.owner}: {family.text}, not {law}")
    for owner, names in around_zero.items():
        more = f" and {counted(len(names) - 1, 'other')}" if len(names) > 1 else ""
        yield wrong(f"scales of {owner} are drawn around 0, where ones are usual: {names[0]}{more}")


def _unused(table: Sequence[ParameterStatistics]) -> Iterator[Note]:
    """Report parameters that do not affect the outputs."""
    if unused := [row for row in table if NOT_USED in row.notes]:
        text = f"no gradient of the outputs reaches {_names(unused, table)}"
        yield asks(text, *(row.name for row in unused))
