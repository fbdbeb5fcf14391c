"""Taps of PyTorch modules: outputs, attention scores and weights."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.frameworks.binding import in_words
from attncheck.frameworks.models import FrameworkModel, FrameworkModels, distance
from attncheck.frameworks.tap_collector import ArrayReader, TapCollector
from attncheck.frameworks.torch import place_of, tensor_of
from attncheck.frameworks.torch_trace import array_of, traced
from attncheck.frameworks.trace import leaves_of

_HALF = (torch.float16, torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class TorchModels(FrameworkModels):
    """PyTorch modules from ``build(width)``.

    Default inputs are token ids for a module with an embedding, else standard normal vectors.
    """

    def make(self, width: int, seed: int) -> TorchModel:
        """Return a module of this width with inputs."""
        with _one_thread(), torch.random.fork_rng():
            torch.manual_seed(seed)
            module = in_words("build", self.build, width)
        if place_of(module)[0] in _HALF:
            module = module.float()  # half precision would hide small changes
        rng = stream(seed, "inputs", width)
        embedding = next((each for each in module.modules() if isinstance(each, torch.nn.Embedding)), None)
        tokens = None if embedding is None else embedding.num_embeddings
        given = tuple(tensor_of(module, each) for each in self.given(width, rng, tokens))
        call, loss = self.call or _called, self.loss or distance(rng, functools.partial(tensor_of, module))
        reader, precision = ArrayReader(_first, array_of, _where), float(torch.finfo(place_of(module)[0]).eps)
        return TorchModel(module.eval(), given, call, self.optimizer_of(module), loss, reader, precision)


class TorchModel(FrameworkModel):
    """A module with its inputs."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Use one thread."""
        return _one_thread()

    @contextlib.contextmanager
    def watched(self, seen: TapCollector) -> Iterator[None]:
        """Tap all modules and every softmax."""
        with traced(seen, self.module), torch.no_grad():
            yield

    def weights(self) -> dict[str, FloatArray]:
        """Return the module's parameters by name."""
        return {name: array_of(each) for name, each in self.module.named_parameters()}


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, which is faster for small matrices on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _first(made: Any) -> Any:
    """Return the first tensor of real numbers in an output, or None."""
    tensors = (each for each in leaves_of(made) if isinstance(each, torch.Tensor))
    return next((each for each in tensors if each.is_floating_point()), None)


def _where(tensor: Any) -> tuple[Any, ...]:
    """Return a tensor's memory address, shape and strides, which identify it."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _called(module: Any, *given: Any) -> Any:
    if isinstance(module, torch.nn.MultiheadAttention):
        return module(given[0], given[0], given[0])[0]
    return module(*given)
