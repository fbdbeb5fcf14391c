"""Whole smoke runs in shards of separate processes reproduce the unsharded digest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.records.schema import Closing, Result, of_pool, read

# The second one shows only in the pool of all layers, after further looks.
SUBJECTS = """
from attncheck.subject import collapsed

def slight(layer, size, rng):
    return collapsed(layer.replace(query_std=1.006 * layer.query_std), size, rng)

slight.supports = lambda layer: not layer.tied_query_key or "one matrix has one scale"
"""
RIGHT, SLIGHT = "attncheck.subject:direct", "shard_subjects:slight"


def command(folder: Path, *arguments: str) -> int:
    (folder / "shard_subjects.py").write_text(SUBJECTS, encoding="utf-8")
    line = [sys.executable, "-m", "attncheck", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, check=False, timeout=600).returncode


def smoke(folder: Path, subject: str, record: str, *options: str) -> int:
    settled = ("--profile", "smoke", "--workers", "0", "--subject", subject, "--record", record)
    return command(folder, "run", *settled, *options)


def closing_of(record: Path) -> Closing:
    *_, closing = read(record)
    assert isinstance(closing, Closing)
    return closing


def looked_again(record: Path) -> bool:
    """Return whether a pool took further looks, as one in some thousand does by chance; shards take none."""
    results = [line for line in read(record) if isinstance(line, Result)]
    return any(of_pool(result) and len(result.p_values) > 1 for result in results)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("subject", "of", "only"), [(RIGHT, 1, ("--only", "scores")), (RIGHT, 6, ()), (SLIGHT, 3, ("--only", "scores"))]
)
def test_shards_come_to_the_digest_of_one_run(tmp_path: Path, subject: str, of: int, only: tuple[str, ...]) -> None:
    """All properties once: shards and further looks treat them alike."""
    code = smoke(tmp_path, subject, "whole.jsonl", *only)
    assert code == (ExitCode.CONSISTENT if subject == RIGHT else ExitCode.VIOLATED)
    names = [f"part{number}.jsonl" for number in range(1, of + 1)]
    codes = [smoke(tmp_path, subject, name, "--shard", f"{place}/{of}", *only) for place, name in enumerate(names, 1)]
    assert codes == [ExitCode.CONSISTENT] * of
    merged = command(tmp_path, "merge", *reversed(names), "-o", "run.jsonl")
    owes = looked_again(tmp_path / "whole.jsonl")
    assert owes or subject == RIGHT
    assert merged == (ExitCode.INCOMPLETE if owes else ExitCode.CONSISTENT)
    if owes:
        assert command(tmp_path, "run", "--owed", "run.jsonl", "--subject", subject, "--workers", "0") == code
    one, many = closing_of(tmp_path / "whole.jsonl"), closing_of(tmp_path / "run.jsonl")
    assert (many.digest, many.verdict, many.reasons) == (one.digest, one.verdict, one.reasons)
    assert (many.reported, many.causes) == (one.reported, one.causes)
