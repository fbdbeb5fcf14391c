"""Test items of one case share draws: the first item to run examines all of them, on one worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.looks.item import Item
    from attncheck.runs.run import Run
    from attncheck.runs.tasks import Examination


# An item in a pytest id: the name of a property and the key of a case.
_ITEM = re.compile(r"\[(\w+@[0-9a-f]{12}) n=\d")


class CaseResults:
    """Results of the test items that this process has examined; all items of a case are examined together."""

    def __init__(self, run: Run, items: Sequence[Item]) -> None:
        self._run = run
        self._items = items
        self._found: dict[str, Examination] = {}

    def examined(self, item: Item) -> Examination:
        """Return an item's results, examining all items of its case at once."""
        if item.id not in self._found:
            from attncheck.runs.tasks import examine

            siblings = [sibling for sibling in self._items if sibling.case.key == item.case.key and sibling != item]
            for task in self._run.tasks([item, *siblings]):
                self._found |= examine(task)
        return self._found[item.id]


def item_id(nodeid: str) -> str:
    """Extract the id of an item from a pytest node id, or return an empty string if there is none.

    Node ids are all that xdist reports about a worker's items.

    Examples
    --------
    >>> item_id("test_scores.py::test_scores[scores@0123456789ab n=16 s=4 H=2]"), item_id("test_a.py::test_a")
    ('scores@0123456789ab', '')
    """
    match = _ITEM.search(nodeid)
    return match[1] if match else ""


def scheduler(config: Any, log: Any) -> Any:
    """Return an xdist scheduler that runs all items of a case on one worker."""
    # pytest-xdist ships no types.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class CaseScheduling(LoadScopeScheduling):  # type: ignore[misc]  # its base is Any
        def _split_scope(self, nodeid: str) -> str:
            return item_id(nodeid).partition("@")[2] or nodeid

        def schedule(self) -> None:
            super().schedule()
            # A worker starts an item only when it has received the next one, so give each worker a further item.
            for node in self.nodes:
                self._reschedule(node)

        def _reschedule(self, node: Any) -> None:
            # Workers that have not collected yet cannot be assigned items.
            if node in self.registered_collections:
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Reassign the items of a worker that crashed, except the item that crashed it."""
            items = self.assigned_work.pop(node)
            pending = [(scope, nodeid) for scope, work in items.items() for nodeid, done in work.items() if not done]
            for scope, nodeid in pending[1:]:
                self.workqueue.setdefault(scope, {})[nodeid] = False
            for survivor in self.nodes:
                self._reschedule(survivor)
            return pending[0][1] if pending else None

    return CaseScheduling(config, log)
