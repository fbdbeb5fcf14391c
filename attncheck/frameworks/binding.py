"""Interface between the inspector and a framework."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.imports import find

FloatArray = NDArray[np.float64]
#: Called with queries, keys and values (B, H, L, d) in place of attention; keys and values may have fewer heads.
#: Returns the result, (B, H, L, d), or None to let the framework continue.
Core = Callable[[FloatArray, FloatArray, FloatArray], FloatArray | None]
#: Called with scores and axis (-1, -2, …) in place of a softmax. Returns the weights, or None to let the framework
#: continue.
SoftmaxCore = Callable[[FloatArray, int], FloatArray | None]
#: The initialised arrays of a module, by name.
Arrays = Mapping[str, FloatArray]

#: The unit roundoff of float32.
SINGLE = float(np.finfo(np.float32).eps) / 2
_MESSAGE = 200
# Remedies shown when a user's function fails.
_REMEDIES = {
    "make": "pass a function that returns a new module, e.g. lambda: MyAttention(64); it may take width, rngs or key",
    "call": "check the width and the module, or pass call=lambda module, x: ...",
    "build": "pass a function of the width that returns a new model",
    "inputs": "pass a function of (width, rng) that returns arrays",
    "optimizer": "pass a function of the module that returns an optimiser",
    "taps": "return arrays by name",
    "step": "let a step change the model",
    "loss": "check the outputs, or pass loss=lambda outputs, *inputs: ...",
}
#: Binding of each framework, by the top-level package of a module's class (also the extra to install).
_FRAMEWORKS = {
    "torch": "attncheck.frameworks.torch:Torch",
    "flax": "attncheck.frameworks.flax:bind",
    "keras": "attncheck.frameworks.keras:Keras",
    "equinox": "attncheck.frameworks.equinox:Equinox",
}
# Arguments of `make` that reveal the framework without a call.
_ARGUMENTS = {"rngs": "flax", "key": "equinox"}


def untouched(query: FloatArray, key: FloatArray, value: FloatArray) -> None:
    """Core that lets the framework continue; a binding need not intercept anything for it."""


class NoAttentionCall(Exception):
    """A forward pass without any call that the binding intercepts."""


@runtime_checkable
class Binding(Protocol):
    """Interface that the inspector needs from a framework.

    Optional members:

    - ``paths: tuple[str, ...]``: names of code paths, such as ``("eval", "train")``, passed to `run` and `softmax`
      as ``path=``. The first is inspected in full; the others are compared with it.
    - ``spare: frozenset[str]``: paths of other configurations of the module.
    - ``precision: float``: unit roundoff of the forward pass; by default that of float32.
    - ``softmax(state, x, core)``: like `run`, but ``core(scores, axis)`` replaces every softmax, for hand-written
      attention.
    - ``parameters(state)``: the initialised arrays by name.
    - ``random(state, x, path)``: whether a call draws random numbers.
    - ``fill(state, arrays)``: the module with these arrays; it may modify `state`.
    - ``attended(state, arrays, x)``: outputs, queries, keys and values of N modules in one batch. If it raises any
      exception, the modules run one by one.

    Examples
    --------
    Attention in NumPy, two heads of a layer of width 8:

    >>> class Plain:
    ...     def init(self, seed):
    ...         return np.random.default_rng(seed).standard_normal((4, 8, 8)) / 8**0.5
    ...
    ...     def run(self, state, x, core):
    ...         q, k, v = ((x @ w).reshape(*x.shape[:2], 2, 4).swapaxes(1, 2) for w in state[:3])
    ...         heads = core(q, k, v)
    ...         if heads is None:
    ...             weights = np.exp(q @ k.swapaxes(-1, -2) / 4**0.5)
    ...             heads = weights / weights.sum(-1, keepdims=True) @ v
    ...         return heads.swapaxes(1, 2).reshape(x.shape) @ state[3]
    >>> isinstance(Plain(), Binding)
    True
    >>> plain, x = Plain(), np.eye(8)[:, None, :]
    >>> seen = []
    >>> y = plain.run(plain.init(0), x, lambda q, k, v: seen.append(q))
    >>> seen[0].shape, y.shape
    ((8, 2, 1, 4), (8, 1, 8))
    """

    def init(self, seed: int) -> Any:
        """Return a freshly initialised module, determined by the seed."""

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the output (B, L, n) for inputs (B, L, n), with `core` in place of attention."""


class Instrument:
    """Wrapper of a binding: failures become `InputError`, and optional members have defaults."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.paths: tuple[str, ...] = tuple(getattr(binding, "paths", ()))
        self.spare: frozenset[str] = frozenset(getattr(binding, "spare", ()))
        self.softmax_watched = hasattr(binding, "softmax")

    @property
    def precision(self) -> float:
        """Unit roundoff of the forward pass."""
        return float(getattr(self.binding, "precision", SINGLE))

    def init(self, seed: int) -> Any:
        """Return a freshly initialised module."""
        return in_words("make", self.binding.init, seed)

    def run(self, state: Any, x: FloatArray, core: Core, path: str = "") -> FloatArray:
        """Return the output, (B, L, n)."""
        return self._output("run", x, state, np.ascontiguousarray(x), core, **({"path": path} if path else {}))

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore, path: str = "") -> FloatArray:
        """Return the output, (B, L, n), with only the softmax intercepted."""
        return self._output("softmax", x, state, np.ascontiguousarray(x), core, **({"path": path} if path else {}))

    def draws(self, state: Any, x: FloatArray, path: str = "") -> bool | None:
        """Return whether a call draws random numbers, or None if unknown."""
        found: Callable[..., bool] | None = getattr(self.binding, "random", None)
        return None if found is None else found(state, x, **({"path": path} if path else {}))

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return the initialised arrays by name, if the binding gives them."""
        found: Callable[[Any], Mapping[str, FloatArray]] | None = getattr(self.binding, "parameters", None)
        return {} if found is None else found(state)

    def initialised(self, seed: int) -> Mapping[str, FloatArray]:
        """Return a fresh module's arrays by name."""
        found: Callable[[int], Mapping[str, FloatArray]] | None = getattr(self.binding, "initialised", None)
        return self.parameters(self.init(seed)) if found is None else found(seed)

    @property
    def fills(self) -> bool:
        """Whether arrays of modules can be replaced."""
        return hasattr(self.binding, "fill") and hasattr(self.binding, "parameters")

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return a module with the given arrays; `state` may be modified."""
        return in_words("make", getattr(self.binding, "fill"), state, arrays)  # noqa: B009  # an optional member

    @property
    def attended(self) -> Callable[..., tuple[FloatArray, ...]] | None:
        """Function that runs many modules in one batch, or None."""
        found: Callable[..., tuple[FloatArray, ...]] | None = getattr(self.binding, "attended", None)
        return found

    def _output(self, method: str, x: FloatArray, *arguments: Any, **options: Any) -> FloatArray:
        made = in_words("call", getattr(self.binding, method), *arguments, **options)
        if made is None:
            refuse("call", made, "is not an output array", "return the outputs, (batch, positions, width)")
        try:
            y = np.asarray(made, dtype=np.float64)
        except (TypeError, ValueError):
            refuse("call", made, "is not an array", "pass call=lambda module, x: ..., which returns outputs")
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            remedy = "pass call=lambda module, x: ..., from (batch, positions, width) to (batch, positions, width)"
            refuse(
                "call",
                y.shape,
                f"is the output shape for inputs of shape {x.shape}, but should be (batch, positions, width)",
                remedy,
            )
        return y


def in_words(field: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a user's function; its exceptions become a one-line `InputError`."""
    try:
        return function(*arguments, **options)
    except (KeyboardInterrupt, InputError, NoAttentionCall):
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}, line {frame.lineno}"
        given = [f"inputs of shape {a.shape}" for a in arguments if isinstance(a, np.ndarray)]
        on = f" on {given[0]}" if given else ""
        raise InputError(f"{field}: failed{on} with {text} ({place}); {_REMEDIES[field]}") from error


def bind(make: Any, width: int, call: Callable[..., Any] | None = None) -> Binding:
    """Return the binding to the modules that `make` returns.

    Parameters
    ----------
    make : callable or Binding
        Returns a module; its arguments may be `width`, and `rngs` (flax) or `key` (equinox). A binding is returned
        unchanged.
    width : int
    call : callable, optional
        ``call(module, x)`` returns the output, if ``module(x)`` does not.

    Raises
    ------
    InputError
        If the modules belong to no supported framework, or it is not installed.

    Examples
    --------
    >>> bind(lambda: 3, width=8)
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: make=3: is not a module of torch, flax, keras, equinox; return one, or pass ...
    """
    if isinstance(make, Binding) and not inspect.isclass(make):
        return make
    if home_of(make):
        refuse(
            "make",
            type(make).__name__,
            "is a module, already initialised",
            "pass lambda: ..., which returns a new one",
        )
    if not callable(make):
        refuse("make", make, "is not a function", "pass a function that returns a freshly initialised module")
    wanted = parameters_of(make)
    if "width" in wanted:
        make = functools.partial(make, width=width)
    framework = next((name for argument, name in _ARGUMENTS.items() if argument in wanted), None)
    if framework is None:
        with generator_kept():
            framework = _framework_of(in_words("make", make))
    try:
        found = find(_FRAMEWORKS[framework])
    except ImportError as error:
        refuse("make", framework, f"cannot be used: {error}", f"pip install 'attncheck[{framework}]'")
    bound: Binding = found(make, width, call)
    return bound


@contextlib.contextmanager
def generator_kept() -> Iterator[None]:
    """Restore PyTorch's global generator on exit, if PyTorch is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng():
        yield


def parameters_of(make: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a function's arguments, if known."""
    # The signature of a flax class is that of its metaclass.
    made_by = make.__init__ if inspect.isclass(make) else make
    try:
        return frozenset(inspect.signature(made_by).parameters)
    except (TypeError, ValueError):
        return frozenset()


def home_of(made: Any) -> str:
    """Return the framework of a module, else an empty string."""
    # The first match wins: keras layers are also modules of the backend.
    homes = (base.__module__.partition(".")[0] for base in type(made).__mro__)
    return next((name for name in homes if name in _FRAMEWORKS), "")


def _framework_of(made: Any) -> str:
    """Return the framework of a module; refuse other objects."""
    found = home_of(made)
    if not found:
        remedy = "return one, or pass an attncheck.frameworks.binding.Binding"
        refuse("make", made, f"is not a module of {', '.join(_FRAMEWORKS)}", remedy)
    return found
