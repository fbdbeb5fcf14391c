"""Assignment of items to shards; items of other shards are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncheck.runs.shards import Dealer, Shard

# Dealers of test items and theory statements, whose costs are unrelated.
_DEALERS: pytest.StashKey[dict[str, Dealer]] = pytest.StashKey()
# pytest-xdist sends only ids to the reporting process.
_SHARD_IN_ID = re.compile(r" shard=(\d+)/\d+\]$")


def rows(
    config: pytest.Config,
    shard: Shard | None,
    what: str,
    costs: Mapping[str, float],
    given: Sequence[tuple[str, str, str, Sequence[Any]]],
) -> list[Any]:
    """Return the parameter sets of a test's items, each with its id, for ``parametrize``.

    `costs` are the costs of groups of items; `given` holds each item's group, id, suffix and test arguments; `what`
    names the kind of items.
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
    """Return the ids of a shard's items."""
    homes = ((name, _SHARD_IN_ID.search(name)) for name in names)
    return [name for name, home in homes if shard is None or (home and int(home[1]) == shard.number)]


def _marks(shard: Shard, home: Shard) -> list[pytest.MarkDecorator]:
    return [] if home == shard else [pytest.mark.skip(f"belongs to shard {home}")]
