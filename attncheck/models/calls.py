"""Calls of modules in the forward pass of a model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attncheck.frameworks.binding import Binding
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
        What it is called with; None without hidden states, (batch, positions, width), among its arguments.
    """

    name: str
    kind: str
    parent: int | None
    given: HiddenStates | None = None

    @property
    def source(self) -> str:
        """In cross-attention, the argument that keys and values come from."""
        return self.given.source if self.given else ""


class CallRecorder:
    """Recorder of the calls in one forward pass, in the order in which they begin.

    `method` is the name of the method that has the signature of a call.
    """

    def __init__(self, method: str = "__call__") -> None:
        self._method = method
        self.calls: list[ModuleCall] = []
        self.arguments: list[CallArguments] = []
        self._running: list[int] = []

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record that a module is called."""
        self.calls.append(ModuleCall(name, type(module).__name__, self._running[-1] if self._running else None))
        self.arguments.append(CallArguments.of(getattr(module, self._method), args, kwargs))
        self._running.append(len(self.calls) - 1)

    def ends(self, module: Any, args: tuple[Any, ...], made: Any) -> None:
        """Record that the module called last returns."""
        self._running.pop()

    def numbered(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each call, with the number of earlier ones of this name."""
        times = Counter[str]()
        for call in self.calls:
            yield call.name, times[call.name]
            times[call.name] += 1


def replayed(bind: Callable[..., Binding], call: ModuleCall, modules: Sequence[Any], make: Any = None) -> Binding:
    """Return the binding to the draws of a module of a model, called as the model does.

    `make` returns the module that is called, if the draws are not modules.
    """
    assert call.given is not None
    binding = bind(make or (lambda: modules[0]), call.given.width, call.given.replay)
    binding.draws, binding.lengths = modules, call.given.lengths
    return binding


def paired(one: CallRecorder, two: CallRecorder) -> list[ModuleCall]:
    """Return the calls on one sequence, with what differs on two that are alike."""
    others = dict(zip(two.numbered(), two.arguments, strict=True))
    calls = []
    for call, key, arguments in zip(one.calls, one.numbered(), one.arguments, strict=True):
        given = hidden_states(arguments, others[key]) if key in others else None
        calls.append(dataclasses.replace(call, given=given))
    return calls
