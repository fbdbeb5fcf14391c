"""The commit under test and a seed derived from it."""

from __future__ import annotations

import hashlib
import os
import subprocess

from attncheck._lib.errors import InputError, refuse


def commit_key(key: str | None = None) -> str:
    """Return `key` if given, else GITHUB_SHA or git's HEAD; raises InputError if there is none.

    Examples
    --------
    >>> commit_key("0123abcd")
    '0123abcd'
    """
    named = os.environ.get("GITHUB_SHA", "") if key is None else key
    if key is None and not named:
        try:
            asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        except OSError:  # git is not installed
            named = ""
        else:
            named = "" if asked.returncode else asked.stdout
    if not (named := named.strip()):
        refuse("key", key, "no commit found in GITHUB_SHA or git", "pass --key NAME, a different one for each run")
    if not named.isprintable():
        refuse("key", named, "is not one line of text", "pass the hash of the commit, or a name")
    return named


def commit_here() -> str:
    """Return the name of the current commit, or an empty string."""
    try:
        return commit_key()
    except InputError:
        return ""


def keyed_seed(key: str) -> int:
    """Return a 48-bit seed derived from a commit; any two of 1,000 such seeds coincide with probability 2 · 10⁻⁹.

    Examples
    --------
    >>> keyed_seed("0123abcd") == keyed_seed("0123abcd") != keyed_seed("0123abce")
    True
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")


def seed_typed(text: str) -> str:
    """Resolve a seed given as ``random`` or ``keyed`` (derived from the commit); raises InputError without a commit.

    Examples
    --------
    >>> seed_typed("3")
    '3'
    """
    if text == "random":
        return str(int.from_bytes(os.urandom(4), "big"))
    if text != "keyed":
        return text
    try:
        return str(keyed_seed(commit_key()))
    except InputError:
        refuse(
            "seed",
            text,
            "needs a commit, and none is found in GITHUB_SHA or git",
            "commit, set GITHUB_SHA, or pass random or a number",
        )
