"""Items of one case share its draws: the first of them has all examined, wherever they stand, on one worker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.looks.item import Item
    from attncheck.runs.run import Run
    from attncheck.runs.tasks import Examination

# What the id of an item says of its unit: ``test_scores[scores@0123456789ab n=16 s=4 H=2 …]``.
UNIT_IN_ID = re.compile(r"\[(\w+@([0-9a-f]{12})) n=\d")


class CaseResults:
    """What units come to in this process, case by case.

    Parameters
    ----------
    run : Run
        With its plan.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[str, Examination] = {}

    def examined(self, item: Item) -> Examination:
        """Return what a unit comes to; those that are planned on the same case are examined with the first."""
        if item.id not in self._found:
            self._found |= self._of_case(item)
        return self._found[item.id]

    def _of_case(self, item: Item) -> dict[str, Examination]:
        from attncheck.runs.tasks import Examination, examine

        run, items = self._run, self._run.beside(item)
        found = {each.id: Examination(kept) for each in items if (kept := run.kept(each))}
        for task in run.tasks([each for each in items if each.id not in found], run.subject):
            found |= examine(task)
        return found


def scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler of pytest-xdist that leaves the items of a case with one worker."""
    # pytest-xdist ships no types, so that its classes are Any.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class CaseScheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            found = UNIT_IN_ID.search(nodeid)
            return found[2] if found else nodeid

        def schedule(self) -> None:
            super().schedule()
            # A worker begins an item once it knows of another: one that takes the place of a crashed one needs two.
            for node in self.nodes:
                self._reschedule(node)

        def _reschedule(self, node: Any) -> None:
            # One that has not collected yet cannot be told what to run.
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Give out again what a worker leaves, but for the item that ended it."""
            items = self.assigned_work.pop(node)
            left = [(scope, nodeid) for scope, work in items.items() for nodeid, done in work.items() if not done]
            for scope, nodeid in left[1:]:
                self.workqueue.setdefault(scope, {})[nodeid] = False
            for other in self.nodes:
                self._reschedule(other)
            return left[0][1] if left else None

    return CaseScheduling(config, log)
