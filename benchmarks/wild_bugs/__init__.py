"""Attention layers with public bugs, and right ones that must pass.

Fixtures were written from the bugs' descriptions, before the inspection. Each framework's modules are imported only
if it is installed.
"""

from __future__ import annotations

import importlib
import os

from benchmarks.wild_bugs import bug as _bug
from benchmarks.wild_bugs.bug import Bug, Right, line_told, next_seed

__all__ = ["MODULES", "WHOLE", "Bug", "Right", "bugs", "installed", "line_told", "next_seed", "right"]

#: Modules of this package, and their requirements.
MODULES = {
    "torch_weights": ("torch",),
    "torch_forward": ("torch",),
    "transformers_bugs": ("torch", "transformers"),
    "keras_bugs": ("torch", "keras"),
    "jax_bugs": ("jax", "flax"),
    "equinox_layers": ("jax", "equinox"),
}
#: Further ones: masks, positions, heads and blocks, of which the whole description must be right.
WHOLE = {"torch_whole": ("torch",)}


def installed(module: str) -> bool:
    return _bug.installed({**MODULES, **WHOLE}[module])


def bugs() -> tuple[Bug, ...]:
    """Return the bugs of all installed frameworks."""
    return tuple(bug for each in _loaded() for bug in getattr(each, "BUGS", ()))


def right() -> tuple[Right, ...]:
    """Return the right layers of all installed frameworks."""
    return tuple(layer for each in _loaded() for layer in getattr(each, "RIGHT", ()))


def _loaded() -> list[object]:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return [importlib.import_module(f"{__name__}.{name}") for name in (*MODULES, *WHOLE) if installed(name)]
