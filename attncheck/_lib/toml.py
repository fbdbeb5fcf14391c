"""Parsing of TOML texts and files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from attncheck._lib.errors import InputError, refuse


def read_table(text: str | Path, name: str) -> dict[str, Any]:
    """Return the table `name` of a TOML text or file, or raise `InputError`.

    Examples
    --------
    >>> read_table("layer = {width = 4}", "layer")
    {'width': 4}
    """
    source = name
    form = f"a [{name}] table of field = value"
    if isinstance(text, Path):
        source = str(text)
        try:
            text = text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{source}: cannot be read ({error}); pass a TOML file with {form}") from None
    if not isinstance(text, str):
        refuse("text", text, "is not TOML text", "pass a str, or a pathlib.Path to read a file")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers with too many digits
        raise InputError(f"{source}: not TOML ({error}); write {form}") from None
    table = document.get(name)
    if not isinstance(table, dict):
        raise InputError(f"{source}: has no [{name}] table; write [{name}] above the fields")
    return table
