"""`attncheck paper`: the published experiments, with a bar on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from attncheck.commands.progress import progress_bar
from attncheck.errors import check_whole
from attncheck.exit_codes import ExitCode
from attncheck.paper.publish import NUMBERS, PAGE, publish
from attncheck.paper.run import manifest_of, names_of, settle_all


def print_paper(figures: Sequence[str], out: Path, *, scale: float, seed: int, workers: str) -> int:
    """Run the experiments and say where what came out is; the arguments are those of `attncheck paper`.

    Raises
    ------
    InputError
        If an argument cannot be used, or the folder holds another run.
    """
    names, manifest = names_of(list(figures) or "all"), manifest_of(seed, scale)
    processes = (os.cpu_count() or 1) if workers == "auto" else int(workers) if workers.isdecimal() else workers
    count = check_whole("workers", processes, 1, "pass a number of processes, or auto")
    with progress_bar() as progress:
        task = progress.add_task("starting", total=None)

        def told(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        data = settle_all(names, out, manifest, count, told)
    written = publish(names, out, data, manifest)
    for path in written:
        if path.name in (NUMBERS, PAGE) or path.suffix == ".svg":
            print(path)
    return ExitCode.CONSISTENT
