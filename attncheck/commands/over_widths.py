"""`attncheck widths`: exponents of a model in a table, as JSON or as a page."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import check_writable
from attncheck.commands.inspecting import found_by
from attncheck.frameworks.widths import widths as exponents_of
from attncheck.report.widths import render_widths


def print_widths(
    build: str,
    widths: Sequence[int],
    expect: str,
    functions: Mapping[str, str | None],
    options: Mapping[str, Any],
    as_json: bool,
    page: Path | None,
) -> int:
    """Measure and print exponents. The arguments are those of `attncheck widths`, functions by their names."""
    check_writable({"report": page})
    named: dict[str, Any] = {name: found_by(each, name) for name, each in functions.items() if each is not None}
    expected: Any = found_by(expect, "expect") if ":" in expect else expect
    found = exponents_of(found_by(build, "build"), widths, expected, **named, **options)
    if page is not None:
        render_widths(found, build, page)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(found.shown(red=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    return ExitCode.of(str(found.verdict))
