"""A PyTorch model with the inputs of one call, for measurements."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.backends import mha

from attncheck.frameworks.trace import ScoresTrace, Trace
from attncheck.models.duties.duty import NotExaminedError
from attncheck.models.factory import ModelFactory
from attncheck.models.replay import ModuleCall

AnyTrace = TypeVar("AnyTrace", bound=Trace)
# Derivatives are computed at no more than _POSITIONS positions. If there are more than two, the product of their
# number, the number of parameters and the number of all positions is at most _WORK.
_POSITIONS, _WORK = 12, 2**31
# A relative effect that is larger than `_ROUNDOFF` is no roundoff. In double precision, roundoff is below `_LESS` times
# the roundoff in the precision of the model.
_ROUNDOFF, _LESS = 1e-5, 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of a model's tokens, (batch, positions, width), or an input of real numbers that takes their place.

    If `module` is None, `values` are the input called `name`. Otherwise, they are the output of `module` for that
    input.
    """

    values: Any
    name: Any
    module: Any = None

    def __str__(self) -> str:
        return self.name if isinstance(self.name, str) else "the inputs"


@dataclasses.dataclass(frozen=True, eq=False)
class TorchModel:
    """A PyTorch model in evaluation mode, and its inputs.

    Attributes
    ----------
    factory : ModelFactory
    model : torch.nn.Module
    attention : sequence of ModuleCall
        Calls of its attention modules.
    steady : bool
        Whether two calls with the same inputs agree.
    """

    factory: ModelFactory
    model: Any
    attention: Sequence[ModuleCall]
    steady: bool

    @functools.cached_property
    def arguments(self) -> dict[Any, Any]:
        """Inputs by index or name, as tensors."""
        args, kwargs = self.factory.arguments(self.model, None)
        values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        return {name: self.factory.adapter.tensor(self.model, value) for name, value in values.items()}

    def require_steady(self) -> None:
        """Raise `NotExaminedError` if two calls with the same inputs differ."""
        if not self.steady:
            raise NotExaminedError("two calls on the same inputs differ")

    @property
    def work(self) -> int:
        """Number of parameters times number of positions."""
        sizes = [int(value.shape[1]) for value in self.arguments.values() if getattr(value, "ndim", 0) > 1]
        parameters: int = sum(p.numel() for p in self.model.parameters())
        return parameters * max(sizes, default=1)

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Enable gradients in this context, and restore the random generators afterwards.

        PyTorch's fused encoders are disabled, because they pack padded tokens in nested tensors, which have no shape.
        """
        enabled = mha.get_fastpath_enabled()
        with self.factory.adapter.running(), torch.enable_grad(), torch.random.fork_rng():
            mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                mha.set_fastpath_enabled(enabled)

    def outputs(self, changes: Mapping[Any, Any] | None = None) -> Any:
        """Return all outputs for the inputs, some of which are replaced by `changes`, by index or name."""
        values = {**self.arguments, **(changes or {})}
        args = tuple(value for name, value in values.items() if isinstance(name, int))
        kwargs = {name: value for name, value in values.items() if not isinstance(name, int)}
        return self.factory.outputs_for(self.model, (args, kwargs))

    def traced(self, trace: AnyTrace, changes: Mapping[Any, Any] | None = None) -> AnyTrace:
        """Call the model without gradients, and return the trace of this call; `changes` as for `outputs`."""
        with torch.no_grad(), self.factory.adapter.traced(trace, self.model):
            self.outputs(changes)
        return trace

    def first(self, changes: Mapping[Any, Any] | None = None) -> Any:
        """Return the first output that is a tensor of real numbers."""
        outputs = self.factory.adapter.first(self.outputs(changes))
        if outputs is None:
            raise NotExaminedError("no output has real numbers")
        return outputs

    @functools.cached_property
    def vectors(self) -> Vectors:
        """Vectors of the tokens.

        Raises `NotExaminedError` if outputs are not finite, or if tokens affect them by another path.
        """
        vectors = self._vectors
        if not self.first().isfinite().all():
            raise NotExaminedError("outputs are not finite")
        if vectors.module is not None and self.steady:
            ids = self.arguments[vectors.name]
            one_token = {vectors.name: torch.full_like(ids, ids.median().item())}
            with torch.no_grad():
                if not same(*(self.with_vectors(vectors.values, changes) for changes in ({}, one_token))):
                    raise NotExaminedError("the outputs depend on the tokens through more than one embedding")
        return vectors

    @functools.cached_property
    def _vectors(self) -> Vectors:
        """An input of real vectors, or the output of the innermost module that receives the tokens."""
        for name, value in self.arguments.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 2:
                return Vectors(value.detach(), name)
        trace = self.traced(_Lookups({n: v for n, v in self.arguments.items() if getattr(v, "ndim", 0) == 2}))
        if not trace.results:
            raise NotExaminedError("no module returns vectors of tokens")
        outputs = self.first().shape[:2]
        return next((vectors for vectors in trace.results if vectors.values.shape[:2] == outputs), trace.results[0])

    def with_vectors(self, x: Any, changes: Mapping[Any, Any] | None = None) -> Any:
        """Return the first output of real numbers if `x` replaces the vectors of the tokens.

        `changes` replaces further inputs, by index or name.
        """
        if self._vectors.module is None:
            return self.first({**(changes or {}), self._vectors.name: x})
        results = iter([x])  # only the result of the module's first call on these tokens is replaced
        ids = {**self.arguments, **(changes or {})}[self._vectors.name]

        def replace(module: Any, args: tuple[Any, ...], output: Any) -> Any:
            return next(results, output) if args and same(args[0], ids) else output

        with self._vectors.module.register_forward_hook(replace):
            return self.first(changes)

    def for_vectors(self, x: Any, changes: Mapping[Any, Any] | None = None) -> Any:
        """Return the outputs, one vector per position, if `x` replaces the vectors of the tokens.

        `changes` replaces further inputs, by index or name. Raises `NotExaminedError` if there is no vector per
        position.
        """
        y = self.with_vectors(x, changes)
        if x.ndim != 3 or y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            raise NotExaminedError(f"the outputs are not one vector per position of {self.vectors}")
        return y

    @functools.cached_property
    def pools(self) -> bool:
        """Whether the outputs are one vector per sequence."""
        x = self.vectors.values
        with torch.no_grad():
            y = self.with_vectors(x)
        return bool(x.ndim == 3 and y.ndim == 2 and len(y) == len(x))

    def influence(self, changes: Mapping[Any, Any] | None = None, sequence: int = 0) -> tuple[list[int], Any]:
        """Return some positions, and how strongly a sequence's outputs at these positions depend on all inputs.

        The array, (chosen positions, batch, positions), has the largest absolute derivative of a random combination of
        the outputs at a chosen position with respect to the entries of an input vector.
        """
        x = self.vectors.values.clone().requires_grad_()
        y = self.for_vectors(x, changes)
        most = min(max(_WORK // self.work, 2), _POSITIONS)
        positions = sorted({round(i) for i in torch.linspace(0, x.shape[1] - 1, most).tolist()})
        rows = [self.derivatives((y[sequence, i] * noise(y[sequence, i])).sum(), [x])[0] for i in positions]
        derivatives = torch.stack([row.abs().amax(-1) for row in rows])
        if not derivatives.isfinite().all():
            raise NotExaminedError("derivatives are not finite")
        diagonal = torch.arange(x.shape[1]) == torch.tensor(positions)[:, None]
        if not derivatives[:, sequence][~diagonal].any():
            problem = f"no output has a derivative with respect to {self.vectors} at another position"
            raise NotExaminedError(f"{problem}: is a projection 0, or a gradient stopped?")
        return positions, derivatives

    @functools.cached_property
    def dependence(self) -> tuple[list[int], Any]:
        """Result of `influence` for unchanged inputs."""
        return self.influence()

    def is_roundoff(self, effect: Callable[[TorchModel], float]) -> bool:
        """Return whether a relative effect is mere roundoff: it is small, and smaller still in double precision.

        `effect` measures the effect on a model.
        """
        here = effect(self)
        if here > _ROUNDOFF:
            return False
        double = dataclasses.replace(self, model=copy.deepcopy(self.model).double())
        return effect(double) < _LESS * here

    def derivatives(self, total: Any, tensors: Sequence[Any]) -> list[Any]:
        """Return the gradients of a scalar tensor with respect to `tensors`; zeros without dependence."""
        if not total.requires_grad:
            raise NotExaminedError("the outputs have no gradient")
        gradients = torch.autograd.grad(total, tensors, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True)]

    @functools.cached_property
    def scores(self) -> Sequence[Any]:
        """Scores of each softmax over as many keys as queries, or over one more, a sink."""
        over_keys = (scores for scores, axis in self.traced(ScoresTrace()).scores if axis == -1 and scores.ndim > 2)
        return [torch.as_tensor(scores) for scores in over_keys if scores.shape[-1] - scores.shape[-2] in (0, 1)]


class _Lookups(Trace):
    """Trace that keeps the vectors that modules return for tokens."""

    def __init__(self, tokens: Mapping[Any, Any]) -> None:
        self.tokens, self.results = tokens, list[Vectors]()

    def ends(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Keep the result of a call if its argument is an array of tokens."""
        if not args or not isinstance(output, torch.Tensor) or output.ndim != 3 or not output.is_floating_point():
            return
        names = (name for name, ids in self.tokens.items() if isinstance(args[0], torch.Tensor) and same(ids, args[0]))
        self.results.extend(Vectors(output.detach(), name, module) for name in names)


@contextlib.contextmanager
def restored(tensors: Sequence[Any]) -> Iterator[None]:
    """Restore the values of tensors on exit from this context."""
    with contextlib.ExitStack() as stack:
        for tensor in tensors:
            stack.callback(tensor.detach().copy_, tensor.detach().clone())
        yield


def noise(tensor: Any) -> Any:
    """Return Gaussian numbers in the shape of a tensor, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tensor.shape, generator=generator).to(tensor)


def same(first: Any, second: Any, tolerance: float = 1e-5) -> bool:
    """Return whether two tensors agree up to roundoff."""
    if first.shape != second.shape or not first.is_floating_point():
        return first.shape == second.shape and bool((first == second).all())
    return bool((first - second).abs().max() <= tolerance * first.abs().max())
