"""What a user gives for models of several widths, in every framework."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from attncheck._lib.errors import refuse
from attncheck.frameworks.binding import in_words

Array = np.ndarray[Any, Any]
# Default batch size and number of positions.
_SHAPE = (4, 16)


@dataclasses.dataclass(frozen=True)
class FrameworkModels:
    """Models from ``build(width)``, with the inputs, call, optimiser and loss that a user gives, if any."""

    build: Callable[..., Any]
    inputs: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None

    def given(
        self, width: int, rng: np.random.Generator, tokens: int | None = None
    ) -> tuple[np.ndarray[Any, Any], ...]:
        """Return a model's inputs: the user's, else token ids below `tokens`, else standard normal vectors."""
        if self.inputs is not None:
            drawn = in_words("inputs", self.inputs, width, rng)
        elif tokens is not None:
            drawn = rng.integers(tokens, size=_SHAPE)
        else:
            drawn = rng.standard_normal((*_SHAPE, width))
        arrays = tuple(np.asarray(each) for each in (drawn if isinstance(drawn, tuple) else (drawn,)))
        for array in arrays:
            if array.dtype.kind not in "fiub":
                refuse("inputs", array.dtype.name, "must hold numbers", "return arrays of numbers")
        return arrays

    def optimizer_of(self, model: Any) -> Any:
        """Return the optimiser of a model, or None."""
        return None if self.optimizer is None else in_words("optimizer", self.optimizer, model)
