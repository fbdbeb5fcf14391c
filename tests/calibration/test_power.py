"""The power table: planned power is verified, and unverified claims are dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from attncheck.calibration import power as table
from attncheck.calibration.power import PowerEntry, PowerRow, entries_of
from attncheck.looks.profiles import Profile, profile_named

SMOKE = profile_named("smoke")


@pytest.fixture(scope="module")
def entry() -> PowerEntry:
    """Shared keys, seen by checks of scores in most layers, with nothing verified yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "PROPERTIES", ("scores",))
        (result,) = entries_of("shared_keys", ("grams",), "smoke", seeds=0, seed=0)
    assert sum(row.chance > 0.9 for row in result.rows) > 1
    return result


Seen = Callable[[PowerRow], int]


def verified(entry: PowerEntry, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> tuple[PowerEntry, list[PowerRow]]:
    """Verify with `seen` of 100 looks suspicious; return the rows looked at."""
    looked: list[PowerRow] = []

    def verify(row: PowerRow, profile: Profile, seeds: int, seed: int = 0) -> PowerRow:
        looked.append(row)
        return dataclasses.replace(row, looks=100, seen=seen(row))

    monkeypatch.setattr(table, "verify", verify)
    return table.verified(entry, SMOKE, 100, 0), looked


def best_of(entry: PowerEntry) -> PowerRow:
    assert entry.best is not None
    return entry.best


def test_what_holds_is_verified_once_and_another_layer_taken_where_it_does_not(
    entry: PowerEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = best_of(entry)
    after, looked = verified(entry, lambda row: 100, monkeypatch)
    assert looked == [first]
    assert after.best == dataclasses.replace(first, looks=100, seen=100)
    other = best_of(verified(entry, lambda row: 50 if row.layer == first.layer else 100, monkeypatch)[0])
    assert other.layer != first.layer
    assert (other.looks, other.seen) == (100, 100)


def alone(entry: PowerEntry) -> tuple[PowerEntry, PowerRow]:
    """Return the entry with its best row only, and that row."""
    return dataclasses.replace(entry, rows=(best_of(entry),)), best_of(entry)


def test_draws_are_doubled_until_it_holds(entry: PowerEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    only, first = alone(entry)
    enough = 4 * first.look_draws
    assert enough <= first.size
    after, looked = verified(only, lambda row: 100 if row.look_draws >= enough else 50, monkeypatch)
    assert [row.look_draws for row in looked] == [first.look_draws, 2 * first.look_draws, enough]
    assert after.rows == (dataclasses.replace(first, needed=enough, looks=100, seen=100),)


def test_the_chance_is_what_looks_of_all_that_is_planned_showed(
    entry: PowerEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    only, first = alone(entry)
    after, looked = verified(only, lambda row: 50, monkeypatch)
    (left,) = after.rows
    # Three looks, half of them suspicious: π³ + π²(1 - π)π.
    assert left.chance == left.least_chance == pytest.approx(0.5**3 + 0.5**4)
    assert looked[-1].look_draws == first.size
