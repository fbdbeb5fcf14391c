"""`attncheck paper`: the published experiments, with a bar on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.progress import progress_bar
from attncheck.commands.arguments import folder_of, processes_of, seed_of
from attncheck.paper.publish import NUMBERS, PAGE, publish
from attncheck.paper.run import manifest_of, names_of, settle_all


def print_paper(figures: Sequence[str], out: str, *, scale: float, seed: str, workers: str) -> int:
    """Run the experiments and say where what came out is; the arguments are those of `attncheck paper`.

    Raises
    ------
    InputError
        If an argument cannot be used, or the folder holds another run.
    """
    names, manifest, count = names_of(list(figures) or "all"), manifest_of(seed_of(seed), scale), processes_of(workers)
    folder = folder_of(out)
    with progress_bar() as progress:
        task = progress.add_task("starting", total=None)

        def told(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        data = settle_all(names, folder, manifest, count, told)
    written = publish(names, folder, data, manifest)
    for path in written:
        if path.name in (NUMBERS, PAGE) or path.suffix == ".svg":
            print(path)
    return ExitCode.CONSISTENT
