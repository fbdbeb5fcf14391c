"""Checks registered by other packages: the registrations of this process, and their modules."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.imports import is_within, path_of
from attncheck.checks.check import Check
from attncheck.checks.claims import CLAIMS, Claim

Simulator = Callable[..., Mapping[str, Any]]

#: Entry-point group of installed modules, or functions, that register checks.
GROUP = "attncheck.checks"
_REGISTERED: dict[str, Registration] = {}


@dataclasses.dataclass(frozen=True)
class Registration:
    """A check of another package.

    Attributes
    ----------
    check : Check
    claim : Claim
        The statement that it tests.
    measure : callable
        The registered function.
    """

    check: Check
    claim: Claim
    measure: Callable[..., Any]

    @property
    def module(self) -> str:
        """The module of the measure; empty if other processes cannot import it."""
        return path_of(self.measure).partition(":")[0]


def add(registration: Registration) -> None:
    """Register a check in this process; raises InputError if its name is taken."""
    name = registration.check.name
    if name in _REGISTERED:
        refuse("name", name, f"is registered already, by {_REGISTERED[name].module}", "choose another name")
    _REGISTERED[name] = registration


def registrations() -> tuple[Registration, ...]:
    """Return the registered checks, sorted by name, after importing installed packages that register checks.

    Raises
    ------
    InputError
        If an installed package cannot be imported.
    """
    _import_installed()
    return tuple(_REGISTERED[name] for name in sorted(_REGISTERED))


def load_checks(modules: Iterable[str]) -> None:
    """Import modules that register checks; the current folder is searched too.

    Raises
    ------
    InputError
        If a module cannot be imported or registers no check.

    Examples
    --------
    >>> load_checks(["math"])
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: checks='math': registers no check; name a module that calls
    attncheck.checks.register
    """
    for name in modules:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        entry = importlib.metadata.EntryPoint(name, name, GROUP)
        _import(entry, "check its name, run in its folder, or add that folder to PYTHONPATH")
        if not any(is_within(registration.module, [name]) for registration in registrations()):
            refuse("checks", name, "registers no check", "name a module that calls attncheck.checks.register")


def modules_with(properties: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that another process must load to examine these properties."""
    names = set(properties)
    modules = {registration.module for registration in registrations() if registration.check.property_name in names}
    return tuple(sorted(modules - {""}))


def claim_named(name: str) -> Claim:
    """Return a claim by name; for an unknown name, return a claim whose statement says that it is unknown.

    Examples
    --------
    >>> claim_named("heads").name, claim_named("elsewhere.mean").statement
    ('heads', 'Its check is not installed here, so the claim is not known.')
    """
    unknown = Claim(name, "Its check is not installed here, so the claim is not known.", "", "")
    registered = {registration.claim.name: registration.claim for registration in registrations()}
    return CLAIMS.get(name) or registered.get(name, unknown)


@functools.cache
def _import_installed() -> None:
    entries = importlib.metadata.entry_points(group=GROUP)
    for entry in sorted(entries, key=lambda point: (point.name, point.value)):
        package = entry.dist.name if entry.dist else entry.value
        _import(entry, f"mend or uninstall the package {package}")


def _import(entry: importlib.metadata.EntryPoint, remedy: str) -> None:
    """Import an entry point and call it if it is a function; on failure, remove the checks that it registered."""
    before = dict(_REGISTERED)
    try:
        with np.errstate():  # restores the error handling if the module calls np.seterr
            target = entry.load()
            if callable(target):
                target()
    except Exception as error:
        _REGISTERED.clear()
        _REGISTERED.update(before)
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"checks={entry.value}: cannot be imported: {problem}; {remedy}") from error
