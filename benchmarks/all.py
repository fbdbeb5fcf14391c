"""Which pages of measurements are of the present code; ``--make`` makes the others, the quickest first.

A page names the command that makes it in its third line, and the commit, the versions and the time in its last, which
this script writes. It is current while nothing it depends on differs between that commit and HEAD. An interrupted
``--make`` keeps the pages that it made. ``python benchmarks/all.py --make stacks rates`` makes these two.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from attncheck._lib.measured import installed, table

ROOT = Path(__file__).resolve().parents[1]
# What all pages depend on, besides the script that makes them.
CODE = ("attncheck", "properties", "reports")
# These want an argument that only their reader has: two records, another interpreter; or another tool.
BY_HAND = frozenset({"mutation", "visible", "wild"})
_RECIPE = re.compile(r"^`python (benchmarks/.+?)` makes this page", re.MULTILINE)
_STATE = re.compile(r"\n\nMade at commit (?P<commit>[0-9a-f]+) in (?P<seconds>[\d,]+) s with .*\n\Z")


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of measurements: its file, and the words of the command that makes it, none if that is done by hand."""

    path: Path
    command: tuple[str, ...]
    commit: str | None = None
    seconds: int | None = None

    @classmethod
    def read(cls, path: Path) -> Page:
        """Read a page's command and state."""
        text = path.read_text(encoding="utf-8")
        recipe, state = _RECIPE.search(text), _STATE.search(text)
        command = tuple(shlex.split(recipe[1])) if recipe and path.stem not in BY_HAND else ()
        if command and "--write" not in command:
            command = (*command, "--write")
        if state is None:
            return cls(path, command)
        return cls(path, command, state["commit"], int(state["seconds"].replace(",", "")))

    def changed(self, root: Path) -> str:
        """Return why the page has to be made anew, empty if it is current."""
        if self.commit is None:
            return "of an unknown commit"
        script = f"benchmarks/{self.path.stem}.py"
        found = git(root, "diff", "--quiet", self.commit, "HEAD", "--", *CODE, script)
        problem = {0: "", 1: ", before a change"}.get(found.returncode, ", which is not in this repository")
        return problem and f"of {self.commit}{problem}"

    def make(self, root: Path) -> None:
        """Run the command, then write the commit, the versions and the time to the page's end."""
        started = time.monotonic()
        subprocess.run([sys.executable, *self.command], cwd=root, check=True)
        seconds = time.monotonic() - started
        commit = git(root, "rev-parse", "--short", "HEAD").stdout.strip()
        text = _STATE.sub("\n", self.path.read_text(encoding="utf-8")).rstrip("\n")
        state = f"Made at commit {commit} in {seconds:,.0f} s with {installed()}."
        self.path.write_text(f"{text}\n\n{state}\n", encoding="utf-8")


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)


def pages(root: Path) -> Iterator[Page]:
    """Yield all pages, those that take longest, or an unknown time, last."""
    found = (Page.read(path) for path in sorted((root / "benchmarks").glob("*.md")))
    return iter(sorted(found, key=lambda page: float("inf") if page.seconds is None else page.seconds))


def listing(root: Path) -> str:
    """Return a table of the pages and their state."""
    rows = [
        (
            page.path.stem,
            page.changed(root) or "current",
            "" if page.seconds is None else f"{page.seconds:,}",
            shlex.join(page.command) or "by hand",
        )
        for page in pages(root)
    ]
    return table(("page", "state", "seconds", "made by"), rows)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Print the state of all pages, or make those that are not current; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make", nargs="*", metavar="PAGE", help="make these pages, all that are not current if none")
    options = parser.parse_args(arguments)
    if options.make is None:
        print(listing(root))
        return 0
    known = {page.path.stem: page for page in pages(root) if page.command}
    if unknown := [name for name in options.make if name not in known]:
        parser.error(f"--make {unknown[0]}: is not one of {', '.join(sorted(known))}")
    if changed := git(root, "status", "--porcelain", "--", *CODE, "benchmarks/*.py").stdout:
        parser.error(f"--make: {changed.split()[1]} is not committed, so that no commit names its state; commit first")
    wanted = [known[name] for name in options.make] or [page for page in known.values() if page.changed(root)]
    for number, page in enumerate(wanted, 1):
        print(f"{number} of {len(wanted)}: {shlex.join(page.command)}", flush=True)
        page.make(root)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
