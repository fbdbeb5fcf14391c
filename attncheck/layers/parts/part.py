"""`LayerPart`: the interface of optional parts of a layer."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from attncheck.layers.attention import AttentionLayer


@dataclasses.dataclass(frozen=True)
class Misreading:
    """Plausible mistake about a part: the simulator computes a layer that differs from the declared one.

    Attributes
    ----------
    name : str
        Name of the fault in `attncheck.faults.FAULTS`.
    what : str
        One-line description.
    changes : callable AttentionLayer -> dict
        Fields of the computed layer that differ from the declared one.
    check : str
        The check that detects the mistake on the layer `LayerPart.example`.
    """

    name: str
    what: str
    changes: Callable[[AttentionLayer], dict[str, Any]]
    check: str


class LayerPart(abc.ABC):
    """An optional part of a layer."""

    #: Fields of `AttentionLayer`, with the values that disable the part.
    fields: ClassVar[Mapping[str, Any]]
    #: Name of the part in lists of features and in `attncheck.strategies`.
    name: ClassVar[str]
    #: Fields of an example layer with the part, on which checks detect the `misreadings`.
    example: ClassVar[Mapping[str, Any]] = {}
    #: Plausible mistakes about the part. Each is a fault, and a candidate cause of violated checks.
    misreadings: ClassVar[tuple[Misreading, ...]] = ()
    #: Candidate causes of violated checks: maps the description of an undeclared part to the fields that add it.
    undeclared: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Maps each computation that does not support the part to the reason. Computations are "finite-width law",
    #: "tangent kernel", "long sequences", "stack", "normal scores", "homogeneous scores", "small scores" and "law of
    #: one head".
    refusals: ClassVar[Mapping[str, str]] = {}
    #: Whether scores depend on all neurons of queries and keys, not on their Gram matrices alone.
    whole_vectors: ClassVar[bool] = False

    def present(self, layer: AttentionLayer) -> bool:
        """Return whether a layer has the part."""
        return any(getattr(layer, field) != absent for field, absent in self.fields.items())

    def shows(self, layer: AttentionLayer, variant: AttentionLayer) -> bool:
        """Return whether attention weights of `layer` and `variant`, which differ only in this part, differ visibly."""
        return layer.seq_len > 1

    def describe(self, fields: Mapping[str, Any]) -> str:
        """Return the part with these field values as text, such as "softcap 50"."""
        return " ".join([self.name, *(f"{fields[name]:.3g}" for name in self.fields if name in fields)])

    def of_head(self, layer: AttentionLayer, head: int) -> Mapping[str, Any]:
        """Return the fields, with their new values, that change if only the given head of the layer is retained."""
        return {}

    def refusals_of(self, layer: AttentionLayer) -> Mapping[str, str]:
        """Return the `refusals` of the part with this layer's field values: unsupported computations, with reasons."""
        return self.refusals

    def unread(self, layer: AttentionLayer) -> Mapping[str, float]:
        """Return the standard deviations, by role, of those module parameters that the part hides from inspection.

        The role says what such a parameter changes: the "query", the "key", or the attention "weights" at inputs of 0.
        With the role "key", the keys of a module are hidden too, and with the role "weights" its scores.
        """
        return {}

    @abc.abstractmethod
    def settle(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """Return the validated values of the fields, or raise `InputError`; called if at least one field is set."""

    def values(self, layer: AttentionLayer) -> Sequence[Mapping[str, Any]]:
        """Return the sets of field values from which a random layer with the part chooses one.

        `layer` is the random layer without the part.
        """
        return ()
