"""Valid files, made once, to be damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from .sources import make_sources


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        make_sources(folder)
    return folder
