"""Manifests: time, machine and versions of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from attncheck._lib.arithmetic import in_use
from attncheck._lib.imports import source_of
from attncheck._lib.version import __version__
from attncheck.checks.registered import modules_with
from attncheck.records.schema import SCHEMA, PlannedResult

_VERSIONED = ("attncheck", "numpy", "scipy", "hypothesis", "pytest", "statsmodels")


def environment_fields(subject: str, planned: Iterable[PlannedResult]) -> dict[str, Any]:
    """Return the manifest fields on time, machine and code of a run that starts now."""
    return {
        "schema": SCHEMA,
        "versions": installed_versions(),
        "machine": this_machine(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": source_of(subject),
        "checks": list(modules_with(result.item.partition("@")[0] for result in planned)),
    }


def this_machine() -> dict[str, str]:
    """Return the hardware properties that affect digits and times, without the machine's name."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "arithmetic": in_use(),
    }


def installed_versions() -> dict[str, str]:
    """Return the versions of attncheck and of the packages that affect its digits."""
    return {name: _version(name) for name in _VERSIONED}


def _version(name: str) -> str:
    try:
        return __version__ if name == "attncheck" else importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
