"""What all descriptions have in common: whatever can be drawn, a layer, a stack of layers, or a program at a width."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

from attncheck.layers.draws import Batch

_Drawn = TypeVar("_Drawn", bound=Batch, covariant=True)


class Description(Protocol[_Drawn]):
    """What can be drawn. It is frozen, and knows what it is called and what its draws are; it draws nothing itself.

    Attributes
    ----------
    kind : str
        What messages call it: "layer", "stack" or "program".
    """

    kind: ClassVar[str]

    @property
    def width(self) -> int:
        """n, the number of neurons of its vectors."""
        ...

    @property
    def key(self) -> str:
        """What it is known by in streams, records and digests; it never changes."""
        ...

    @property
    def drawn(self) -> type[_Drawn]:
        """What its draws are, whatever the reading."""
        ...

    def describe(self) -> str:
        """Return a short name."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return built-in types."""
        ...
