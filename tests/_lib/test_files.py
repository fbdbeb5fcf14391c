"""Files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attncheck._lib.errors import InputError
from attncheck._lib.files import write_file


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_was_there_outlives_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    path = write_file(tmp_path / "page.html", b"before")

    def fails(source: object, target: object) -> None:
        raise problem

    monkeypatch.setattr(os, "replace", fails)
    expected = InputError if isinstance(problem, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        write_file(path, b"after")
    assert expected is KeyboardInterrupt or str(caught.value) == (
        f"out={path}: cannot be written (No space left on device); choose another path"
    )
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_followed(tmp_path: Path) -> None:
    kept = write_file(tmp_path / "kept", b"before")
    link = tmp_path / "link"
    link.symlink_to(kept)
    write_file(link, b"after")
    assert link.is_symlink()
    assert kept.read_bytes() == b"after"


def test_devices_are_written_to_and_folders_refused(tmp_path: Path) -> None:
    read, write = os.pipe()
    write_file(Path(f"/dev/fd/{write}"), b"through a pipe")
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        assert stream.read() == b"through a pipe"
    for path in (tmp_path, write_file(tmp_path / "file", b"") / "below"):
        with pytest.raises(InputError, match="cannot be written"):
            write_file(path, b"")
