"""Probe calls of the subject before a run: a subject that fails on every one of them is refused at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError, foreign_traceback
from attncheck._lib.streams import stream
from attncheck.layers.case import Case
from attncheck.runs.pieces import Examined
from attncheck.runs.run import Run
from attncheck.subject import Subject

_Probe = tuple[Subject | str, int, Case]


def refusal(run: Run, each: Callable[[Callable[[_Probe], Examined], list[_Probe]], Iterable[Any]]) -> Examined | None:
    """Return why the subject can be examined nowhere: it raises, ignores its generator or returns what has no law.

    Parameters
    ----------
    run : Run
        With its plan.
    each : callable
        Applies a function to each probe, as `map` does; other processes are handed the name of the subject.

    Returns
    -------
    Examined or None
        The first failure, where the subject fails on up to three planned cases; None where it works on one of them,
        or declares that it supports none.
    """
    if run.earlier.units:
        return None
    first = None
    with contextlib.suppress(InputError):  # a declaration that fails is reported with its case
        for case in _probed(run):
            (found,) = each(probe, [(run.subject.name if each is not map else run.subject, run.seed, case)])
            if not isinstance(found, Examined) or not found.unusable:
                return None
            first = first or found
    return first


def _probed(run: Run) -> Iterator[Case]:
    """Yield the first, the cheapest and the dearest of the fixed cases that the subject supports."""
    cases = [case for case in run.fixed_cases if not run.subject.reason_unsupported(case)]
    by_cost: Sequence[Case] = sorted(cases, key=lambda case: case.weight_entries)
    yield from dict.fromkeys([*cases[:1], *by_cost[:1], *by_cost[-1:]])


def probe(task: _Probe) -> Examined:
    """Call a subject as every test item does before it plans its draws."""
    subject, seed, case = task
    try:
        with own_arithmetic():
            Subject.of(subject).probe(case, stream(seed, "probe", case.key))
    except InputError as error:
        return Examined([], str(error), foreign_traceback(error))
    return Examined([])
