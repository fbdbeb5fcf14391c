"""Which pages of measurements are of the present code; ``--make`` makes the others.

``python benchmarks/PAGE.py --write`` makes a page. Its last line, which this script adds, has the commit, the machine,
the versions and the time. It is current while what it depends on is the same at HEAD, but for docstrings and comments.
``--make`` makes the quickest pages first, and those that time things last and alone; an interrupted call continues
where it stopped. ``python benchmarks/all.py --make stacks rates`` makes these two; ``--jobs 2`` makes two at a time
where both have one process. benchmarks/requirements.txt has the packages that pages need.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import dataclasses
import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: the scripts are here, the package may be installed elsewhere

from attncheck._lib.measured import installed, table  # noqa: E402  # found by the path above
from benchmarks.rows import CODE, git, state  # noqa: E402  # found by the path above

#: Pages of times, which nothing else may disturb.
TIMED = frozenset({"executors", "infinite_heads", "large", "load", "main_job", "paper", "programs", "speed"})
#: Code of modules, and that of models over widths, with the only pages that run them.
MODULES = tuple(f"attncheck/{name}" for name in ("frameworks", "models", "commands/inspect.py"))
OVER_WIDTHS = ("attncheck/scaling", *(f"attncheck/frameworks/{name}.py" for name in ("*_taps", "models", "widths")))
RUN_BY = {MODULES: frozenset({"widths", "wild", "zoo"}), OVER_WIDTHS: frozenset({"widths"})}
_STATE = re.compile(r"\n\nMade at commit (?P<commit>[0-9a-f]+) in (?P<seconds>[\d,]+) s with .*\n\Z")
_IMPORTED = re.compile(r"^ *from benchmarks(?:\.(\w+)[\w.]* import| import ([\w, ]+))", re.MULTILINE)
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of measurements.

    Attributes
    ----------
    path : Path
    needs : tuple of str
        Packages that are not installed.
    commit : str or None
        The commit it was made at, and ``seconds`` the time that took; None if unknown.
    """

    path: Path
    needs: tuple[str, ...] = ()
    commit: str | None = None
    seconds: int | None = None

    @classmethod
    def read(cls, path: Path) -> Page:
        """Read a page's needs and state."""
        made = _STATE.search(path.read_text(encoding="utf-8"))
        needs = tuple(missing(path.parent / "requirements.txt", path.stem))
        if made is None:
            return cls(path, needs)
        return cls(path, needs, made["commit"], int(made["seconds"].replace(",", "")))

    @property
    def script(self) -> str:
        return self.path.with_suffix(".py").read_text(encoding="utf-8")

    @property
    def scripts(self) -> tuple[str, ...]:
        """The scripts and folders in benchmarks/ that it depends on."""
        imported = (word for pair in _IMPORTED.findall(self.script) for word in re.findall(r"\w+", " ".join(pair)))
        names = dict.fromkeys((self.path.stem, *imported))
        return tuple(f"benchmarks/{name}{end}" for name in names for end in (".py", "/"))

    @property
    def alone(self) -> bool:
        """Whether it times things, or has several processes."""
        return self.path.stem in TIMED or "--workers" in self.script

    def changed(self, root: Path) -> str:
        """Return why the page has to be made anew, empty if it is current."""
        if self.commit is None:
            return "of an unknown commit"
        unused = [place for places, users in RUN_BY.items() if self.path.stem not in users for place in places]
        others = [f":(exclude){place}" for place in ("*.md", *unused)]
        found = git(root, "diff", "--name-only", self.commit, "HEAD", "--", *CODE, *self.scripts, *others)
        if found.returncode:
            return f"of {self.commit}, which is not in this repository"
        for name in found.stdout.splitlines():
            old, new = (git(root, "show", f"{at}:{name}").stdout for at in (self.commit, "HEAD"))
            if statements(old) != statements(new):
                return f"of {self.commit}, before a change"
        return ""

    def make(self, root: Path) -> str:
        """Run the command, then write the commit, the versions and the time to the page's end; return what failed."""
        started, before = time.monotonic(), state(root)
        rows = root / "benchmarks" / ".rows" / f"{self.path.stem}.jsonl"
        resume = ["--resume", str(rows)] if '"--resume"' in self.script else []
        threads = {} if self.path.stem in TIMED else _ONE_THREAD
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **threads, "PYTHONPATH": path}
        line = [sys.executable, f"benchmarks/{self.path.stem}.py", "--write", *resume]
        done = subprocess.run(line, cwd=root, env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return f"exit code {done.returncode}"
        if state(root) != before:
            return "the code has changed meanwhile"
        rows.unlink(missing_ok=True)
        text = _STATE.sub("\n", self.path.read_text(encoding="utf-8")).rstrip("\n")
        made = f"in {time.monotonic() - started:,.0f} s with {installed()}, {os.cpu_count()} cores"
        self.path.write_text(f"{text}\n\nMade at commit {before[:7]} {made}.\n", encoding="utf-8")
        return ""


def statements(source: str) -> str:
    """Return what a module does: its syntax tree without docstrings, or any other text as it is."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def missing(requirements: Path, page: str) -> Iterator[str]:
    """Yield the packages of a page that are not installed, from lines such as ``torch  # wild, zoo``."""
    for line in requirements.read_text(encoding="utf-8").splitlines() if requirements.exists() else []:
        requirement, _, of = line.partition("#")
        name = re.split(r"[\[=<>~! ]", requirement.strip())[0]
        if name and page in re.findall(r"\w+", of):
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                yield name


def pages(root: Path) -> list[Page]:
    """Return all pages, those of times last, and those that take longest, or an unknown time, after others."""
    found = (Page.read(path) for path in sorted((root / "benchmarks").glob("*.md")))
    return sorted(found, key=lambda page: (page.path.stem in TIMED, page.seconds is None, page.seconds))


def left(some: Sequence[Page]) -> str:
    """Say how many pages are left, and about how long they take."""
    known = [page.seconds for page in some if page.seconds is not None]
    unknown = f" and {len(some) - len(known)} of unknown time" if len(known) < len(some) else ""
    return f"{len(some)} left, about {sum(known) / 60:.0f} min{unknown}"


def listing(root: Path) -> str:
    """Return a table of the pages and their state."""
    every = pages(root)
    rows = [
        (
            page.path.stem,
            (page.changed(root) or "current") + (f"; needs {', '.join(page.needs)}" if page.needs else ""),
            "" if page.seconds is None else f"{page.seconds:,}",
        )
        for page in every
    ]
    wanted = [page for page in every if page.changed(root)]
    return f"{table(('page', 'state', 'seconds'), rows)}\n\n{left(wanted)}"


def make_all(wanted: Sequence[Page], root: Path, jobs: int) -> int:
    """Make pages, and say after each what is left; return the number of failures."""
    failures, open_pages = 0, list(wanted)
    for some, at_once in (([p for p in wanted if not p.alone], jobs), ([p for p in wanted if p.alone], 1)):
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            started = {pool.submit(page.make, root): page for page in some}
            for future in concurrent.futures.as_completed(started):
                page, problem = started[future], future.result()
                open_pages.remove(page)
                failures += bool(problem)
                what = f"failed: {problem}" if problem else f"made in {Page.read(page.path).seconds:,} s"
                print(f"{page.path.stem}: {what}; {left(open_pages)}", flush=True)
    return failures


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Print the state of all pages, or make those that are not current; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make", nargs="*", metavar="PAGE", help="make these pages, all that are not current if none")
    parser.add_argument("--jobs", type=int, default=1, help="pages made at a time (default: 1)")
    options = parser.parse_args(arguments)
    if options.make is None:
        print(listing(root))
        return 0
    known = {page.path.stem: page for page in pages(root)}
    if unknown := [name for name in options.make if name not in known]:
        parser.error(f"--make {unknown[0]}: is not one of {', '.join(sorted(known))}")
    if changed := git(root, "status", "--porcelain", "--", *CODE, "benchmarks/*.py").stdout:
        parser.error(f"--make: {changed.split()[1]} is not committed, so that no commit names its state; commit first")
    wanted = [known[name] for name in options.make] or [page for page in known.values() if page.changed(root)]
    for page in wanted:
        if page.needs:
            print(f"{page.path.stem}: not made; needs {', '.join(page.needs)}, see benchmarks/requirements.txt")
    wanted = [page for page in wanted if not page.needs]
    print(left(wanted), flush=True)
    return 1 if make_all(wanted, root, options.jobs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
