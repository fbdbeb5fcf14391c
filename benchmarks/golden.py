"""Golden values: ``python benchmarks/golden.py`` compares, ``--write`` recomputes them.

``tests/golden.json`` holds the values with the versions and arithmetic that made them; `tests/test_golden.py`
recomputes them. All are computed, or drawn from keyed streams, at the smallest sizes that use each part of the
theory. BLAS kernels matter only to the paper's values, whose layers of width 256 and more take roots of nearly
singular matrices: these are compared only under the file's arithmetic.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import attncheck as ac
from attncheck.paper.experiments import EXPERIMENTS
from attncheck.paper.stacks.distance import distances
from attncheck.paper.units import Task, perform, units_of
from attncheck.records.manifest import installed_versions, this_machine

FILE = Path(__file__).resolve().parents[1] / "tests" / "golden.json"
#: Relative tolerance, for a different order of summation.
TOLERANCE = 1e-9
_POINTS = np.array([-2.0, 0.3, 1.0, 4.0])
_LAYER = ac.AttentionLayer(width=16, seq_len=3, num_heads=2)
_LAYERS = {
    "softmax": _LAYER,
    "causal, grouped, relu inputs": _LAYER.replace(num_heads=4, num_kv_heads=2, mask="causal", activation="relu"),
    "low rank, positions": _LAYER.replace(head_dim=4, position_std=0.5, input_correlation=0.5),
    "sigmoid, 1/n": _LAYER.replace(attention_map="sigmoid", score_scaling="1/n", activation="tanh"),
}


def values() -> dict[str, float]:
    found: dict[str, float] = {}
    for name, layer in _LAYERS.items():
        found |= _of_law(f"limit, {name}", ac.limit(layer))
        found |= _of_law(f"finite width, {name}", ac.finite_width_law(layer, size=64, seed=1))
        drawn = ac.simulate(layer, 50, seed=2, method="collapsed").outputs
        found[f"collapsed draws, {name}"] = float(np.abs(drawn).sum())
    literal = ac.simulate(_LAYER, 20, seed=2, method="direct").outputs
    found["direct draws"] = float(np.abs(literal).sum())
    return found | _rates() | _stacks() | _paper()


def _of_law(name: str, law: Any) -> dict[str, float]:
    """Return a law's distribution function, density, one quantile and moments."""
    curves = {"cdf": law.cdf(_POINTS), "pdf": law.pdf(_POINTS)}
    found = {
        f"{name}: {what}({t:g})": float(y) for what, ys in curves.items() for t, y in zip(_POINTS, ys, strict=True)
    }
    found[f"{name}: ppf(0.9)"] = float(law.ppf(0.9))
    found[f"{name}: variance"] = float(law.variance())
    found[f"{name}: excess kurtosis"] = float(law.excess_kurtosis())
    return found


def _rates() -> dict[str, float]:
    found: dict[str, float] = {}
    for metric in ("ks", "kl", "w1", "tv"):
        distance = ac.distance(_LAYER, metric, width=1000, size=64, seed=3)
        found |= {f"distance {metric}": distance.value, f"distance {metric}, leading": distance.leading}
    literal = ac.distance(_LAYER.replace(width=8), weights="uniform", size=256, seed=3)
    rate = ac.rate(_LAYER, (64, 128, 256, 512), size=64, seed=3)
    heads = ac.infinite_heads_kernel(_LAYER)
    kernel = {f"infinite heads [0, {j}]": float(heads.matrix[0, j]) for j in range(2)}
    return {
        **found,
        **kernel,
        "distance of uniform weights": literal.value,
        "rate, order": rate.order.value,
        "rate, constant": rate.constant.value,
    }


def _stacks() -> dict[str, float]:
    stack = ac.AttentionStack(layer=_LAYER.replace(width=32), depth=2, activations=("relu", "tanh"), residual=True)
    found = {f"stack, distance after {d.depth}": d.ks for d in distances(stack, 128, seed=4)}
    drawn = ac.simulate(stack, 20, seed=4).outputs
    return {**found, "stack draws": float(np.abs(drawn).sum())}


def _paper() -> dict[str, float]:
    """Return the first sampled and the first computed test item of each experiment, at a small size."""
    found: dict[str, float] = {}
    for name in EXPERIMENTS:
        for kind, unit in _first_units(units_of(name)).items():
            arrays = {key: value for key, value in perform(unit, 0, 1e-4).items() if value.dtype.kind == "f"}
            sums = {key: float(np.sum(value)) for key, value in arrays.items() if key != "seconds"}
            found |= {f"paper {name}, {kind}: {key}": value for key, value in sums.items() if math.isfinite(value)}
    return found


def _first_units(units: Sequence[Task]) -> dict[str, Task]:
    return {"sampled" if unit.trial else "computed": unit for unit in reversed(units)}


def comparable(golden: Mapping[str, float], made: Mapping[str, str]) -> dict[str, float]:
    """Return the values that this machine must reproduce, given the file's versions and arithmetic."""
    same = made["arithmetic"] == this_machine()["arithmetic"]
    return {name: value for name, value in golden.items() if same or not name.startswith("paper")}


def differing(old: Mapping[str, float], new: Mapping[str, float]) -> list[str]:
    """Return the names of values that are missing from the new ones, or differ by more than `TOLERANCE`.

    Examples
    --------
    >>> differing({"a": 1.0, "b": 2.0, "c": 0.0}, {"a": 1.0 + 1e-12, "b": 2.1})
    ['b', 'c']
    """
    return sorted(
        name for name, value in old.items() if not math.isclose(value, new.get(name, math.nan), rel_tol=TOLERANCE)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="make the file anew")
    options = parser.parse_args(arguments)
    found = values()
    if options.write:
        machine = {name: value for name, value in this_machine().items() if name != "cores"}
        made = {"by": "python benchmarks/golden.py --write", "with": {**installed_versions(), **machine}}
        FILE.write_text(json.dumps({"made": made, "values": found}, indent=1) + "\n", encoding="utf-8")
        return 0
    read = json.loads(FILE.read_text(encoding="utf-8"))
    golden = comparable(read["values"], read["made"]["with"])
    names = differing(golden, found)
    for name in names:
        print(f"{name}: {golden.get(name)!r} -> {found.get(name)!r}")
    print(f"{len(names)} of {len(golden)} values differ by more than {TOLERANCE:g}")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
