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
    left = set(range(len(tasks)))
    stopped, examines = 0, False
    for place, found in workers.gather(examine, tasks):
        left.discard(place)
        of_items = _lost(run, tasks[place], found) if isinstance(found, LostTask) else found
        yield from ((item, of_items[item.id]) for item in tasks[place].items)
        stopped += all(each.stopped for each in of_items.values())
        examines |= any(each.results for each in of_items.values())
        if stopped == _HOPELESS and not examines:
            break
    if left:
        problem = f"other cases were given up after calls on {stopped} of them were stopped"
        given_up = Examination([], f"subject={run.subject.name}: {problem}; mend the simulator")
        yield from ((item, given_up) for place in sorted(left) for item in tasks[place].items)


def _lost(run: Run, task: CaseTask, lost: LostTask) -> dict[str, Examination]:
    problem = f"on {task.case.describe()}: {lost.reason}; mend the simulator"
    one = Examination([], f"subject={run.subject.name}: {problem}", stopped=True)
    return dict.fromkeys((item.id for item in task.items), one)
