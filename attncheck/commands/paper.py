"""`attncheck paper`: arguments and progress display."""

from __future__ import annotations

from typing import Annotated

from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.arguments import Natural, Out, PublishedFigure, folder_of


def paper(
    *figure: PublishedFigure,
    out: Annotated[str, Out] = "paper",
    scale: float = 1.0,
    seed: Natural = 0,
    workers: str = "auto",
    executor: str | None = None,
) -> int:
    """Reproduce the paper's experiments at full size, next to exact results.

    Parameters
    ----------
    figure
        Figures of the paper; default: all.
    out
        Folder for numbers and an HTML page of the figures.
    scale
        Fraction of the published draws, at least 0.001; 0.01 for a quick look.
    seed
        Whole number. Results depend on it, not on the number of workers.
    workers
        Number of processes, or auto; 0 runs in this process.
    executor
        Cluster to use instead of processes, as for attncheck run.
    """
    from attncheck._lib.executors import workers_of
    from attncheck._lib.files import check_writable
    from attncheck._lib.progress import progress_bar
    from attncheck.paper.page import PAGE, write_pages
    from attncheck.paper.run import manifest_of, names_of, perform_all

    names, manifest = names_of(list(figure) or "all"), manifest_of(seed, scale)
    running = workers_of(executor, workers)
    folder = folder_of(out)
    check_writable({"out": folder / PAGE})
    with progress_bar() as progress, running:
        task = progress.add_task("starting", total=None)

        def on_progress(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=name)

        results = perform_all(names, manifest, running, on_progress)
    for path in write_pages(names, folder, results, manifest):
        print(path)
    return ExitCode.CONSISTENT
