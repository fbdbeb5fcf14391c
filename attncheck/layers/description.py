"""The protocol that layers, stacks and programs at a width share."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from attncheck.layers.draws import Batch

_Drawn = TypeVar("_Drawn", bound=Batch, covariant=True)


class Description(Protocol[_Drawn]):
    """Frozen description of a layer, stack or program at a width.

    Attributes
    ----------
    kind : str
        "layer", "stack" or "program", for messages.
    """

    kind: ClassVar[str]

    @property
    def width(self) -> int:
        """n, the number of neurons of its vectors."""
        ...

    @property
    def key(self) -> str:
        """Permanent identifier in streams, records and digests."""
        ...

    @property
    def drawn(self) -> type[_Drawn]:
        """The class of the description's draws."""
        ...

    def describe(self) -> str:
        """Return a short name."""
        ...
