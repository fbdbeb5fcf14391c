"""Conversion between objects and their import paths, ``module:name``."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from attncheck._lib.errors import refuse

#: Optional packages whose modules have the same names as the packages.
FRAMEWORKS = ("torch", "flax", "keras", "jax", "equinox", "transformers")


def path_of(function: Any) -> str:
    """Return the import path ``module:name`` of a function, or an empty string if other processes cannot import it.

    Examples
    --------
    >>> import math
    >>> path_of(math.tanh), path_of(np.tanh), path_of(special.erf), path_of(lambda x: x)
    ('math:tanh', 'numpy:tanh', 'scipy.special:erf', '')
    """
    module = _home(function)
    target: Any = sys.modules.get(module)
    for part in short_name(function).split("."):
        target = getattr(target, part, None)
    # The module __main__ differs between processes, so its functions cannot be imported elsewhere.
    return f"{module}:{short_name(function)}" if target is function and module != "__main__" else ""


def short_name(function: Any) -> str:
    """Return a function's qualified name or, for the ufuncs of older NumPy, which have none, the plain name."""
    for attribute in ("__qualname__", "__name__"):
        name = getattr(function, attribute, None)
        if isinstance(name, str):
            return name
    return type(function).__name__


def find(path: str) -> Any:
    """Import the object at ``module:name``; raises ImportError, AttributeError or ValueError if there is none.

    Examples
    --------
    >>> find("numpy:tanh") is np.tanh
    True
    """
    module, _, name = path.partition(":")
    with np.errstate():  # restores the error handling if the module calls np.seterr
        target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def import_remedy(error: BaseException, otherwise: str) -> str:
    """Return the remedy for a failed import: install the framework that is missing, or `otherwise`.

    Examples
    --------
    >>> import_remedy(ModuleNotFoundError("No module named 'torch'", name="torch"), "check the name")
    'pip install torch'
    """
    missing = error.name if isinstance(error, ModuleNotFoundError) else ""
    return f"pip install {missing}" if missing in FRAMEWORKS else otherwise


def is_within(module: str, names: Iterable[str]) -> bool:
    """Return whether a module, or a package that contains it, is among `names`.

    Examples
    --------
    >>> is_within("mine.layers", ["mine"]), is_within("mine.layers", ["mine.layer"])
    (True, False)
    """
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def imported(field: str, path: str, trust: Sequence[str]) -> Any:
    """Import the object at ``module:name`` if its module is trusted, or if it is a ufunc of NumPy or SciPy.

    Raises
    ------
    InputError
        If it is not, or if it cannot be imported; the message names the `field`.

    Examples
    --------
    >>> imported("activation", "numpy:tanh", ()) is np.tanh
    True
    >>> imported("mask", "os:system", ())
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: mask='os:system': is code of an untrusted module, which was not imported; if you
    trust the file and the module, pass trust=['os'], or --trust os on the command line
    """
    module, _, name = path.partition(":")
    homes = {"numpy": np, "scipy.special": special}
    if isinstance(candidate := getattr(homes.get(module), name, None), np.ufunc):
        return candidate
    if not is_within(module, trust):
        options = f"trust=['{module}'], or --trust {module} on the command line"
        remedy = f"if you trust the file and the module, pass {options}"
        refuse(field, path, "is code of an untrusted module, which was not imported", remedy)
    try:
        return find(path)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        refuse(field, path, f"cannot be imported ({error})", "write module:function, importable from here")


def source_of(path: str) -> str:
    """Return a short digest of the source file of the module in ``module:name``; empty if there is no file.

    Examples
    --------
    >>> source_of("attncheck.subject:direct") == source_of("attncheck.subject:collapsed") != ""
    True
    >>> source_of("builtins:print")
    ''
    """
    module = sys.modules.get(path.rpartition(":")[0])
    try:
        # The digest must not depend on line endings, which may differ between checkouts.
        lines = Path(str(getattr(module, "__file__", ""))).read_bytes().splitlines()
    except OSError:
        return ""
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]


def _home(function: Any) -> str:
    """Return the name of a function's module.

    A ufunc may lack ``__module__``, so it is looked up by its name in NumPy and scipy.special.
    """
    if isinstance(function, np.ufunc):
        homes = [home for home in (np, special) if getattr(home, function.__name__, None) is function]
        return homes[0].__name__ if homes else ""
    return str(getattr(function, "__module__", None) or "")
