"""Estimation of each matrix's initialiser from several draws, and detection of repeated or correlated matrices."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.names import grouped, indices, name_of, pattern_of
from attncheck._lib.text import first_few, listed
from attncheck.frameworks import laws
from attncheck.frameworks.effective import ROLES, Effective, agree, groups_of, labels_of
from attncheck.frameworks.inputs import PLURALS
from attncheck.frameworks.notes import ASKS, WRONG, Note, asks, wrong
from attncheck.frameworks.weights_notes import tiled_heads

SYMBOLS = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}
# Number of entries used for correlations.
_MOST = 2**16


@dataclasses.dataclass(frozen=True)
class MatrixStatistics:
    """Estimate of a matrix's initialiser from its entries.

    Attributes
    ----------
    name : str
        "W_Q", "W_K", "W_V" or "W_O".
    fan_in : int
    std : float
        Standard deviation of an entry times √fan_in, the σ of the theorem.
    low, high : float
        Ends of the interval of `std`. All intervals and rejected laws of an inspection are right together with
        probability 1 - 1e-6.
    laws : tuple of str
        The laws not rejected among normal, uniform and truncated normal (at two standard deviations of the normal
        law); or orthogonal, constant, none known.
    bias_std : float
        Standard deviation of the biases times √fan_in.
    known : tuple of str
        Names of conventional scales in the interval.
    """

    name: str
    fan_in: int
    std: float
    low: float
    high: float
    laws: tuple[str, ...]
    bias_std: float
    known: tuple[str, ...]

    @property
    def law(self) -> str:
        """The laws not rejected, as text."""
        return " or ".join(self.laws)


def kv_labels(first: Effective, unknown: Collection[str], precision: float) -> tuple[int, ...]:
    """Return one label per head, numbered by first appearance; heads with the same keys and values share a label.

    Roles in `unknown` are not compared, unless both keys and values are unknown.
    """
    # Values may have a different head dimension from keys.
    known = [first[role] for role in ("key", "value") if role not in unknown] or [first.key, first.value]
    return labels_of(np.concatenate(known, axis=2), precision)


def matrix_of(
    role: str, draws: Sequence[Effective], distinct: Sequence[int], precision: float, centred: bool
) -> MatrixStatistics:
    """Estimate the initialiser of a role's matrix from all draws.

    `distinct` lists one head of each set of heads with the same keys and values. `centred` tells whether a layer norm
    removed the mean of each column.
    """
    first = draws[0][role]
    fan_in = first.shape[0]
    lost = 1 / fan_in if centred and role != "output" and fan_in > 1 else 0.0
    heads = [head for head in distinct if head < first.shape[1]] if role in ("key", "value") else slice(None)
    parts = [draw[role] if role == "output" else draw[role][:, heads] for draw in draws]
    if len(parts) > 1 and _repeats(parts[1], parts[0], precision):
        parts = parts[:1]
    entries = np.concatenate([part.ravel() for part in parts])
    scale = laws.scale_of(entries).times(float(np.sqrt(fan_in / (1 - lost))))
    flat = parts[0].reshape(fan_in, -1)
    law_names = laws.laws_of(entries, laws.scale_of(entries), precision, lost)
    if law_names != (laws.CONSTANT,) and laws.orthogonal(flat):
        law_names = (laws.ORTHOGONAL,)
    packed = 0 if role == "output" else sum(draws[0][r].shape[1] * draws[0][r].shape[2] for r in ROLES)
    known = laws.conventions(fan_in, flat.shape[1], packed, 0 if role == "output" else first.shape[2])
    biases = np.concatenate([np.ravel(draw.biases[role]) for draw in draws])
    bias_std = float(np.sqrt(np.mean(biases**2) * fan_in))
    known_names = laws.known_by(scale, known, law_names)
    return MatrixStatistics(SYMBOLS[role], fan_in, scale.std, scale.low, scale.high, law_names, bias_std, known_names)


def _repeats(part: FloatArray, first: FloatArray, precision: float) -> bool:
    """Return whether `part`, the first rows of a matrix in a later draw, equals these rows in the first draw."""
    return agree(first[: len(part)], part, precision)


def repeated(draws: Sequence[Effective], roles: Sequence[str], distinct: Sequence[int], precision: float) -> list[Note]:
    """Return notes on matrices that are equal, correlated, the same in several draws, or of nonzero mean.

    `distinct` lists one head of each set of heads with the same keys and values.
    """
    first = draws[0]
    notes = _same_in_draws(draws, roles, precision)
    varying = [role for role in roles if np.ptp(first[role])]
    flat = {role: _flat(first, role, distinct) for role in varying}
    for one, second in itertools.combinations(varying, 2):
        for suffix, matrix in (("", flat[second]), (", transposed", flat[second].T)):
            if matrix.shape != flat[one].shape:
                continue
            if agree(flat[one], matrix, precision):
                if suffix or second == "output":
                    notes.append(wrong(f"{SYMBOLS[one]} is {SYMBOLS[second]}{suffix}"))
                break
            r = laws.correlated(flat[one].ravel()[:_MOST], matrix.ravel()[:_MOST])
            # Entries of products of matrices depend on each other, and correlate by chance in single draws.
            later = [] if suffix else [[_flat(draw, role, distinct) for role in (one, second)] for draw in draws[1:]]
            if r and all(laws.correlation(a, b) / r > 0.5 for a, b in later):
                text = f"entries of {SYMBOLS[one]} and {SYMBOLS[second]}{suffix} have correlation {r:.2f}"
                notes.append(wrong(text))
    inner = [role for role in varying if role != "output"]
    for group in groups_of((flat[role] for role in inner), precision):
        if len(group) > 1:
            same = listed(SYMBOLS[inner[i]] for i in group)
            notes.append(wrong(f"{same} are the same matrix"))
    for role in varying:
        scale = laws.scale_of(first[role])
        if laws.off_centre(first[role], scale):
            mean = f"mean {first[role].mean():.2g}, at a standard deviation of {scale.std:.2g}"
            notes.append(wrong(f"entries of {SYMBOLS[role]} have {mean}"))
    return notes


def _flat(draw: Effective, role: str, distinct: Sequence[int]) -> FloatArray:
    """Return the matrix of a role with all its heads side by side, (rows, neurons)."""
    matrix = draw[role][:, distinct] if role in ("key", "value") else draw[role]
    return matrix.reshape(len(matrix), -1)


def order_of_groups(labels: Sequence[int]) -> Iterator[Note]:
    """Report an unusual order of heads that share keys and values; such heads have equal `labels`.

    Examples
    --------
    >>> print(*order_of_groups([0, 1, 1, 0]), *order_of_groups([0, 0, 1, 1]))
    heads share keys and values as 0, 1, 1, 0
    """
    of, number = len(set(labels)), len(labels)
    if not 1 < of < number or number % of:
        return
    if list(labels) == [h % of for h in range(number)]:
        yield tiled_heads(of, number)
    elif list(labels) != [h // (number // of) for h in range(number)]:
        yield wrong(f"heads share keys and values as {', '.join(map(str, labels))}")


def constant(first: Effective, roles: Sequence[str], parameters: Mapping[str, FloatArray]) -> Iterator[Note]:
    """Report matrices whose entries are all equal.

    The note gives the cause: the initialiser, or a factor 0 in the forward pass.
    """
    for role in roles:
        number, zero = first[role].flat[0], not first[role].any()
        if np.ptp(first[role]) or first[role].size == 1 or (role == "output" and zero):
            continue
        cause = "this initialiser does not draw it"
        if zero and _all_drawn(parameters):
            zero = not all(array.any() for array in parameters.values())
            by = "0, or a parameter that starts at 0" if zero else "0"
            cause = f"no weight matrix is 0, but the forward pass multiplies {PLURALS[role]} by {by}"
        # Zeros may be intended, so they are a choice to declare, not an error.
        text, declared = f"every entry of {SYMBOLS[role]} is {number:.3g}: {cause}", (f"{role}_std", f"{role}_law")
        yield Note(text, ASKS if zero else WRONG, declared)


def unusual_scales(weights: Mapping[str, MatrixStatistics]) -> Iterator[Note]:
    """Ask about a mistaken fan-in of W_Q, W_K and W_V, and whether W_Q and W_K should differ.

    The fan-in is mistaken if the scale of each matrix is that of one mistake only. W_Q and W_K differ if their standard
    deviations match different conventional scales.
    """
    inner = [role for role in ROLES if role in weights]
    known = {*itertools.chain(*(weights[role].known or ("",) for role in inner))}
    if len(inner) > 1 and len(known) == 1 and known <= {*laws.MISTAKEN}:
        numbers = ", ".join(f"{weights[role].std:.3g}" for role in inner)
        which = listed(SYMBOLS[role] for role in inner)
        text = f"{which} have standard deviations {numbers} over √fan-in, as {known.pop()}"
        yield asks(text, *(f"{role}_std" for role in inner))
    # One matrix alone may match the last name by chance.
    unknown = (), laws.MISTAKEN[1:]
    of_scores = [weights[role] for role in ("query", "key") if role in weights and weights[role].known not in unknown]
    if len(of_scores) == 2 and not {*of_scores[0].known} & {*of_scores[1].known}:
        stds = (f"{m.std:.3g}/√fan-in, as {m.known[0]}" for m in of_scores)
        yield asks(f"W_Q and W_K have different standard deviations: {'; '.join(stds)}", "query_std", "key_std")


def _all_drawn(parameters: Mapping[str, FloatArray]) -> bool:
    """Return whether no parameter with several axes has a slice, such as a row or column, of zeros.

    The result is False if no parameter has several axes.
    """
    matrices = [array for array in parameters.values() if array.ndim > 1]
    axes = ((array, axis) for array in matrices for axis in range(array.ndim))
    return bool(matrices) and all(array.any(axis=tuple({*range(array.ndim)} - {axis})).all() for array, axis in axes)


def _same_in_draws(draws: Sequence[Effective], roles: Sequence[str], precision: float) -> list[Note]:
    """Report matrices of the first draw that recur in a later draw.

    If a matrix recurs in the second draw, it is reported as the same in every draw.
    """
    first, *rest = draws
    for i, draw in enumerate(rest):
        same = [r for r in roles if np.ptp(draw[r]) and _repeats(draw[r], first[r], precision)]
        if i == 0 and len(same) == len(roles) > 1:
            cause = "make returns the same module, or its initialisers have seeds of their own"
            return [wrong(f"all weights are the same in every draw: {cause}")]
        if i == 0 and same:
            text = "is the same in every draw: this initialiser does not draw it"
            return [wrong(f"{SYMBOLS[r]} {text}") for r in same]
        if same:
            which = ", ".join(SYMBOLS[r] for r in same)
            return [wrong(f"draw {i + 1} repeats the {which} of draw 0: draws are not independent")]
    return []


def biased(matrices: Mapping[str, MatrixStatistics]) -> Iterator[Note]:
    """Report nonzero biases, in one sentence."""
    stds = {PLURALS[role]: f"{m.bias_std:.3g}" for role, m in matrices.items() if m.bias_std > 0}
    if stds:
        noun = "a bias" if len(stds) == 1 else "biases"
        yield Note(f"{listed(stds)} have {noun} of standard deviation {listed(stds.values())} over sqrt(fan_in)")


def equal(arrays: Mapping[str, FloatArray]) -> list[list[str]]:
    """Group the names of equal arrays; vectors and constant arrays are left out.

    Examples
    --------
    >>> one, other = np.random.default_rng(0).standard_normal((2, 4, 4))
    >>> equal({"q": one, "k": one, "v": other})
    [['q', 'k']]
    """
    drawn = [name for name, array in arrays.items() if array.ndim > 1 and np.ptp(array)]
    groups = grouped(drawn, lambda name: (arrays[name].shape, arrays[name].tobytes()))
    return [names for names in groups.values() if len(names) > 1]


def same_parameters(parameters: Mapping[str, FloatArray]) -> list[Note]:
    """Report parameters that are equal, and equal thirds of a packed query-key-value parameter.

    Examples
    --------
    >>> one, other = np.random.default_rng(0).standard_normal((2, 4, 4))
    >>> print(*same_parameters({"q": one, "k": one, "v": other}))
    q and k are the same matrix
    """
    parts = dict(parameters)
    for name, array in parameters.items():
        axis = int(np.argmax(array.shape)) if array.ndim > 1 else 0
        if array.ndim > 1 and array.shape[axis] % 3 == 0:
            parts |= {f"third {i + 1} of {name}": part for i, part in enumerate(np.split(array, 3, axis))}
    return [wrong(f"{listed(names)} are the same matrix") for names in equal(parts)]


def same_layers(
    parameters: Mapping[str, FloatArray], claim: str = "have the same weights", level: str = WRONG
) -> list[Note]:
    """Report equal parameters whose names differ in one number, that of the layer.

    `claim` is what the note says about these layers, and `level` is the level of the note.

    Examples
    --------
    >>> weight, other = np.random.default_rng(0).standard_normal((2, 4, 4))
    >>> held = {"layers.0.linear1": weight, "layers.1.linear1": weight, "layers.2.linear1": other}
    >>> print(*same_layers(held))
    layers 0 and 1 have the same weights: layers.*.linear1
    """
    layers: dict[tuple[int, ...], list[str]] = {}
    for names in equal(parameters):
        if len({pattern_of(name) for name in names}) == 1:
            columns = [column for column in zip(*map(indices, names), strict=True) if len(set(column)) > 1]
            if len(columns) == 1:
                layers.setdefault(columns[0], []).append(name_of(names, names))
    return [Note(f"layers {listed(which)} {claim}: {first_few(names, 1)}", level) for which, names in layers.items()]
