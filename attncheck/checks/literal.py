"""Literal draws with non-Gaussian weights, with which checks compare a subject; this is exact for any law."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.checks.functionals import FUNCTIONALS
from attncheck.checks.reference import Reference
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import precision
from attncheck.layers.attention_map import attention_weights, visible
from attncheck.simulators.finite import FINITE
from attncheck.simulators.weights import WeightLaws, draw_with_weights

#: Literal draws per draw of the subject.
LITERAL_RATIO = 2
_SINGLE = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True, eq=False)
class LiteralReference(Reference):
    """Literal draws with weights of the laws `laws`, `LITERAL_RATIO` per draw of the subject.

    The draws are reduced to the fields and precision of the subject's sample `like`. `blocks` gives the draws per
    block, by property.
    """

    laws: WeightLaws = dataclasses.field(kw_only=True)
    like: Sample = dataclasses.field(kw_only=True)
    blocks: Mapping[str, int] = dataclasses.field(kw_only=True)

    @cached_property
    def sample(self) -> Sample:
        """The literal draws, as the subject would return them."""
        arrays: dict[str, Any] = {name: self._seen(name, values) for name, values in self._draw().items()}
        return Sample(self.layer, **arrays)

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (LITERAL_RATIO · size,)."""
        return self.values_of(FUNCTIONALS, self.layer, self.coordinates, [self.sample])

    @property
    def _kept(self) -> frozenset[str]:
        fields = self.like.exposed & frozenset(EVERY_FIELD)
        return fields if self.layer.rotary_base is not None else fields - {"keys"}

    def _draw(self) -> dict[str, FloatArray]:
        """Return the fields of all literal draws, drawn in blocks to bound memory."""
        step = max(1, 2**21 // FINITE[type(self.layer)]["direct"](self.layer, self.coordinates).entries)
        total, rng = LITERAL_RATIO * self.size, np.random.default_rng(self.seed)
        parts = [
            draw_with_weights(self.layer, min(step, total - start), self.coordinates, rng, self.laws).as_dict()
            for start in range(0, total, step)
        ]
        for part in parts if "attention" in self._kept else ():
            part["attention"] = attention_weights(self.layer, part["scores"])
        return {name: np.concatenate([part[name] for part in parts]) for name in self._kept}

    def _seen(self, name: str, values: FloatArray) -> FloatArray:
        """Hide the scores that the subject hides, and round to its precision."""
        if name == "scores" and "masked scores" not in self.like.exposed:
            values = np.where(visible(self.layer), values, -np.inf)
        single = precision(self.like.need(name)) == _SINGLE
        return values.astype(np.float32).astype(np.float64) if single else values
