"""Search for a smaller layer with the same fault: bounded, deterministic and illustrative only."""

from __future__ import annotations

import dataclasses

from attncheck._lib.errors import InputError
from attncheck._lib.text import chance
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.result import violated
from attncheck.subject import Subject

#: Maximum number of candidates tried.
MOST_CANDIDATES = 20
# Fields that may change if a subject declares its layers; the other fields are set by the subject's module.
_FREE = ("seq_len", "input_std", "input_correlation", "position_std", "position_reach", "activation", "clip")
# Cost of a look, divided by that of a look at a candidate.
_COST_SHARE = 10


def shrink(item: Item, check: str, subject: Subject, seed: int, cost: Cost) -> Case | None:
    """Return a smaller layer or program on which `check` is also violated, or None.

    Simplifications are tried in turn, and kept if the check is still violated, on separate streams at a tenth of the
    cost of a look. The result illustrates a verdict and is not one.
    """
    current = item.case
    tried: set[Case] = {current}
    budget = _tenth(cost)
    progress = True
    while progress:
        progress = False
        for candidate in current.simpler():
            if candidate in tried or (subject.layers and not _differs_in_free(current, candidate)):
                continue
            if len(tried) > MOST_CANDIDATES:
                return None if current == item.case else current
            tried.add(candidate)
            if _violates(_candidate(item, candidate, check), subject, seed, budget):
                current, progress = candidate, True
                break
    return None if current == item.case else current


def _differs_in_free(current: Case, candidate: Case) -> bool:
    """Return whether only fields in `_FREE` differ."""
    if not isinstance(candidate, AttentionLayer):
        return False
    return current == candidate.replace(**{name: getattr(current, name) for name in _FREE})


def illustration(item: Item, check: str, subject: Subject, seed: int, cost: Cost) -> str:
    """Return the smaller case and its results as text, or ""; see `shrink`."""
    smaller = shrink(item, check, subject, seed, cost)
    if smaller is None:
        return ""
    seen = run_item(_candidate(item, smaller, check), subject, seed, _tenth(cost))
    told = (f"{result.text}; p = {', '.join(map(chance, result.p_values))}" for result in seen)
    return ": ".join([smaller.describe(), *told])


def _candidate(item: Item, case: Case, check: str) -> Item:
    return Item(item.property_name, case, role="shrink", only=check)


def _tenth(cost: Cost) -> Cost:
    return dataclasses.replace(cost, affordable=max(1, cost.affordable // _COST_SHARE))


def _violates(item: Item, subject: Subject, seed: int, cost: Cost) -> bool:
    try:
        return bool(violated(run_item(item, subject, seed, cost)))
    except InputError:
        return False
