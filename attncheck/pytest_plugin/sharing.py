"""Items of a shard: the ids of all items say which shard has them, and those of other shards are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncheck.runs.shards import Dealer, Shard

# Who deals out the units, and the statements of the theory, whose costs have nothing to do with each other.
_DEALERS: pytest.StashKey[dict[str, Dealer]] = pytest.StashKey()
# pytest-xdist tells the process that reports nothing but ids.
_SHARD_IN_ID = re.compile(r" shard=(\d+)/\d+\]$")


def rows(
    config: pytest.Config,
    shard: Shard | None,
    what: str,
    costs: Mapping[str, float],
    given: Sequence[tuple[str, str, str, Sequence[Any]]],
) -> list[Any]:
    """Return the arguments and the id of each item of a test, as pytest takes them.

    Parameters
    ----------
    config : pytest.Config
    shard : Shard or None
        The shard that is examined here; None for the whole run.
    what : str
        Names what is dealt out together.
    costs : mapping of str to float
        What the items cost, by what they stay together by.
    given : sequence of (str, str, str, sequence)
        Of each item what it stays together by, its id, words that follow it, and the arguments of the test.
    """
    if shard is None:
        return [pytest.param(*values, id=f"{id} {words}".strip()) for _, id, words, values in given]
    from attncheck.runs.shards import Dealer

    homes = config.stash.setdefault(_DEALERS, {}).setdefault(what, Dealer(shard.of)).deal(costs)
    return [
        pytest.param(*values, id=f"{id} {words}".strip() + f" shard={homes[key]}", marks=_marks(shard, homes[key]))
        for key, id, words, values in given
    ]


def own(names: Iterable[str], shard: Shard | None) -> list[str]:
    """Return the ids of items that are of a shard; all of them where it is the whole run."""
    homes = ((name, _SHARD_IN_ID.search(name)) for name in names)
    return [name for name, home in homes if shard is None or (home and int(home[1]) == shard.number)]


def _marks(shard: Shard, home: Shard) -> list[pytest.MarkDecorator]:
    return [] if home == shard else [pytest.mark.skip(f"is of shard {home}")]
