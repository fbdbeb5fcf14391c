"""Collection of test items without pytest."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from attncheck._lib.errors import refuse
from attncheck._lib.version import PACKAGE
from attncheck.looks.domains import LAYERS
from attncheck.looks.item import Item
from attncheck.pytest_plugin.marks import EXAMINES
from attncheck.runs.run import Run


class PlannedRun(NamedTuple):
    """A run with its plan and items."""

    run: Run
    items: tuple[Item, ...]


def properties_folder() -> Path:
    """Return the folder of properties, in the package or a clone."""
    for folder in (PACKAGE / "properties", PACKAGE.parent / "properties"):
        if folder.is_dir():
            return folder
    refuse("properties", str(PACKAGE), "are not installed", "install attncheck again")


def collect(run: Run, folder: Path) -> PlannedRun:
    """Return a run with the plan that pytest would collect from a folder of properties.

    Raises `InputError` if nothing is examined.
    """
    properties = [*_marks(folder), *((name, LAYERS.strategy(name)) for name in run.registered)]
    items = tuple(dict.fromkeys(item for name, strategy in properties for item in run.items(name, strategy)))
    if not items:
        refuse("only", list(run.only), f"leaves nothing to examine of {run.subject.name}", "choose other properties")
    return PlannedRun(run.settled([item.id for item in items]), items)


def _marks(folder: Path) -> Iterator[tuple[str, object]]:
    """Yield the property and strategy of each mark `examines` in the files ``test_*.py``, in their order."""
    for path in sorted(folder.glob("test_*.py")):
        for name, test in vars(_module(path)).items():
            marks: list[pytest.Mark] = getattr(test, "pytestmark", []) if name.startswith("test_") else []
            yield from (mark.args for mark in marks if mark.name == EXAMINES)


@functools.lru_cache(maxsize=64)
def _module(path: Path) -> ModuleType:
    """Import a properties file once, under a unique name."""
    name = f"attncheck_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up here
    spec.loader.exec_module(module)
    return module
