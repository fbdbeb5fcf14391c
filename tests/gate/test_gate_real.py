"""The gate on records of real runs, with and without workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROPERTIES = Path(__file__).resolve().parents[2] / "properties"
Gated = Callable[..., tuple[int, str]]

SUBJECTS = """
import os
from attncheck.subject import collapsed

def right(layer, size, rng):
    return collapsed(layer, size, rng)

def repeating(layer, size, rng):
    drawn = dict(collapsed(layer, size, rng))
    drawn["outputs"][size // 2 :] = drawn["outputs"][: size - size // 2]
    return drawn

def crashing(layer, size, rng):
    if layer.mask == "causal":
        os._exit(3)
    return collapsed(layer, size, rng)
"""

# Subject, workers and seed of each run, and what else is given.
RUNS = {
    "baseline": ("right", 0, 0, ()),
    "two workers": ("right", 2, 0, ()),
    "other seed": ("right", 0, 11, ()),
    "deselected": ("right", 0, 0, ("-k", "not causal")),
    "violated": ("repeating", 2, 0, ()),
    "crashed": ("crashing", 2, 0, ()),
}


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a run of one property, once, under the name of the right subject."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str) -> Path:
        subject, workers, seed, more = RUNS[name]
        place = folder / name.replace(" ", "_")
        record = place / "record.jsonl"
        if not record.exists():
            place.mkdir()
            source = (
                SUBJECTS if subject == "right" else SUBJECTS.replace("def right", "def _").replace(subject, "right")
            )
            (place / "subjects.py").write_text(source, encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), *more]
            command += [str(PROPERTIES / "test_draws.py"), "--attncheck-profile", "smoke"]
            command += ["--attncheck-subject", "subjects:right", "--attncheck-seed", str(seed)]
            command += ["--attncheck-record", str(record)]
            subprocess.run(command, cwd=place, capture_output=True, check=False, timeout=300)
        return record

    return make


REAL: dict[str, int] = {
    "two workers": 0,
    "other seed": 0,
    "violated": 1,
    "deselected": 4,
    "crashed": 4,
}


@pytest.mark.parametrize("name", REAL)
def test_real_run_against_a_real_baseline(real_runs: Callable[[str], Path], gated: Gated, name: str) -> None:
    code, said = gated(real_runs(name), real_runs("baseline"))
    assert code == REAL[name], said


def test_the_number_of_workers_that_made_the_baseline_is_no_matter(
    real_runs: Callable[[str], Path], gated: Gated
) -> None:
    for name in ("baseline", "other seed"):
        code, said = gated(real_runs(name), real_runs("two workers"))
        assert code == 0, said
    assert gated(real_runs("violated"), real_runs("two workers"))[0] == 1
