"""Golden values of laws, distances, rates, stacks and the paper's experiments do not change."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "golden.py"


def test_values_are_those_of_the_file() -> None:
    spec = importlib.util.spec_from_file_location("benchmarks_golden", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(golden)
    read = json.loads(golden.FILE.read_text(encoding="utf-8"))
    wanted = golden.comparable(read["values"], read["made"]["with"])
    assert len(wanted) > 100
    found = golden.values()
    assert found.keys() == read["values"].keys()
    assert golden.differing(wanted, found) == []
    # An error of ten times the tolerance is found in any value.
    for name, value in wanted.items():
        if value:
            assert golden.differing(wanted, {**found, name: value * (1.0 + 10.0 * golden.TOLERANCE)}) == [name]
