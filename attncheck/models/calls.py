"""Calls of modules in the forward pass of a model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from attncheck.frameworks.trace import Trace
from attncheck.models.replay import CallArguments, HiddenStates, hidden_states


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module in the forward pass of a model.

    Attributes
    ----------
    name : str
        Path of the module in the model, such as "h.0.attn".
    kind : str
        Its class.
    parent : int or None
        Index of the call that it is part of.
    given : HiddenStates or None
        Its arguments; None if none of them is an array of hidden states, (batch, positions, width).
    """

    name: str
    kind: str
    parent: int | None
    given: HiddenStates | None = None

    @property
    def source(self) -> str:
        """In cross-attention, the argument from which keys and values are computed."""
        return self.given.source if self.given else ""


class CallRecorder(Trace):
    """Trace that keeps the module calls of one forward pass, in the order in which they start.

    `method` is the name of the method that computes a module, such as "forward". The signature of the method gives
    positional arguments their names.
    """

    def __init__(self, method: str = "__call__") -> None:
        self._method = method
        self.calls: list[ModuleCall] = []
        self.arguments: list[CallArguments] = []
        self._running: list[int] = []

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the start of a call."""
        self.calls.append(ModuleCall(name, type(module).__name__, self._running[-1] if self._running else None))
        self.arguments.append(CallArguments.of(getattr(module, self._method), args, kwargs))
        self._running.append(len(self.calls) - 1)

    def ends(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Record the end of the call that started last."""
        self._running.pop()

    def numbered(self) -> Iterator[tuple[str, int]]:
        """Yield, for each call, the name of the module and the number of its earlier calls."""
        times = Counter[str]()
        for call in self.calls:
            yield call.name, times[call.name]
            times[call.name] += 1


def paired(one: CallRecorder, two: CallRecorder) -> list[ModuleCall]:
    """Return the calls on one sequence; comparison with those on two shows the hidden states."""
    by_key = dict(zip(two.numbered(), two.arguments, strict=True))
    calls = []
    for call, key, arguments in zip(one.calls, one.numbered(), one.arguments, strict=True):
        hidden = hidden_states(arguments, by_key[key]) if key in by_key else None
        calls.append(dataclasses.replace(call, given=hidden))
    return calls
