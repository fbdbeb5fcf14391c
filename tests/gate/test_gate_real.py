"""The gate on records of real runs, with and without workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Gated = Callable[..., tuple[int, str]]

# The gate reads no diagnosis, which takes most of a violated run's time.
pytestmark = pytest.mark.usefixtures("verdicts_only")

# As in `properties`.
PROPERTY = """
from attncheck.pytest_plugin import examines

@examines("draws")
def test_draws(layer, hold):
    hold(layer)
"""

# One layer is enough for a violation, and another for a crash.
SUBJECTS = """
import os
from attncheck import AttentionLayer
from attncheck.subject import collapsed

def right(layer, size, rng):
    return collapsed(layer, size, rng)

def repeating(layer, size, rng):
    drawn = dict(collapsed(layer, size, rng))
    if layer.seq_len == 1:
        drawn["outputs"][size // 2 :] = drawn["outputs"][: size - size // 2]
    return drawn

def crashing(layer, size, rng):
    if layer.mask == "causal":
        os._exit(3)
    return collapsed(layer, size, rng)

right.layers = [
    AttentionLayer(width=4, seq_len=1, num_heads=1),
    AttentionLayer(width=4, seq_len=2, num_heads=2, mask="causal"),
    AttentionLayer(width=8, seq_len=3, num_heads=2),
]
"""

# Subject, workers, seed and options of each run. A crashed worker is not replaced, so its results are missing.
RUNS = {
    "baseline": ("right", 0, 0, ()),
    "two workers": ("right", 2, 0, ()),
    "other seed": ("right", 0, 11, ()),
    "deselected": ("right", 0, 0, ("-k", "not causal")),
    "violated": ("repeating", 0, 0, ()),
    "crashed": ("crashing", 1, 0, ("--max-worker-restart", "0")),
}


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a run of one property, cached, under the right subject's name."""
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
            (place / "test_it.py").write_text(PROPERTY, encoding="utf-8")
            command = ["-q", "-p", "no:cacheprovider", "-n", str(workers), *more, "--rootdir", str(place)]
            command += [str(place / "test_it.py"), "--attncheck-profile", "smoke"]
            command += ["--attncheck-subject", "subjects:right", "--attncheck-seed", str(seed)]
            command += ["--attncheck-record", str(record)]
            with pytest.MonkeyPatch.context() as patch:
                for module in ("subjects", "test_it"):
                    patch.delitem(sys.modules, module, raising=False)
                patch.chdir(place)
                patch.syspath_prepend(place)
                patch.delenv("PYTEST_ADDOPTS", raising=False)
                pytest.main(command)
                for module in ("subjects", "test_it"):
                    sys.modules.pop(module, None)
        return record

    return make


REAL: dict[str, int] = {
    "two workers": 0,
    "other seed": 0,
    "violated": 1,
    "deselected": 4,
    "crashed": 4,
}


@pytest.mark.sampled
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
