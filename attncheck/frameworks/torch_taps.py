"""torch: what every module makes, and the scores and weights of attention, tapped in a module's own forward."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.binding import FloatArray, in_words
from attncheck.frameworks.torch import SoftmaxMode, array_of, place_of, slow_path
from attncheck.scaling.taps import EMBEDDING, MODULE, NORM, OUTPUT, SCORES, WEIGHTS, Tap, root_mean_square

# Sequences of a batch and positions of each, where inputs are drawn.
_BATCH, _POSITIONS = 4, 16
_HALF = (torch.float16, torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class TorchModels:
    """Modules of torch of any width.

    Parameters
    ----------
    build : callable
        ``build(width)`` returns a freshly initialised `torch.nn.Module`.
    inputs : callable, optional
        ``inputs(width, rng)`` returns an array, or a tuple of them. By default token numbers where a module has an
        embedding, and standard normal vectors of the width otherwise.
    call : callable, optional
        ``call(module, *inputs)`` returns the outputs.
    optimizer : callable, optional
        ``optimizer(module)`` returns a `torch.optim.Optimizer`.
    loss : callable, optional
        ``loss(outputs, *inputs)``; by default the mean square distance from standard normal numbers.
    """

    build: Callable[[int], Any]
    inputs: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None

    def make(self, width: int, seed: int) -> TorchModel:
        """Return a module of this width with its inputs."""
        with _one_thread(), torch.random.fork_rng():
            torch.manual_seed(seed)
            module = in_words("build", self.build, width)
        if place_of(module)[0] in _HALF:
            module = module.float()  # 100 units in the last place of half precision are all there is
        rng = stream(seed, "inputs", width)
        drawn = _drawn(module, width, rng) if self.inputs is None else in_words("inputs", self.inputs, width, rng)
        given = tuple(_tensor(module, each) for each in (drawn if isinstance(drawn, tuple) else (drawn,)))
        optimizer = None if self.optimizer is None else in_words("optimizer", self.optimizer, module)
        return TorchModel(module.eval(), given, self.call or _called, optimizer, self.loss or _distance(rng))


@dataclasses.dataclass(frozen=True, eq=False)
class TorchModel:
    """One module with its inputs."""

    module: Any
    given: tuple[Any, ...]
    call: Callable[..., Any]
    optimizer: Any
    loss: Callable[..., Any]

    def taps(self) -> Mapping[str, Tap]:
        """Run the module; return what was made, by the names of modules."""
        seen = _Seen(float(torch.finfo(place_of(self.module)[0]).eps), self.given[0].shape[:2][-1])
        watched = (
            _one_thread(),
            slow_path(),
            sdpa_kernel(SDPBackend.MATH),
            seen.hooks(self.module),
            SoftmaxMode(seen.softmax),
        )
        with contextlib.ExitStack() as stack, torch.no_grad():
            for each in watched:
                stack.enter_context(each)
            seen.ends_with(self._outputs())
        return seen.taps

    def step(self) -> None:
        """Take a step of the optimiser."""
        with _one_thread():
            self.optimizer.zero_grad()
            in_words("loss", self.loss, self._outputs(), *self.given).backward()
            self.optimizer.step()

    def _outputs(self) -> Any:
        made = in_words("call", self.call, self.module, *self.given)
        tensor = _first(made)
        if tensor is None:
            refuse("call", made, "returned no tensor of real numbers", "pass call=lambda module, *inputs: ...")
        return tensor


class _Seen:
    """What hooks see in one forward.

    Parameters
    ----------
    precision : float
    positions : int
        A softmax over so many is one of attention.
    """

    def __init__(self, precision: float, positions: int) -> None:
        self.taps: dict[str, Tap] = {}
        self._precision, self._positions = precision, positions
        self._running: list[str] = []
        self._calls: Counter[str] = Counter()
        # By place in memory: what a container hands on is told once. All are kept, so that no place is used twice.
        self._kept: dict[tuple[Any, ...], tuple[str, Any]] = {}

    @contextlib.contextmanager
    def hooks(self, module: Any) -> Iterator[None]:
        """Have the forward of every module tell what it makes."""
        handles = []
        for name, each in module.named_modules():

            def begins(_: Any, __: Any, name: str = name) -> None:
                self._running.append(name)

            def ends(each: Any, given: Any, made: Any, name: str = name) -> None:
                self._running.pop()
                self._module(name, each, given, made)

            handles += [each.register_forward_pre_hook(begins), each.register_forward_hook(ends)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def softmax(self, scores: FloatArray, axis: int) -> None:
        """Tap what a softmax runs on and what it makes, without what is masked."""
        scores = np.moveaxis(scores, axis, -1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        masked = weights == 0.0
        attends = scores.shape[-1] == self._positions and scores.ndim > 2
        where = self._running[-1] if self._running else ""
        for kind, values in ((SCORES, scores), (WEIGHTS, weights)):
            shown = np.where(masked, np.nan, values)
            told = kind if attends else f"softmax {kind}"
            self._add(f"{where}.{told}".lstrip("."), shown, kind if attends else MODULE, "softmax")

    def ends_with(self, made: Any) -> None:
        """Say which tap is the output of the model."""
        name, _ = self._kept.get(_key(made), ("", None))
        if name:
            self.taps[name] = dataclasses.replace(self.taps[name], kind=OUTPUT)

    def _module(self, name: str, module: Any, given: Any, made: Any) -> None:
        tensor = _first(made)
        if tensor is None:
            return
        values = array_of(tensor)
        known, _ = self._kept.get(_key(tensor), ("", None))
        if known and np.array_equal(self.taps[known].values, values, equal_nan=True):
            return
        what = type(module).__name__
        entered = _first(given)
        summed = 0.0 if entered is None else root_mean_square(array_of(entered))
        told = self._add(name or "output", values, _kind(module), what, summed)
        self._kept[_key(tensor)] = told, tensor

    def _add(self, name: str, values: FloatArray, kind: str, what: str, summed: float = 0.0) -> str:
        self._calls[name] += 1
        again = self._calls[name] > 1
        told = f"{name} ({self._calls[name]})" if again else name
        self.taps[told] = Tap(values, kind, what, summed, self._precision, again)
        return told


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Small matrices are multiplied in less time than threads take to begin, where somebody else uses the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _first(made: Any) -> Any:
    """Return the first tensor of real numbers in what a module takes or makes, None where there is none."""
    if isinstance(made, torch.Tensor):
        return made if made.is_floating_point() else None
    if isinstance(made, Mapping):
        made = tuple(made.values())
    if not isinstance(made, tuple | list):
        return None
    return next((found for each in made if (found := _first(each)) is not None), None)


def _kind(module: Any) -> str:
    if isinstance(module, torch.nn.Embedding):
        return EMBEDDING
    return NORM if "norm" in type(module).__name__.lower() else MODULE


def _key(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _called(module: Any, *given: Any) -> Any:
    if isinstance(module, torch.nn.MultiheadAttention):
        return module(given[0], given[0], given[0])[0]
    return module(*given)


def _drawn(module: Any, width: int, rng: np.random.Generator) -> Any:
    """Return token numbers for the first embedding, else vectors."""
    found = next((each for each in module.modules() if isinstance(each, torch.nn.Embedding)), None)
    if found is not None:
        return rng.integers(found.num_embeddings, size=(_BATCH, _POSITIONS))
    return rng.standard_normal((_BATCH, _POSITIONS, width))


def _tensor(module: Any, given: Any) -> Any:
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        refuse("inputs", array.dtype.name, "must hold numbers", "return arrays of numbers")
    dtype, device = place_of(module)
    return torch.as_tensor(array, dtype=dtype if array.dtype.kind == "f" else None, device=device)


def _distance(rng: np.random.Generator) -> Callable[..., Any]:
    """Return the mean square distance from numbers that are drawn once."""
    held: list[Any] = []

    def loss(outputs: Any, *_: Any) -> Any:
        if not held:
            held.append(torch.as_tensor(rng.standard_normal(outputs.shape), dtype=outputs.dtype, device=outputs.device))
        return ((outputs - held[0]) ** 2).mean()

    return loss
