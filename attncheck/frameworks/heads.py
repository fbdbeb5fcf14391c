"""Comparison of heads: copies, fixed heads, and heads of a different scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.text import listed
from attncheck.frameworks import laws
from attncheck.frameworks.effective import ROLES, Effective, agree, groups_of, labels_of
from attncheck.frameworks.initialiser import SYMBOLS
from attncheck.frameworks.inputs import PLURALS
from attncheck.frameworks.notes import Note, wrong


def about_maps(maps: int, shared: Sequence[str]) -> Note:
    """Return a note on `maps` attention maps, which have the matrices of the roles in `shared` in common.

    If they share no queries, keys or values, the note says that they are added or subtracted.
    """
    names = [PLURALS[role] for role in shared if role in ROLES]
    if not names:
        return Note(f"{maps} attention maps are added or subtracted before W_O")
    text = f"{maps} attention maps have the same {listed(names)}"
    return Note(text + ", as in differential attention" * (list(shared) == ["value", "output"]))


def about_heads(
    draws_by_role: Mapping[str, Sequence[Effective]], roles: Sequence[str], distinct: Sequence[int], precision: float
) -> Iterator[Note]:
    """Yield notes on heads that are equal, the same in every draw, or different in scale.

    `draws_by_role` has the matrices of all draws for each role in `roles`. `distinct` lists one head of each set of
    heads that share keys and values; it is no error that keys and values are equal within a set.
    """
    if doubled := _doubled(draws_by_role["query"][0], precision):
        yield Note("several heads have the same queries and keys, as if the values of one head were split")
    if unlike := {"key", "value"} <= {*roles} and _unlike_groups(draws_by_role["key"][0], precision):
        yield wrong(unlike)
    for role in roles:
        draws = draws_by_role[role]
        heads = list(range(draws[0].query.shape[1]))
        if role in ("key", "value"):
            heads = [head for head in distinct if head < draws[0][role].shape[1]]
        explained = (doubled and role != "output") or (unlike and role in ("key", "value"))
        notes = [] if explained else list(_of_heads(draws, role, heads, precision))
        yield from notes
        yield from _of_lines(draws, role, heads, precision, bool(notes))


def _doubled(first: Effective, precision: float) -> bool:
    """Return whether all heads with the same queries have the same keys, but different values.

    The result is False if no two heads have the same queries.
    """
    q, k, v = (first[role].swapaxes(0, 1) for role in ("query", "key", "value"))
    if not len(q) == len(k) == len(v):
        return False
    pairs = [(h, g) for h in range(len(q)) for g in range(h) if agree(q[g], q[h], precision)]
    return bool(pairs) and all(agree(k[g], k[h], precision) and not agree(v[g], v[h], precision) for h, g in pairs)


def _unlike_groups(first: Effective, precision: float) -> str:
    """Return a text on heads that share keys with other heads than values, if there are any."""
    keys, values = (labels_of(first[role], precision) for role in ("key", "value"))
    if keys == values or any(len(labels) == len(set(labels)) for labels in (keys, values)):
        return ""
    return f"heads share keys as {', '.join(map(str, keys))}, but values as {', '.join(map(str, values))}"


def _of_heads(draws: Sequence[Effective], role: str, heads: Sequence[int], precision: float) -> Iterator[Note]:
    blocks = [_blocks(d, role, len(draws[0].query[0]))[heads] for d in draws if _has_all_rows(d, draws[0], role)]
    if len(heads) < 2 or not np.ptp(blocks[0]):
        return
    fixed_heads = _repeated_heads(blocks, precision)
    yield from _copies(SYMBOLS[role], blocks[0], heads, precision)
    if fixed_heads and len(fixed_heads) < len(heads):
        which = _numbered([heads[h] for h in fixed_heads])
        yield wrong(f"{SYMBOLS[role]} is the same in every draw in {which}: this initialiser does not draw it")
    if not fixed_heads:
        yield from _uneven(SYMBOLS[role], blocks, heads)


def _of_lines(
    draws: Sequence[Effective], role: str, heads: Sequence[int], precision: float, heads_differ: bool
) -> Iterator[Note]:
    """Report the row and the column of a matrix whose standard deviation differs most clearly from the others, if any.

    If heads are known to differ (`heads_differ`), rows and columns are compared within heads.
    """
    if heads_differ:
        draws = [_levelled(draw, role) for draw in draws if _has_all_rows(draw, draws[0], role)]
    parts = [draw.output if role == "output" else draw[role][:, heads] for draw in draws]
    rows = min(len(part) for part in parts)
    flat = [part[:rows].reshape(rows, -1) for part in parts]
    flat = [flat[group[0]] for group in groups_of((draw[:1] for draw in flat), precision)]
    if len(flat) < 2 or min(flat[0].shape) < 2:
        return
    for line, axis in (("row", 1), ("column", 0)):
        if (odd := _odd(flat, axis)) is not None:
            index, ratio, mean = odd
            nothing = int(np.sum(mean == 0.0))
            if line == "column" and nothing > 1 and nothing % draws[0].query.shape[1] == 0:
                yield Note(
                    f"{SYMBOLS[role]}: {nothing} columns are 0 in every draw, as if they had other inputs or none"
                )
                continue
            text = f"{ratio:.3g} times the standard deviation of the others" if ratio else "0 in every draw"
            yield wrong(f"{SYMBOLS[role]}: {line} {index} {'has' if ratio else 'is'} {text}")


def _levelled(draw: Effective, role: str) -> Effective:
    """Return a draw in which each head of a role's matrix is divided by the median RMS of its neurons' weights."""
    heads = draw.query.shape[1]
    blocks = _blocks(draw, role, heads)
    size = np.median(np.sqrt(np.mean(blocks**2, axis=2 if role == "output" else 1)), axis=1)
    level = np.where(size > 0.0, size, 1.0)
    scale = (np.repeat(level, draw.output.shape[0] // heads) if role == "output" else level)[:, None]
    changes: dict[str, Any] = {role: draw[role] / scale}
    return dataclasses.replace(draw, **changes)


def _has_all_rows(draw: Effective, first: Effective, role: str) -> bool:
    """Return whether a draw has all heads of a role's matrix.

    In later draws, W_O may have fewer rows than in the `first` draw, and so fewer heads.
    """
    return role != "output" or draw.output.shape == first.output.shape


def _blocks(draw: Effective, role: str, heads: int) -> FloatArray:
    """Return the matrix of a role, split by head, (heads, ·, ·)."""
    return draw.output.reshape(heads, -1, draw.output.shape[1]) if role == "output" else draw[role].swapaxes(0, 1)


def _numbered(heads: Sequence[int]) -> str:
    """Return head numbers as text.

    Examples
    --------
    >>> _numbered([1]), _numbered([0, 2, 3])
    ('head 1', 'heads 0, 2 and 3')
    """
    return f"{'head' if len(heads) == 1 else 'heads'} {listed(heads)}"


def _copies(symbol: str, blocks: FloatArray, heads: Sequence[int], precision: float) -> Iterator[Note]:
    """Report heads with the same matrix, although they do not share keys and values.

    `symbol` is the name of the matrix, such as W_Q, and `blocks` has the part of each of the `heads`.
    """
    groups = groups_of(blocks, precision)
    same = [_numbered([heads[h] for h in group]) for group in groups if len(group) > 1 and np.ptp(blocks[group[0]])]
    if same:
        yield wrong(f"{symbol} is the same in {'every head' if len(groups) == 1 else ', and in '.join(same)}")


def _repeated_heads(blocks: Sequence[FloatArray], precision: float) -> list[int]:
    """Return the indices of heads whose entries are the same in the first two draws.

    `blocks` has an array for each draw, whose first axis is that of the heads.
    """
    if len(blocks) < 2:
        return []
    pairs = ((one[: len(two)], two) for one, two in zip(blocks[0], blocks[1], strict=True))
    return [h for h, (one, two) in enumerate(pairs) if np.ptp(two) and agree(one, two, precision)]


def _uneven(symbol: str, blocks: Sequence[FloatArray], heads: Sequence[int]) -> Iterator[Note]:
    """Report a head whose standard deviation clearly differs from that of the others.

    `symbol` is the name of the matrix, such as W_Q, and `blocks` has an array, (heads, ·, ·), for each draw.
    """
    rows = blocks[-1].shape[1]
    # Draws that repeat another one are left out, because they add no information.
    drawn = {block[:, :rows].tobytes(): block for block in blocks[::-1]}.values()
    if (odd := _odd(list(drawn), (1, 2))) is not None:
        text = f"{symbol} of head {heads[odd[0]]} has {odd[1]:.3g} times the standard deviation of the other heads"
        yield wrong(text)


def _odd(drawn: Sequence[FloatArray], axis: int | tuple[int, int]) -> tuple[int, float, FloatArray] | None:
    """Find the part (head, row or column) of a matrix whose mean square differs most from that of the others.

    Return its index, its RMS relative to that of the other parts, and the mean squares of all parts; or None if no part
    clearly differs. `drawn` has the matrix in each draw. `axis` is the axis, or pair of axes, that runs within a part.
    """
    squares = np.array([np.mean(draw**2, axis=axis) for draw in drawn])
    sizes = np.array([draw.size // squares.shape[1] for draw in drawn])
    outlier = laws.uneven(squares, sizes, np.concatenate([draw.ravel() for draw in drawn]))
    if outlier is None:
        return None
    mean = np.average(squares, axis=0, weights=sizes)
    return outlier, float(np.sqrt(mean[outlier] / np.delete(mean, outlier).mean())), mean
