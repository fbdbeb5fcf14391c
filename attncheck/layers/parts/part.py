"""`LayerPart`: what an optional part of a layer owns."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


@dataclasses.dataclass(frozen=True)
class Misreading:
    """A plausible mistake in a part: the layer that is computed in place of the declared one.

    Attributes
    ----------
    name : str
        Of the fault in `attncheck.faults.FAULTS`.
    what : str
        One-line description.
    changes : callable AttentionLayer -> dict
        Fields that differ.
    check : str
        The check that detects it on the part's example.
    """

    name: str
    what: str
    changes: Callable[[AttentionLayer], dict[str, Any]]
    check: str


class LayerPart(abc.ABC):
    """An optional part of a layer."""

    #: Fields of `AttentionLayer`, with the values that leave the part out.
    fields: ClassVar[Mapping[str, Any]]
    #: Name among the features and parts of strategies; empty for the parts of the paper's layer.
    name: ClassVar[str] = ""
    #: Fields of a layer that shows the part and its misreadings.
    example: ClassVar[Mapping[str, Any]] = {}
    misreadings: ClassVar[tuple[Misreading, ...]] = ()
    #: Fields of layers that have the part although it is not declared, by description, as candidate causes.
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Readings that do not cover the part, with the reason: "finite-width law", "tangent kernel", "long sequences",
    #: "stack".
    refusals: ClassVar[Mapping[str, str]] = {}

    def present(self, layer: AttentionLayer) -> bool:
        """Return whether a layer has the part."""
        return any(getattr(layer, field) != absent for field, absent in self.fields.items())

    def shows(self, layer: AttentionLayer, misread: AttentionLayer) -> bool:
        """Return whether weights of the two layers, which differ in this part, can differ."""
        return layer.seq_len > 1

    @abc.abstractmethod
    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated values of the fields; raises `InputError` for impossible ones."""

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return values of the fields to choose from at random, for a layer without the part; possibly none."""
        return ()
