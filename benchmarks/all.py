"""Make the pages of measurements: ``python benchmarks/all.py``, or some of them: ``python benchmarks/all.py speed``.

The last line of a page has the commit, the machine, the versions and
the time. ``--tiny`` runs everything at a tiny size and prints the pages in place of writing them. requirements.txt has
the packages that the page on models needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: the scripts are here, the package may be installed elsewhere

from attncheck._lib.measured import installed  # noqa: E402  # found by the path above

#: Pages, those that need no other packages first.
PAGES = ("evidence", "speed", "first_line", "paper", "models")


def made(name: str, tiny: bool, at: str) -> str:
    """Measure a page, and return it with the line that says how it was made, `at` which commit."""
    started = time.monotonic()
    parts: list[str] = importlib.import_module(f"benchmarks.{name}").page(tiny)
    seconds = time.monotonic() - started
    parts.insert(1, f"`python benchmarks/all.py {name}` makes this page.")
    parts.append(f"Made at commit {at} in {seconds:,.0f} s with {installed()}, {os.cpu_count()} cores.")
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)} (default: all)")
    parser.add_argument("--tiny", action="store_true", help="print pages of a tiny size, whose numbers mean nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.pages) - set(PAGES):
        parser.error(f"{min(unknown)} is not one of {', '.join(PAGES)}")
    # Before a page is written.
    commit = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    at = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    for name in options.pages or PAGES:
        text = made(name, options.tiny, at)
        if options.tiny:
            print(text)
        else:
            (ROOT / "benchmarks" / f"{name}.md").write_text(text, encoding="utf-8")
            print(text.splitlines()[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
