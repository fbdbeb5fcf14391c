"""A run on a local dask cluster: the digest of one process, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attncheck._lib import executors
from attncheck._lib.errors import InputError
from attncheck._lib.executors import workers_of
from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from tests.recorded import closing_of, results_in

distributed = pytest.importorskip("distributed")

# Waits, to leave time to kill its worker.
SUBJECTS = """
import time
from attncheck import AttentionLayer
from attncheck.subject import collapsed

def slow(layer, size, rng):
    time.sleep(0.15)
    return collapsed(layer, size, rng)

slow.layers = [AttentionLayer(width=width, seq_len=2, num_heads=1) for width in range(2, 6)]
"""


@pytest.fixture(scope="module", autouse=True)
def _importable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let this process and its children import the subjects."""
    folder = tmp_path_factory.mktemp("dask")
    (folder / "dask_subjects.py").write_text(SUBJECTS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(str(folder))
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Yield a cluster of two processes, which one test after another loses workers of."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
    ) as cluster:
        yield cluster


def smoke(record: Path, *more: str) -> int:
    settled = ("--profile", "smoke", "--only", "scores", "--subject", "dask_subjects:slow")
    return main(["run", *settled, "--record", str(record), *more])


def killer(cluster: Any, record: Path, after: int, every: bool) -> threading.Thread:
    """Kill a worker, or all of them for good, after some results."""

    def kill() -> None:
        while not record.exists() or record.read_bytes().count(b"\n") < after:
            time.sleep(0.02)
        if every:
            cluster.scale(0)
            return
        with distributed.Client(cluster, set_as_default=False) as client:
            pid = next(iter(client.run(os.getpid).values()))
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_worker_that_is_killed_changes_no_digit(cluster: Any, tmp_path: Path) -> None:
    alone, killed = (tmp_path / f"{name}.jsonl" for name in ("alone", "killed"))
    address = f"dask:{cluster.scheduler_address}"
    assert smoke(alone, "--workers", "0") == ExitCode.CONSISTENT
    thread = killer(cluster, killed, 8, every=False)
    before = set(cluster.scheduler.workers)
    code = smoke(killed, "--executor", address)
    thread.join()
    assert code == ExitCode.CONSISTENT
    assert set(cluster.scheduler.workers) != before
    whole, spread = closing_of(alone), closing_of(killed)
    assert spread.digest == whole.digest


def test_nobody_left_ends_the_run(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(executors, "PATIENCE", 3.0)
    left = tmp_path / "left.jsonl"
    address = f"dask:{cluster.scheduler_address}"
    thread = killer(cluster, left, 8, every=True)
    code = smoke(left, "--executor", address)
    thread.join()
    assert code == ExitCode.UNUSABLE
    said = capsys.readouterr().err
    assert "has had no live worker for 3 s; start workers and run again" in said
    assert len(results_in(left)) > 6


def test_no_scheduler_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The last record stays until there is an executor."""
    record = tmp_path / "record.jsonl"
    record.write_text("the last one")
    assert smoke(record, "--executor", "dask:tcp://127.0.0.1:9") == ExitCode.UNUSABLE
    assert "no scheduler answers" in capsys.readouterr().err
    assert record.read_text() == "the last one"


@pytest.mark.parametrize("address", ["", "tcp://", "localhost", "http://127.0.0.1:8786", "tcp://127.0.0.1:port"])
def test_what_is_no_address_is_refused_before_a_client_is_made(address: str) -> None:
    with pytest.raises(InputError, match=rf"^executor='dask:{address}': is not a valid address \(.*; pass dask:"):
        workers_of(f"dask:{address}", "auto")
