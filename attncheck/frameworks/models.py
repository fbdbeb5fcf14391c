"""Models of any framework at several widths, with their inputs and optimisers."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.adapter import in_words, roundoff
from attncheck.frameworks.framework import FrameworkAdapter
from attncheck.frameworks.trace import Trace
from attncheck.scaling.taps import EMBEDDING, MODULE, NORM, OUTPUT, SCORES, ULPS, WEIGHTS, Model, Tap, root_mean_square

Array = np.ndarray[Any, Any]
_EMBEDDINGS = ("Embedding", "Embed")
# Scores up to this value count as masked.
_HIDDEN = -1e29
_AT_OUTPUT = "a factor follows: the size is tested at the output instead"
_SECOND_TOKENS = "without the logits of input tokens, which a shared matrix keeps constant"
# Number of neurons at which an array is compared with a sum of embeddings.
_FITTED = 8
# Default batch size and number of positions.
_SHAPE = (4, 16)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelsAtWidths:
    """Models from ``build(width)``, with the user's inputs, call, optimiser and loss, if given.

    Default inputs are token ids for a model with an embedding, else standard normal vectors.
    """

    kind: type[FrameworkAdapter]
    build: Callable[..., Any]
    inputs: Callable[..., Any] | None = None
    call: Callable[..., Any] | None = None
    optimizer: Callable[..., Any] | None = None
    loss: Callable[..., Any] | None = None
    _adapters: dict[int, FrameworkAdapter] = dataclasses.field(default_factory=dict, repr=False)

    def make(self, width: int, seed: int) -> ModelAtWidth:
        """Return a model of this width with inputs."""
        new = self.kind(functools.partial(self.build, width), self.call, fields=("build", "model"))
        adapter = self._adapters.setdefault(width, new)  # models of one width share compiled functions

        adapter.inputs = lambda module: (self.drawn(width, stream(seed, "inputs", width), adapter.tokens(module)), {})
        module = adapter.evaluated(adapter.make(seed), single=True)  # half precision would hide small changes
        rng = stream(seed, "inputs", width)
        arrays = self.drawn(width, rng, adapter.tokens(module))
        tensors = tuple(adapter.tensor(module, array) for array in arrays)
        return ModelAtWidth(adapter, module, tensors, self.optimizer, self.loss, rng)

    def drawn(self, width: int, rng: np.random.Generator, tokens: int | None) -> tuple[Array, ...]:
        """Return a model's inputs: the user's, else token ids below `tokens`, else standard normal vectors."""
        if self.inputs is not None:
            drawn = in_words("inputs", self.inputs, width, rng)
        elif tokens is not None:
            drawn = rng.integers(tokens, size=_SHAPE)
        else:
            drawn = rng.standard_normal((*_SHAPE, width))
        arrays = tuple(np.asarray(draw) for draw in (drawn if isinstance(drawn, tuple) else (drawn,)))
        for array in arrays:
            if array.dtype.kind not in "fiub":
                remedy = "return an array, or a tuple of arrays in the order of the model's arguments"
                refuse("inputs", array.dtype.name, "must hold numbers", remedy)
        return arrays


@dataclasses.dataclass(eq=False)
class ModelAtWidth(Model):
    """A module with its inputs, and an optimiser if it takes steps."""

    adapter: FrameworkAdapter
    module: Any
    tensors: tuple[Any, ...]
    optimizer: Callable[..., Any] | None
    loss: Callable[..., Any] | None
    rng: np.random.Generator
    _step: Callable[[], Any] | None = None

    def taps(self) -> Mapping[str, Tap]:
        """Run the module; return its taps (recorded outputs, scores and weights) by module name."""
        dtypes = (parameter.entries[0].dtype for parameter in self.adapter.stored(self.module))
        precision = 2 * roundoff(next(dtypes, "float32"))
        collector = TapCollector(self.adapter, precision, tuple(self.tensors[0].shape)[:2][-1], self._shared)
        with self.adapter.running(), self.adapter.traced(collector, self.module):
            output = self._outputs(self.module, *self.tensors)
            collector.ends_with(output, self._input_tokens(output))
        return collector.taps

    @functools.cached_property
    def _shared(self) -> frozenset[str]:
        """Names of embeddings with a shared matrix, and of the modules that share it."""
        owners = ([name.rpartition(".")[0] for name in (p.name, *p.tied)] for p in self.adapter.stored(self.module))
        groups = [names for names in owners if len(names) > 1]
        modules = self.adapter.modules(self.module) if groups else {}
        kinds = {name: _kind(type(module).__name__) for name, module in modules.items()}
        return frozenset(name for names in groups if EMBEDDING in map(kinds.get, names) for name in names)

    def weights(self) -> Mapping[str, FloatArray]:
        """Return the module's parameters by name."""
        return {p.name: self.adapter.numbers(p.entries[0]) for p in self.adapter.stored(self.module)}

    def step(self) -> None:
        """Take a step of the optimiser; the default loss is the mean square distance from random numbers."""
        with self.adapter.running():
            if self._step is None:
                assert self.optimizer is not None
                targets = self.rng.standard_normal(tuple(self._outputs(self.module, *self.tensors).shape))
                data = self.adapter.tensor(self.module, targets), *self.tensors
                self._step = self.adapter.trainer(self.module, self.optimizer, self._loss, data)
            self.module = self._step()

    def _outputs(self, module: Any, *tensors: Any) -> Any:
        """Return the first array of real numbers in the outputs."""
        outputs = self.adapter.called(module, (tensors, {}))
        array = self.adapter.first(outputs)
        if array is None:
            refuse("call", outputs, "returned no array of real numbers", "pass call=lambda module, *inputs: ...")
        return array

    def _input_tokens(self, output: Any) -> Array | None:
        """Return the input tokens at the positions of an output with one logit per token of the vocabulary.

        The result is None for other outputs.
        """
        *positions, classes = output.shape
        tokens = self.adapter.numbers(self.tensors[0])
        if classes != self.adapter.tokens(self.module) or tokens.shape != tuple(positions):
            return None
        return tokens.astype(int) if tokens.min() >= 0 and tokens.max() < classes else None

    def _loss(self, module: Any, targets: Any, *tensors: Any) -> Any:
        outputs = self._outputs(module, *tensors)
        return ((outputs - targets) ** 2).mean() if self.loss is None else self.loss(outputs, *tensors)


class TapCollector(Trace):
    """Collector of taps (intermediate values) while modules run.

    A softmax counts as attention if its scores have a head axis, are square, or have `positions` keys. `precision` is
    the unit in the last place of 1.0. `shared` has the names of an embedding and of the modules that share its matrix.
    """

    def __init__(
        self, adapter: FrameworkAdapter, precision: float, positions: int, shared: frozenset[str] = frozenset()
    ) -> None:
        self._adapter, self._shared = adapter, shared
        self.taps: dict[str, Tap] = {}
        self._precision, self._positions = precision, positions
        self._running: list[str] = []
        self._calls: Counter[str] = Counter()
        # Name of the tap and array of each output, by memory address, so that each output is tapped only once. Arrays
        # are kept so that their addresses are not used again.
        self._kept: dict[Hashable, tuple[str, Any]] = {}
        # Embeddings that may be multiplied by a factor, and the factors of those that are.
        self._embeddings: dict[str, FloatArray] = {}
        self._factors: dict[str, float] = {}

    def begins(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the start of a module."""
        self._running.append(name)

    def ends(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Record the output of the module that started last."""
        name = self._running.pop()
        array, entered = self._adapter.first(output), self._adapter.first(args)
        if array is None:
            return
        values, where = self._adapter.numbers(array), self._adapter.address(array)
        if np.isnan(values).any():
            refuse("call", name or "the model", "returns NaN", "mend the model")
        class_name = type(module).__name__
        known, _ = self._kept.get(where, ("", None))
        if known and np.array_equal(self.taps[known].values, values, equal_nan=True):
            self._add(name or "output", dataclasses.replace(self.taps[known], what=class_name, same_as=known))
            return
        inputs = None if entered is None else self._adapter.numbers(entered)
        if inputs is not None and self._embeddings.keys() - self._factors.keys() and name not in self._shared:
            # A module that changes nothing, such as dropout in evaluation mode, does not use them yet.
            used = not np.array_equal(inputs, values)
            self._factors |= _factors(inputs, self._embeddings, self._precision) if used else {}
        kind = _kind(class_name)
        # If a model multiplies a shared embedding by a factor, it mostly multiplies the sum with other embeddings, so
        # all embeddings are marked.
        rescaled = name in self._shared or bool(self._shared and kind == EMBEDDING)
        summed = 0.0 if inputs is None else root_mean_square(inputs)
        label = self._add(name or "output", Tap(values, kind, class_name, summed, self._precision, rescaled))
        self._kept[where] = label, array
        if rescaled and kind == EMBEDDING:
            self._embeddings[label] = values

    def softmax(self, scores: FloatArray, axis: int) -> None:
        """Record the unmasked scores and weights of a softmax."""
        scores = np.moveaxis(np.where(scores <= _HIDDEN, -np.inf, scores), axis, -1)
        with np.errstate(invalid="ignore"):  # fully masked rows
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        # A model may also apply a softmax to its logits, (batch, positions, classes).
        attends = scores.ndim > 3 or (scores.ndim == 3 and scores.shape[-1] in (self._positions, scores.shape[-2]))
        where = self._running[-1] if self._running else ""
        for kind, values in ((SCORES, scores), (WEIGHTS, weights)):
            unmasked = np.where(weights > 0.0, values, np.nan)
            suffix = kind if attends else f"softmax {kind}"
            tap = Tap(unmasked, kind if attends else MODULE, "softmax", precision=self._precision)
            self._add(f"{where}.{suffix}".lstrip("."), tap)

    def ends_with(self, array: Any, tokens: Array | None = None) -> None:
        """Mark the tap of an array as the model's output, and mark taps that equal the output up to a factor.

        If the output has logits, `tokens` are the input tokens at their positions. The logit of the input token is left
        out at each position: if embedding and readout share a matrix, it does not decrease with the width as others do.
        """
        for label, factor in self._factors.items():
            tap = self.taps[label]
            note = f"times {factor:.4g}, as the model adds it" if factor != 1.0 else tap.note
            self.taps[label] = dataclasses.replace(tap, values=factor * tap.values, rescaled=False, note=note)
        name, _ = self._kept.get(self._adapter.address(array), ("", None))
        if not name:
            return
        output = dataclasses.replace(self.taps[name], kind=OUTPUT, rescaled=False)
        for tap_name, tap in self.taps.items():
            if tap.kind == MODULE and (tap.rescaled or _proportional(tap, output)):
                self.taps[tap_name] = dataclasses.replace(tap, rescaled=True, note=_AT_OUTPUT)
        if tokens is not None:
            values = output.values.copy()
            np.put_along_axis(values, tokens[..., None], np.nan, axis=-1)
            output = dataclasses.replace(output, values=values, note=_SECOND_TOKENS if self._shared else output.note)
        self.taps[name] = output
        for label, tap in self.taps.items():
            if tap.same_as == name:
                self.taps[label] = dataclasses.replace(output, what=tap.what, same_as=name)

    def _add(self, name: str, tap: Tap) -> str:
        self._calls[name] += 1
        again = self._calls[name] > 1
        label = f"{name} ({self._calls[name]})" if again else name
        self.taps[label] = dataclasses.replace(tap, note="module runs more than once") if again else tap
        return label


def _factors(array: FloatArray, embeddings: Mapping[str, FloatArray], precision: float) -> dict[str, float]:
    """Return the factors of embeddings whose weighted sum is the array, by name, or nothing if there is no such sum."""
    if any(values.ndim > array.ndim or values.shape[-1] != array.shape[-1] for values in embeddings.values()):
        return {}
    try:
        columns = [np.broadcast_to(values, array.shape)[..., :_FITTED].ravel() for values in embeddings.values()]
    except ValueError:
        return {}
    observed = array[..., :_FITTED].ravel()
    factors, _, rank, _ = np.linalg.lstsq(np.transpose(columns), observed, rcond=None)
    rounding = ULPS * precision * root_mean_square(observed)
    if rank < len(columns) or root_mean_square(observed - factors @ columns) > rounding:
        return {}
    factors = np.where(np.abs(factors - 1.0) < ULPS * precision, 1.0, factors)
    return {name: float(factor) for name, factor in zip(embeddings, factors, strict=True)}


def _proportional(tap: Tap, output: Tap) -> bool:
    """Return whether the output equals a tap's values times a factor other than 0 and 1."""
    if tap.values.shape != output.values.shape or tap.values.size < 2 or 0.0 in (tap.size, output.size):
        return False
    factor = np.vdot(tap.values, output.values) / np.vdot(tap.values, tap.values)
    rounding = ULPS * output.precision * output.size
    return bool(factor != 1.0 and np.allclose(output.values, factor * tap.values, rtol=0.0, atol=rounding))


def _kind(class_name: str) -> str:
    """Return the kind of tap for a module class."""
    if class_name in _EMBEDDINGS:
        return EMBEDDING
    return NORM if "norm" in class_name.lower() else MODULE
