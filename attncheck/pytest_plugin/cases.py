"""Test items of one case share draws: the first item to run examines all of them, on one worker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.looks.item import Item
    from attncheck.runs.run import Run
    from attncheck.runs.tasks import Examination

# The test item in a pytest id, as in ``test_scores[scores@0123456789ab n=16 s=4 H=2 …]``.
CASE_IN_ID = re.compile(r"\[(\w+@([0-9a-f]{12})) n=\d")


class CaseResults:
    """Results of the items that this process has examined, case by case."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[str, Examination] = {}

    def examined(self, item: Item) -> Examination:
        """Return an item's results, examining all items of its case at once."""
        if item.id not in self._found:
            self._found |= self._of_case(item)
        return self._found[item.id]

    def _of_case(self, item: Item) -> dict[str, Examination]:
        from attncheck.runs.tasks import examine

        run = self._run
        tasks = run.tasks(run.beside(item), run.subject)
        return {id: examined for task in tasks for id, examined in examine(task).items()}


def scheduler(config: Any, log: Any) -> Any:
    """Return an xdist scheduler that keeps cases on one worker."""
    # pytest-xdist ships no types.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class CaseScheduling(LoadScopeScheduling):  # type: ignore[misc]  # its base is Any
        def _split_scope(self, nodeid: str) -> str:
            found = CASE_IN_ID.search(nodeid)
            return found[2] if found else nodeid

        def schedule(self) -> None:
            super().schedule()
            # A worker starts an item only after receiving the next one, so all workers get more.
            for node in self.nodes:
                self._reschedule(node)

        def _reschedule(self, node: Any) -> None:
            # Workers that have not collected yet cannot be assigned items.
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Reassign the items of a worker that crashed, except the item that crashed it."""
            items = self.assigned_work.pop(node)
            left = [(scope, nodeid) for scope, work in items.items() for nodeid, done in work.items() if not done]
            for scope, nodeid in left[1:]:
                self.workqueue.setdefault(scope, {})[nodeid] = False
            for other in self.nodes:
                self._reschedule(other)
            return left[0][1] if left else None

    return CaseScheduling(config, log)
