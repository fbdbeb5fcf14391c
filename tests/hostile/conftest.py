"""Valid files, made once, to be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attncheck.commands.cli import main

from .sources import make_sources

Runs = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        make_sources(folder)
    return folder


@pytest.fixture
def runs(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runs:
    """Return a command in a folder with all valid files: its exit code and all its output."""
    for path in sources.iterdir():
        if path.is_file():
            shutil.copyfile(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        assert "internal error" not in said.err
        return code, said.out + said.err

    return run
