"""`attncheck run`: the properties, without knowing pytest.

pytest still runs them, on the properties that come with the package and on nothing else: no configuration,
plugin or conftest of the folder it is called in. So the record and its digest are the same as pytest's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.progress import progress_bar
from attncheck._lib.version import PACKAGE
from attncheck.commands.live import Live
from attncheck.runs.run import Run


def run_properties(
    *,
    profile: str,
    subject: str | None,
    seed: str,
    false_alarm: str,
    draws: str | None,
    min_examined: str | None,
    record: Path,
    report: Path | None,
    workers: str,
    only: Sequence[str],
    resume: Path | None,
    shard: str | None,
    verbose: bool,
) -> int:
    """Run the properties and print what they come to; the arguments are those of `attncheck run`."""
    number = str(int.from_bytes(os.urandom(4), "big")) if seed == "random" else seed
    processes = _processes(workers)
    named = (os.environ.get("ATTNCHECK_SUBJECT") or None) if subject is None else subject
    examined = Run.of(
        subject=named,
        seed=number,
        profile=profile,
        false_alarm=false_alarm,
        draws=draws,
        record=record,
        min_examined=min_examined,
        only=only,
        resume=resume,
        shard=shard,
    )
    print(examined.header(), flush=True)
    options = {
        "--attncheck-profile": profile,
        "--attncheck-subject": examined.subject.name,
        "--attncheck-seed": number,
        "--attncheck-false-alarm": false_alarm,
        "--attncheck-record": str(record),
        **({} if draws is None else {"--attncheck-draws": draws}),
        **({} if min_examined is None else {"--attncheck-min-examined": min_examined}),
        **({"--attncheck-only": ",".join(only)} if only else {}),
        **({} if resume is None else {"--attncheck-resume": str(resume)}),
        **({} if shard is None else {"--attncheck-shard": shard}),
        **({} if report is None else {"--attncheck-report": str(report)}),
    }
    live = examine_properties(options, processes, verbose=verbose)
    return _conclude(live, verbose)


def properties_folder() -> Path:
    """Return where the properties are: in the installed package, or beside it in a clone.

    Raises
    ------
    InputError
        If they are in neither place.
    """
    package = PACKAGE
    for folder in (package / "properties", package.parent / "properties"):
        if folder.is_dir():
            return folder
    refuse("properties", str(package), "are not installed", "install attncheck again")


def _processes(workers: str) -> str:
    if workers != "auto" and not workers.isdecimal():
        refuse("workers", workers, "is not a number of processes", "pass a whole number, or auto")
    return workers


def examine_properties(options: Mapping[str, str], workers: str, keyword: str = "", verbose: bool = False) -> Live:
    """Run pytest on the properties, or on those with a keyword, with a terminal of our own."""
    folder = properties_folder()
    arguments = [str(folder), "-c", os.devnull, "--rootdir", str(folder), "--confcutdir", str(folder)]
    arguments += ["--import-mode", "importlib", "-p", "no:cacheprovider", "-p", "no:terminal"]
    arguments += ["-p", "xdist.plugin", "-p", "attncheck.pytest_plugin", "-n", workers]
    arguments += [f"{name}={value}" for name, value in options.items()]
    arguments += ["-k", keyword] if keyword else []
    with progress_bar() as progress, _plain_pytest():
        live = Live(progress, Path(options["--attncheck-record"]), options.get("--attncheck-subject", ""), verbose)
        code = pytest.main(arguments, plugins=[live])
    if live.report is None and not (live.failed or live.unusable or live.interrupted):
        raise InputError(f"properties={folder}: pytest ended with {code!r} before anything was examined; see above")
    return live


@contextmanager
def _plain_pytest() -> Iterator[None]:
    """Keep pytest, here and in its workers, from what the environment would add to it."""
    kept = dict(os.environ)
    # hypothesis keeps notes in the current folder, which is not ours.
    with tempfile.TemporaryDirectory(prefix="attncheck-") as scratch:
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            os.environ.pop(name, None)
        os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", HYPOTHESIS_STORAGE_DIRECTORY=scratch)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(kept)


def _conclude(live: Live, verbose: bool = False) -> int:
    """Print the summary and what is not in it; return the exit code."""
    sys.stdout.flush()
    report = live.report
    if report is not None:
        print(report.summary(sys.stdout.isatty(), verbose))
    if live.rendered:
        print(live.rendered)
    for text in sorted(live.failed):
        print(f"FAILED {text}")
    if live.interrupted:
        raise KeyboardInterrupt
    if live.unusable:
        more = f" (and {len(live.unusable) - 1} more like it)" if len(live.unusable) > 1 else ""
        print("\n".join(filter(None, (f"NOT EXAMINED {live.unusable[0]}{more}", live.traceback))))
    verdict = "incomplete" if report is None or report.conclusion is None else report.conclusion.verdict
    if report is not None and report.failure and verdict != "violated":
        raise InputError(report.failure)
    return ExitCode.of(verdict) if verdict != "consistent" or not live.failed else ExitCode.VIOLATED
