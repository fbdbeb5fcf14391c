"""The commit that is examined, and a seed of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess

from attncheck._lib.errors import InputError, refuse


def commit_key(key: str | None = None) -> str:
    """Return what names the commit: what is passed, GITHUB_SHA, or HEAD of git.

    Raises
    ------
    InputError
        If nothing does, or by more than a line of text.

    Examples
    --------
    >>> commit_key("0123abcd")
    '0123abcd'
    """
    named = os.environ.get("GITHUB_SHA", "") if key is None else key
    if key is None and not named:
        try:
            asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        except OSError:  # no git
            named = ""
        else:
            named = "" if asked.returncode else asked.stdout
    if not (named := named.strip()):
        refuse("key", key, "names no commit, and neither GITHUB_SHA nor git does", "pass --key")
    if not named.isprintable():
        refuse("key", named, "is not one line of text", "pass the hash of the commit, or a name")
    return named


def commit_here() -> str:
    """Return what names the commit here; empty where nothing does."""
    try:
        return commit_key()
    except InputError:
        return ""


def keyed_seed(key: str) -> int:
    """Return the seed of a commit's run: another one for each commit, and the same wherever it is run.

    It has 48 bits: of 1,000 commits two have the same one with a chance of 2 in 10⁹.

    Examples
    --------
    >>> keyed_seed("0123abcd") == keyed_seed("0123abcd") != keyed_seed("0123abce")
    True
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")


def seed_typed(text: str) -> str:
    """Return a seed as a number where a word was typed for one: random, or keyed by the commit.

    Raises
    ------
    InputError
        If nothing names the commit.

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
            "is that of a commit, and neither GITHUB_SHA nor git names one",
            "set GITHUB_SHA, or pass a number",
        )
