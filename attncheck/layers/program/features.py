"""Features of a serialised program, read without building it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attncheck.layers.nonlinearity.function import FAMILIES


def features_of(program: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the features of a program in `Program.to_dict` form.

    Examples
    --------
    >>> from attncheck.programs import recurrent
    >>> features_of(recurrent(2).to_dict())
    ('reused weight', 'correlated initial vectors')
    """
    return tuple(name for name, has in _present(program["lines"]).items() if has)


def _present(lines: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Map the name of each feature to whether the lines of a program have it."""
    matmuls = {line["name"]: line for line in lines if "matmul" in line}
    scores = [[matmuls[side] for side in line["score"]] for line in lines if "score" in line]
    lefts, rights = ([sides[k]["matmul"] for sides in scores] for k in (0, 1))
    inputs = Counter(of for sides in scores for of in {side["of"] for side in sides})
    return {
        "scores": bool(scores),
        "outputs of scores": any(line.get("scores") for line in lines),
        "reused weight": _repeated([line["matmul"] for line in matmuls.values()]),
        "shared between scores": _repeated(lefts) or _repeated(rights),
        "crossed sharing": bool(set(lefts) & set(rights)),
        "scores share inputs": max(inputs.values(), default=0) > 1,
        "correlated initial vectors": any(_correlated(line["cov"]) for line in lines if "initial" in line),
        "unbounded φ": any(_unbounded(line["nonlin"]) for line in lines if "nonlin" in line),
    }


def _repeated(names: list[str]) -> bool:
    return len(set(names)) < len(names)


def _correlated(cov: list[list[float]]) -> bool:
    return any(value != 0.0 for i, row in enumerate(cov) for j, value in enumerate(row) if i != j)


def _unbounded(function: Mapping[str, Any]) -> bool:
    """Return whether a function is unbounded."""
    if "name" in function:
        return not FAMILIES[function["name"]].bounded
    return function.get("bounded") is False


#: Names of the features.
FEATURES = tuple(_present(()))
