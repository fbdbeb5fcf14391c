"""The repository that attncheck was installed from."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

# A web or SSH address of a repository: user, host and path.
_ADDRESS = re.compile(r"(?:https?://|ssh://|(?=[\w.-]+@))(?:[^/@]*@)?([^/:@]+)(?::\d+)?[/:](.+?)(?:\.git)?/?")


def repository() -> str:
    """Return the web address of the repository from which attncheck was installed, or an empty string."""
    try:
        installed = importlib.metadata.distribution("attncheck").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    recorded = json.loads(installed or "{}")
    url = str(recorded.get("url", ""))
    if "vcs_info" in recorded:
        return web_address(url)
    folders = [Path(__file__).parents[2], *([Path(unquote(urlsplit(url).path))] if url else [])]
    return next(filter(None, (web_address(_remote(folder)) for folder in folders)), "")


def web_address(remote: str) -> str:
    """Return the public web address of a Git remote, without user and password; empty for a folder.

    Examples
    --------
    >>> web_address("git@example.org:me/attncheck.git")
    'https://example.org/me/attncheck'
    >>> web_address("https://user:token@example.org/me/attncheck")
    'https://example.org/me/attncheck'
    >>> web_address("/home/me/attncheck")
    ''
    """
    found = _ADDRESS.fullmatch(remote)
    return f"https://{found[1]}/{found[2]}" if found else ""


def _remote(clone: Path) -> str:
    """Return the remote of a clone; empty if the folder is not the root of a clone."""
    if not (clone / ".git").exists():
        return ""
    command = ["git", "-C", str(clone), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # git is not installed
        return ""
