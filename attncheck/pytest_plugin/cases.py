"""Items of one case share its draws: the first of them has all examined, wherever they stand, on one worker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.looks.unit import Unit
    from attncheck.runs.pieces import Examined
    from attncheck.runs.run import Run

# What the id of an item says of its unit: ``test_scores[scores@0123456789ab n=16 s=4 H=2 …]``.
UNIT_IN_ID = re.compile(r"\[(\w+@([0-9a-f]{12})) n=\d")


class Cases:
    """What units come to in this process, case by case.

    Parameters
    ----------
    run : Run
        With its plan.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[str, Examined] = {}

    def examined(self, unit: Unit) -> Examined:
        """Return what a unit comes to; those that are planned on the same case are examined with the first."""
        if unit.id not in self._found:
            self._found |= self._of_case(unit)
        return self._found[unit.id]

    def _of_case(self, unit: Unit) -> dict[str, Examined]:
        from attncheck.runs.pieces import Examined, examine

        run, units = self._run, self._run.beside(unit)
        found = {each.id: Examined(kept) for each in units if (kept := run.kept(each))}
        for piece in run.pieces([each for each in units if each.id not in found], run.subject):
            found |= examine(piece)
        return found


def scheduler(config: Any, log: Any) -> Any:
    """Return a scheduler of pytest-xdist that leaves the items of a case with one worker."""
    # pytest-xdist ships no types, so that its classes are Any.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByCase(LoadScopeScheduling):  # type: ignore[misc]
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
            units = self.assigned_work.pop(node)
            left = [(scope, item) for scope, unit in units.items() for item, done in unit.items() if not done]
            for scope, item in left[1:]:
                self.workqueue.setdefault(scope, {})[item] = False
            for other in self.nodes:
                self._reschedule(other)
            return left[0][1] if left else None

    return ByCase(config, log)
