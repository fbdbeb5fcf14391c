"""A case of a run as a piece of work, described so that any process can examine it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from attncheck._lib.arithmetic import in_use, own_arithmetic
from attncheck._lib.errors import InputError, foreign_traceback
from attncheck.diagnosis.differences import diagnose
from attncheck.diagnosis.shrink import illustration
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.case import Case
from attncheck.looks.examine import run_units
from attncheck.looks.plan import Cost
from attncheck.looks.result import violated
from attncheck.looks.unit import Unit
from attncheck.records.schema import Result
from attncheck.subject import Subject


@dataclasses.dataclass(frozen=True)
class Piece:
    """Units of one case, which are examined on the same draws, with all that their results depend on.

    Attributes
    ----------
    subject : Subject or str
        Its name, where another process is to import it.
    seed : int
        The run seed.
    units : tuple of Unit
        One or more.
    cost : Cost
    explains : bool
        Whether violated results are diagnosed and shown on a smaller layer.
    """

    subject: Subject | str
    seed: int
    units: tuple[Unit, ...]
    cost: Cost
    explains: bool

    @property
    def case(self) -> Case:
        """What is examined."""
        return self.units[0].case

    def results(self) -> list[Result]:
        """Return one result for each check.

        Raises
        ------
        InputError
            If the subject cannot be called or returns something that cannot be used.
        """
        subject = _named(self.subject) if isinstance(self.subject, str) else self.subject
        with own_arithmetic():
            results = run_units(self.units, subject, self.seed, self.cost)
            if self.explains and violated(results):
                results = self._explained(results, subject)
            rounded = in_use()
        return [msgspec.structs.replace(result, arithmetic=rounded) for result in results]

    def _explained(self, results: Sequence[Result], subject: Subject) -> list[Result]:
        """Add to violated results what a person needs: numbers, and a smaller layer for the worst."""
        worst = violated(results)[0]
        unit = next(unit for unit in self.units if unit.property_name == worst.property)
        smaller = illustration(unit, worst.check, subject, self.seed, self.cost)
        diagnosis: list[str] = []
        with contextlib.suppress(InputError):  # a subject that now and then fails keeps its verdict
            diagnosis = diagnose(unit, subject, self.seed)
        return [
            msgspec.structs.replace(result, diagnosis=diagnosis, illustration=smaller)
            if result.verdict == Verdict.VIOLATED
            else result
            for result in results
        ]


class Examined(NamedTuple):
    """The results of a unit, or why there are none and where the subject failed."""

    results: list[Result]
    unusable: str = ""
    traceback: str = ""


def examine(piece: Piece) -> dict[str, Examined]:
    """Return what a piece comes to, by the ids of its units; where it fails, each unit has its own try."""
    try:
        results = piece.results()
    except InputError as error:
        if len(piece.units) == 1:
            return {piece.units[0].id: Examined([], str(error), foreign_traceback(error))}
        alone = (dataclasses.replace(piece, units=(unit,)) for unit in piece.units)
        return {id: examined for part in alone for id, examined in examine(part).items()}
    return {unit.id: Examined([result for result in results if result.unit == unit.id]) for unit in piece.units}


@functools.lru_cache(maxsize=2)
def _named(name: str) -> Subject:
    """Return a subject by name; one that is inspected first is inspected once in a process."""
    return Subject.of(name)
