"""The wrong simulators that a check must reject."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

from attncheck.layers.attention import AttentionLayer


@dataclasses.dataclass(frozen=True)
class Rejected:
    """Wrong simulators that a check must reject.

    Attributes
    ----------
    faults : tuple of str or callable
        Names in `attncheck.faults` (of programs: in `attncheck.faults.programs`), or functions.
    layer : AttentionLayer or None
        A layer on which the check rejects the first fault within some thousands of draws.

    Examples
    --------
    >>> Rejected.of("matrix_std_5", "fresh_matrices").faults
    ('matrix_std_5', 'fresh_matrices')
    """

    faults: tuple[str | Callable[..., object], ...] = ()
    layer: AttentionLayer | None = None

    @classmethod
    def of(cls, *faults: str | Callable[..., object], on: AttentionLayer | None = None) -> Self:
        """Return the faults, the first of which shows on a layer."""
        return cls(faults, on)


#: No fault.
NOTHING = Rejected()
