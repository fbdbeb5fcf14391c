"""Nothing is imported from files: one test per kind of input in `docs/commands.md`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import attncheck as ac
from attncheck._lib.arithmetic import own_arithmetic
from attncheck.commands.cli import main
from attncheck.layers.case import read_case
from attncheck.layers.program import ProgramCase
from attncheck.records.schema import read
from tests.recorded import Recorded, results_in, write_lines
from tests.refusals import refused

MODULE = "trusted_by_nobody"
CODE = """
from pathlib import Path
Path(r"{mark}").write_text("imported")
from attncheck.subject import collapsed

def simulate(layer, size, rng):
    return collapsed(layer, size, rng)

def gate(v, a):
    Path(r"{mark}").write_text("called")
    return v * a
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that the module writes on import or call."""
    found = tmp_path / "mark"
    (tmp_path / f"{MODULE}.py").write_text(CODE.format(mark=found), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return found


def lines_with(function: Any) -> dict[str, Any]:
    return {
        "weights": [{"name": name} for name in "QKV"],
        "lines": [
            {"initial": ["h"]},
            {"nonlin": {"name": "clip", "parameters": [3.0]}, "of": ["h"], "name": "x"},
            *({"matmul": name, "of": "x", "name": name.lower()} for name in "QKV"),
            {"score": ["q", "k"], "name": "p"},
            {"output": function, "vectors": ["v"], "scores": ["p"], "name": "y"},
        ],
    }


FOREIGN = lines_with({"path": f"{MODULE}:gate"})
READERS: dict[str, Callable[..., Any]] = {
    "from_dict": lambda **trust: ac.Program.from_dict(FOREIGN, **trust),
    "a case": lambda **trust: ProgramCase.from_dict({"program": FOREIGN, "widths": [8]}, **trust),
    "a record's case": lambda **trust: read_case({"program": FOREIGN, "widths": [8]}, **trust),
}


@pytest.mark.parametrize("reader", READERS)
def test_programs_import_what_is_trusted_only(reader: str, mark: Path) -> None:
    refused(READERS[reader], f"{MODULE}:gate.*was not imported; .* trust=\\['{MODULE}'\\]")
    refused(lambda: READERS[reader](trust=["trusted_by", f"{MODULE}.inner"]), "was not imported")
    assert not mark.exists()
    READERS[reader](trust=[MODULE])
    assert mark.read_text() == "called"


@pytest.mark.parametrize("path", ["os:system", "builtins:eval", "numpy:load", "attncheck.commands.cli:main"])
def test_nothing_but_known_functions_needs_no_trust(path: str) -> None:
    refused(lambda: ac.Program.from_dict(lines_with({"path": path})), "was not imported")
    refused(lambda: ac.Program.from_dict(FOREIGN, trust="abc"), "trust='abc': must be a list of module names")


@pytest.mark.parametrize("function", [{"path": "numpy:multiply"}, {"path": "scipy.special:xlogy"}, "softmax_mix"])
def test_known_functions_are_read(function: Any) -> None:
    assert ac.Program.from_dict(lines_with(function)).nodes[-1].name == "y"


def renamed(record: Path, path: Path, subject: str) -> tuple[str, str]:
    """Write a record of another subject; return its path and the id of its first examined result."""
    manifest, *lines = read(record)
    write_lines(path, [msgspec.structs.replace(manifest, subject=subject), *lines])
    return str(path), next(result.id for result in results_in(record) if result.p_values)


def test_replay_runs_what_is_trusted_only(
    recorded: Recorded, tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ["replay", *renamed(recorded.right, tmp_path / "foreign.jsonl", f"{MODULE}:simulate")]
    assert main(replay) == 2
    assert f"--trust {MODULE}" in capsys.readouterr().err
    assert not mark.exists()
    assert main([*replay, "--trust", MODULE]) == 0
    assert "The digits agree." in capsys.readouterr().out
    assert mark.read_text() == "imported"


@pytest.mark.parametrize(
    "subject", ["attncheck.subject:os.system", "attncheck.commands.cli:main", "attncheck.faults:exposing"]
)
def test_a_record_names_attnchecks_simulators_and_nothing_else_of_it(
    recorded: Recorded, subject: str, tmp_path: Path
) -> None:
    assert main(["replay", *renamed(recorded.right, tmp_path / "other.jsonl", subject)]) == 2


class FakeLimits:
    """threadpoolctl's effect on the process's one BLAS thread limit."""

    threads = 8

    def __init__(self, limits: int) -> None:
        self._before, FakeLimits.threads = FakeLimits.threads, limits

    def restore_original_limits(self) -> None:
        FakeLimits.threads = self._before


def test_the_number_of_blas_threads_is_put_back_when_the_last_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two overlap and end in another order: the second one finds the first's limit."""
    monkeypatch.setattr("attncheck._lib.arithmetic.threadpool_limits", FakeLimits)
    first, second = own_arithmetic(), own_arithmetic()
    first.__enter__()
    second.__enter__()
    assert FakeLimits.threads == 1
    first.__exit__(None, None, None)
    assert FakeLimits.threads == 1
    second.__exit__(None, None, None)
    assert FakeLimits.threads == 8
    with pytest.raises(ZeroDivisionError), own_arithmetic():
        raise ZeroDivisionError
    assert FakeLimits.threads == 8
