"""The loop of a run: items, case by case, on any workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attncheck._lib.workers import LostTask, Workers
from attncheck.looks.item import Item
from attncheck.runs.run import Run
from attncheck.runs.tasks import CaseTask, Examination, examine

# The remaining cases are given up if no case has results and this many lost their process or had a call stopped.
_HOPELESS = 3


def examined(run: Run, items: Sequence[Item], workers: Workers) -> Iterator[tuple[Item, Examination]]:
    """Iterate over items and their examinations as cases end; the order depends on the workers, the results do not.

    If the subject is hopeless, the items that are left are yielded with the reason.
    """
    # Longest first, to balance the load, but after the cheapest, which is the most likely to end in time.
    tasks = sorted(run.tasks(items, workers.travels), key=lambda task: -task.entries)
    tasks = [*tasks[-1:], *tasks[:-1]]
    pending = set(range(len(tasks)))
    stopped, examines = 0, False
    for index, outcome in workers.gather(examine, tasks):
        pending.discard(index)
        of_items = _lost(run, tasks[index], outcome) if isinstance(outcome, LostTask) else outcome
        yield from ((item, of_items[item.id]) for item in tasks[index].items)
        stopped += all(examination.stopped for examination in of_items.values())
        examines |= any(examination.results for examination in of_items.values())
        if stopped == _HOPELESS and not examines:
            break
    if pending:
        problem = f"other cases were given up after calls on {stopped} of them were stopped"
        skipped = Examination([], f"subject={run.subject.name}: {problem}; mend the simulator")
        yield from ((item, skipped) for index in sorted(pending) for item in tasks[index].items)


def _lost(run: Run, task: CaseTask, lost: LostTask) -> dict[str, Examination]:
    problem = f"on {task.case.describe()}: {lost.reason}; mend the simulator"
    one = Examination([], f"subject={run.subject.name}: {problem}", stopped=True)
    return dict.fromkeys((item.id for item in task.items), one)
