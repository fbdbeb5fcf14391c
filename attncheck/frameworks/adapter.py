"""Interface between the inspection of a layer and the layer's framework."""

from __future__ import annotations

import abc
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.frameworks.trace import Trace

#: The initialised arrays of a module, by name.
Arrays = Mapping[str, FloatArray]

#: The unit roundoff of float32.
SINGLE = float(np.finfo(np.float32).eps) / 2
# Unit roundoffs of other types, by name.
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
_MESSAGE = 200
#: Remedy for a call that does not map hidden states to hidden states.
PASS_CALL = "pass call=lambda module, x: ..., from (batch, positions, width) to (batch, positions, width)"
# Default of `Adapter.lengths`, without 1: products over a single position are not recognised as attention.
_LENGTHS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 25, 32, 36, 49, 50, 64, 65, 77, 100, 128, 196, 197, 256)
# Remedies shown when a user's function fails.
_REMEDIES = {
    "make": "pass a function that returns a new module, e.g. lambda: MyAttention(64); it may take width, rngs or key",
    "call": "check the width and the module, whose masks must follow the number of positions, "
    "or pass call=lambda module, x: ...; "
    "for a whole model, or a module that needs other inputs than hidden states, pass the model and no width",
    "model": "check the model and pass its inputs=, or pass call=lambda model, ...: ...",
    "build": "pass a function of the width that returns a new model",
    "inputs": "pass a function that returns arrays: inspect calls it without arguments, widths with (width, rng)",
    "optimizer": "pass a function of the module that returns an optimiser",
    "taps": "return arrays by name",
    "step": "let a step change the model",
    "loss": "check the outputs, or pass loss=lambda outputs, *inputs: ...",
}


class NoAttentionCall(Exception):
    """Raised if a forward pass contains no attention."""


class Adapter(abc.ABC):
    """Base class of framework adapters: the methods that layer inspection calls.

    `make` and `run` are required. Attributes and overridden methods declare what else the framework supports.

    Attributes
    ----------
    paths : tuple of str
        Names of code paths, such as ``("eval", "train")``. The first is inspected in full; the others are compared
        with it.
    spare : frozenset of str
        Code paths that may differ from the first one, because they belong to another configuration of the module.
    precision : float
        Unit roundoff of the forward pass.
    lengths : tuple of int
        Sequence lengths to try in turn until the module accepts one.
    fills : bool
        Whether `parameters` and `fill` are implemented, so that weights can be replaced.
    draws : sequence
        Existing modules to use instead of new ones, indexed by seed; the last one is used for all later seeds.

    Examples
    --------
    Attention in NumPy, two heads of a layer of width 8:

    >>> from attncheck.frameworks.trace import AttentionCore, CoreTrace
    >>> from scipy.special import softmax
    >>> class Plain(Adapter):
    ...     def make(self, seed):
    ...         return np.random.default_rng(seed).standard_normal((4, 8, 8)) / 8**0.5
    ...
    ...     def run(self, state, x, trace, path):
    ...         q, k, v = ((x @ w).reshape(*x.shape[:2], 2, 4).swapaxes(1, 2) for w in state[:3])
    ...         weights = softmax(q @ k.swapaxes(-1, -2) / 4**0.5, axis=-1)
    ...         heads = trace.core(AttentionCore(q, k, v, weights))
    ...         heads = weights @ v if heads is None else heads
    ...         return heads.swapaxes(1, 2).reshape(x.shape) @ state[3]
    >>> plain, x = Plain(), np.eye(8)[:, None, :]
    >>> trace = CoreTrace()
    >>> y = plain.run(plain.make(0), x, trace, "")
    >>> trace.cores[0].query.shape, y.shape
    ((8, 2, 1, 4), (8, 1, 8))
    """

    paths: tuple[str, ...] = ("",)
    spare: frozenset[str] = frozenset()
    precision: float = SINGLE
    lengths: tuple[int, ...] = _LENGTHS
    fills: bool = False
    draws: Sequence[Any] = ()

    @abc.abstractmethod
    def make(self, seed: int) -> Any:
        """Return a freshly initialised module, determined by the seed."""

    @abc.abstractmethod
    def run(self, state: Any, x: FloatArray, trace: Trace, path: str) -> Any:
        """Run the module on `x`, (batch, positions, n), on a code path; return the output, (batch, positions, m).

        Pass each attention core to ``trace.core(core)``; if this returns an array, use it as the core's result.
        """

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the initialised arrays by name."""
        return {}

    def initialised(self, seed: int) -> Mapping[str, FloatArray]:
        """Return a fresh module's arrays by name."""
        return self.parameters(self.fresh(seed))

    def fill(self, state: Any, arrays: Arrays) -> Any:
        """Return the module with its arrays replaced by `arrays`; `state` may be modified."""
        raise NotImplementedError  # called only if `fills`

    def random(self, state: Any, x: FloatArray, path: str) -> bool | None:
        """Return whether a call draws random numbers, or None if unknown."""
        return None

    def unused(self, state: Any, x: FloatArray, path: str) -> tuple[str, ...]:
        """Return the names of arrays that the outputs do not depend on, if known."""
        return ()

    # The inspector calls the following methods, which turn failures of user functions into `InputError`.

    def fresh(self, seed: int) -> Any:
        """Return a freshly initialised module, or one of the `draws`."""
        if self.draws:
            return self.draws[min(seed, len(self.draws) - 1)]
        return in_words("make", self.make, seed)

    def filled(self, state: Any, arrays: Arrays) -> Any:
        """Return a module with the given arrays; `state` may be modified."""
        return in_words("make", self.fill, state, arrays)

    def outputs(self, state: Any, x: FloatArray, trace: Trace, path: str) -> FloatArray:
        """Run the module on `x` and return its output, (batch, positions, m); refuse outputs of another form."""
        with np.errstate(all="ignore"):  # unit vectors are scaled up, which gives large scores
            result = in_words("call", self.run, state, np.ascontiguousarray(x), trace, path)
        try:
            y = None if result is None else np.asarray(result, dtype=np.float64)
        except (TypeError, ValueError):
            y = None
        if y is None:
            refuse("call", result, "is not an output array", "return the outputs, (batch, positions, width)")
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            problem = f"is the output shape for inputs of shape {x.shape}, but should be (batch, positions, width)"
            refuse("call", y.shape, problem, PASS_CALL)
        return y


def in_words(field: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a user's function, and convert its exceptions to a one-line `InputError` about the argument `field`."""
    try:
        return function(*arguments, **options)
    except (KeyboardInterrupt, InputError, NoAttentionCall):
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        location = f" ({frame.filename.rpartition('/')[2]}, line {frame.lineno})" if frame.filename != __file__ else ""
        shapes = [f"inputs of shape {a.shape}" for a in arguments if isinstance(a, np.ndarray)]
        on = f" on {shapes[0]}" if shapes else ""
        raise InputError(f"{field}: failed{on} with {text}{location}; {_REMEDIES[field]}") from error


def roundoff(dtype: Any) -> float:
    """Return the unit roundoff of a floating-point type of NumPy or of a framework.

    Examples
    --------
    >>> roundoff(np.dtype("float32")) == SINGLE, roundoff("torch.bfloat16")
    (True, 0.00390625)
    """
    return _ROUNDOFF.get(str(dtype).rpartition(".")[2], SINGLE)
