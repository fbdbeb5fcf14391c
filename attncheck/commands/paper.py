"""`attncheck paper`: the published experiments, with a bar on a terminal."""

from __future__ import annotations

from typing import Annotated

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Out, PublishedFigure, folder_of, seed_of


def paper(
    *figure: PublishedFigure,
    out: Annotated[str, Out] = "paper",
    scale: float = 1.0,
    seed: str = "0",
    workers: str = "auto",
    executor: str | None = None,
) -> int:
    """Repeat the paper's experiments at full size, beside what is computed exactly.

    Parameters
    ----------
    figure
        Which figures of the paper; all by default.
    out
        The folder for figures, numbers and a page of all. A run that was interrupted goes on where it was.
    scale
        Share of the published draws, at least 0.001: 0.01 for a quick look.
    seed
        A whole number: the same seed gives the same digits with any number of workers.
    workers
        Processes to use, or auto; 0 does the work in this process.
    executor
        Who does the work in their place, as for attncheck run.
    """
    from attncheck._lib.executor_spec import spec_of
    from attncheck._lib.progress import progress_bar
    from attncheck.paper.publish import NUMBERS, PAGE, publish
    from attncheck.paper.run import manifest_of, names_of, settle_all

    names, manifest = names_of(list(figure) or "all"), manifest_of(seed_of(seed), scale)
    spec = spec_of(executor, workers)
    folder = folder_of(out)
    with progress_bar() as progress:
        task = progress.add_task("starting", total=None)

        def told(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        data = settle_all(names, folder, manifest, spec, told)
    written = publish(names, folder, data, manifest)
    for path in written:
        if path.name in (NUMBERS, PAGE) or path.suffix == ".svg":
            print(path)
    return ExitCode.CONSISTENT
