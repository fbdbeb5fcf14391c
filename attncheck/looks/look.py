"""A look: draw from a subject in chunks, and test the measurements of each check in bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import InputError
from attncheck.checks.check import AnyCheck, NotExaminedError, Setting
from attncheck.checks.programs.sample import ProgramSetting
from attncheck.evidence.family import CondensedData, Outcome
from attncheck.looks.domains import domain_of
from attncheck.looks.plan import Plan
from attncheck.subject import Subject


def observe(
    planned: Plan,
    checks: Sequence[AnyCheck],
    factor: int,
    subject: Subject,
    rng: np.random.Generator,
    seed: np.random.SeedSequence,
) -> dict[str, Outcome]:
    """Take one look at `factor` times the planned size, and return the outcome of each check.

    `rng` is the random stream of the subject, `seed` that of the reference. The draws of a check do not depend on the
    other checks.
    """
    setting = planned.setting
    domain = domain_of(checks[0].property_name)
    size = {check: planned.sizes[check] * factor for check in checks}
    total = max(size.values())
    data = {check: CheckData(check, setting) for check in checks}
    for start, child in zip(range(0, total, planned.chunk), seed.spawn(-(-total // planned.chunk)), strict=True):
        count = min(planned.chunk, total - start)
        active = [check for check in checks if start < size[check]]
        sample = subject.draw_in_calls(setting, count, rng)
        functionals = frozenset(check.compares for check in active)
        reference = domain.reference(setting, sample, child, functionals, planned.blocks)
        for check in active:
            with _named(check, subject, setting):
                data[check].measure(sample, reference)
    outcomes = {}
    for check, check_data in data.items():
        with _named(check, subject, setting):
            outcomes[check.name] = check_data.outcome()
    return outcomes


#: With more values than this, the data of a check are condensed. First looks of the default profile have half as many.
MOST_RETAINED = 2**17


@contextlib.contextmanager
def _named(check: AnyCheck, subject: Subject, setting: Setting | ProgramSetting) -> Iterator[None]:
    """Convert numerical errors and input errors to an `InputError` that names the check, the subject and the case."""
    try:
        yield
    except (InputError, np.linalg.LinAlgError, FloatingPointError) as error:
        problem = f"cannot use the arrays that {subject.name} returned on {setting.case.describe()}: {error}"
        remedy = "" if isinstance(error, InputError) else "; mend the simulator"
        raise InputError(f"check={check.name}: {problem}{remedy}") from error


class CheckData:
    """Data of one check in one look; they are condensed when they become too many."""

    def __init__(self, check: AnyCheck, setting: Any) -> None:
        self._check, self._setting = check, setting
        self._parts: list[tuple[Any, ...]] = []
        self._size = 0
        self._condensed: CondensedData | None = None
        self._reason = ""

    def measure(self, sample: Any, reference: Any) -> None:
        """Add the measurements of a sample, or the reason why the check does not apply to the subject."""
        try:
            self.add(self._check.data(self._setting, sample, reference))
        except NotExaminedError as error:
            self._reason = str(error)

    def add(self, part: tuple[Any, ...]) -> None:
        """Add the measurements of one chunk."""
        self._parts.append(part)
        self._size += sum(np.size(column) for column in part)
        several = len(self._parts) > 1 or self._condensed is not None
        if several and self._size > MOST_RETAINED:
            self._condense()

    def outcome(self) -> Outcome:
        """Return the outcome of the test on all data."""
        if self._reason:
            return dataclasses.replace(self._check.family_on(self._setting).nothing(), reason=self._reason)
        if self._condensed is None:
            return self._check.test(self._setting, join(self._parts))
        if self._parts:
            self._condense()
        return self._condensed.outcome()

    def _condense(self) -> None:
        """Replace the data by their condensed form."""
        data, last = join(self._parts), self._parts[-1]
        self._parts, self._size = [], 0
        if any(np.size(column) == 0 for column in data):
            # An empty array, e.g. one of two samples, leaves nothing to test; retain only the last part.
            self._parts = [last]
        elif self._condensed is None:
            self._condensed = self._check.family_on(self._setting).condensed(*data)
        else:
            self._condensed.add(*data)


def join(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Join the measurements of several chunks: concatenate arrays, add counts."""
    if len(parts) == 1:
        return parts[0]
    return tuple(
        np.concatenate(column) if isinstance(column[0], np.ndarray) else sum(column)
        for column in zip(*parts, strict=True)
    )
