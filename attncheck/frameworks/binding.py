"""What the inspector asks of a framework, and how the framework of a module is found."""

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
#: Takes queries, keys and values (B, H, L, d) where softmax attention is about to run; keys and values may have fewer
#: heads. Returns what attention is to return, (B, H, L, d), or None to let the framework go on.
Core = Callable[[FloatArray, FloatArray, FloatArray], FloatArray | None]
#: Takes what a softmax is about to run on and its axis, -1, -2, …; weights take its place, or None lets it go on.
SoftmaxCore = Callable[[FloatArray, int], FloatArray | None]
#: What a module was initialised with, by name.
Arrays = Mapping[str, FloatArray]

#: The unit roundoff of float32.
SINGLE = float(np.finfo(np.float32).eps) / 2
_MESSAGE = 200
# What to do where a function of the user's fails.
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
#: Frameworks by the first part of the module of a class, the binding to each, and what installs it.
_FRAMEWORKS = {
    "torch": "attncheck.frameworks.torch:Torch",
    "flax": "attncheck.frameworks.flax:bind",
    "keras": "attncheck.frameworks.keras:Keras",
    "equinox": "attncheck.frameworks.equinox:Equinox",
}
# A `make` that takes one of these is not called to find out what it makes.
_ARGUMENTS = {"rngs": "flax", "key": "equinox"}


def untouched(query: FloatArray, key: FloatArray, value: FloatArray) -> None:
    """Let the framework go on; a binding may take this one as "watch nothing", and run the module as its user does."""


class NoAttentionCall(Exception):
    """No call of what a binding watches happened in a forward."""


@runtime_checkable
class Binding(Protocol):
    """All that the inspector needs of a framework.

    A binding may have more, by these names:

    - ``paths: tuple[str, ...]``: names of code paths of one module, such as ``("eval", "train")``. `run` and `softmax`
      then take ``path=``, one of them. The first is inspected in full, the others are compared with it.
    - ``spare: frozenset[str]``: those of its paths that the module takes in another configuration only.
    - ``precision: float``: the unit roundoff of the forward; that of float32 where there is none.
    - ``softmax(state, x, core)``: like `run`, but ``core(scores, axis)`` is called in the place of every softmax, for
      attention that is written by hand.
    - ``parameters(state)``: the arrays that `init` made, by name.
    - ``random(state, x, path)``: whether a call draws random numbers.
    - ``fill(state, arrays)``: the module with these arrays in place of its own, which it may change.
    - ``attended(state, arrays, x)``: outputs, queries, keys and values of N modules at once, as of torch. It may raise
      whatever it likes where it cannot: they are run one by one then.

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
        """Return a freshly initialised module; the same seed gives the same one."""

    def run(self, state: Any, x: FloatArray, core: Core) -> Any:
        """Return the output (B, L, n) on inputs (B, L, n), with `core` called in the place of softmax attention."""


class Instrument:
    """A binding whose failures are sentences, and whose optional parts are always there.

    Parameters
    ----------
    binding : Binding
    """

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.paths: tuple[str, ...] = tuple(getattr(binding, "paths", ()))
        self.spare: frozenset[str] = frozenset(getattr(binding, "spare", ()))
        self.softmax_watched = hasattr(binding, "softmax")

    @property
    def precision(self) -> float:
        """The unit roundoff of the forward."""
        return float(getattr(self.binding, "precision", SINGLE))

    def init(self, seed: int) -> Any:
        """Return a freshly initialised module."""
        return in_words("make", self.binding.init, seed)

    def run(self, state: Any, x: FloatArray, core: Core, path: str = "") -> FloatArray:
        """Return the output, (B, L, n)."""
        return self._output("run", x, state, np.ascontiguousarray(x), core, **({"path": path} if path else {}))

    def softmax(self, state: Any, x: FloatArray, core: SoftmaxCore, path: str = "") -> FloatArray:
        """Return the output, (B, L, n), with the softmax watched only."""
        return self._output("softmax", x, state, np.ascontiguousarray(x), core, **({"path": path} if path else {}))

    def draws(self, state: Any, x: FloatArray, path: str = "") -> bool | None:
        """Return whether a call draws random numbers, None where the binding does not say."""
        found: Callable[..., bool] | None = getattr(self.binding, "random", None)
        return None if found is None else found(state, x, **({"path": path} if path else {}))

    def parameters(self, state: Any) -> Mapping[str, FloatArray]:
        """Return what was initialised, by name; nothing where the binding does not say."""
        found: Callable[[Any], Mapping[str, FloatArray]] | None = getattr(self.binding, "parameters", None)
        return {} if found is None else found(state)

    def initialised(self, seed: int) -> Mapping[str, FloatArray]:
        """Return what is initialised in a fresh module, by name; a binding may have a faster way than to make it."""
        found: Callable[[int], Mapping[str, FloatArray]] | None = getattr(self.binding, "initialised", None)
        return self.parameters(self.init(seed)) if found is None else found(seed)

    @property
    def fills(self) -> bool:
        """Whether arrays can be put into modules."""
        return hasattr(self.binding, "fill") and hasattr(self.binding, "parameters")

    def fill(self, state: Any, arrays: Mapping[str, FloatArray]) -> Any:
        """Return a module with arrays by name in place of its own; `state` may be changed."""
        return in_words("make", getattr(self.binding, "fill"), state, arrays)  # noqa: B009  # a binding may have it

    @property
    def attended(self) -> Callable[..., tuple[FloatArray, ...]] | None:
        """What runs many modules at once, None where the binding cannot."""
        found: Callable[..., tuple[FloatArray, ...]] | None = getattr(self.binding, "attended", None)
        return found

    def _output(self, method: str, x: FloatArray, *arguments: Any, **options: Any) -> FloatArray:
        made = in_words("call", getattr(self.binding, method), *arguments, **options)
        if made is None:
            refuse("call", made, "is what it returned", "return the outputs, (batch, positions, width)")
        try:
            y = np.asarray(made, dtype=np.float64)
        except (TypeError, ValueError):
            refuse("call", made, "returned what is no array", "pass call=lambda module, x: ..., which returns outputs")
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            remedy = "pass call=lambda module, x: ..., from (batch, positions, width) to (batch, positions, width)"
            refuse("call", y.shape, f"is the shape of what came out for inputs of shape {x.shape}", remedy)
        return y


def in_words(field: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call what a person wrote; what it raises becomes an `InputError` in one line, of which it is the cause."""
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
    """Return the binding to what `make` makes.

    Parameters
    ----------
    make : callable or Binding
        A function without arguments that returns a module, or with an argument `width`, `rngs` (flax) or `key`
        (equinox); or a binding, which is returned as it is.
    width : int
    call : callable, optional
        ``call(module, x)`` returns the output, where a plain call of the module does not.

    Raises
    ------
    InputError
        If no framework makes it, or that of it is not installed.

    Examples
    --------
    >>> bind(lambda: 3, width=8)
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: make=3: is no module of torch, flax, keras, equinox; return one, or pass ...
    """
    if isinstance(make, Binding) and not inspect.isclass(make):
        return make
    if home_of(make):
        refuse("make", type(make).__name__, "is a module, whose weights are drawn", "pass lambda: ..., which makes one")
    if not callable(make):
        refuse("make", make, "is no function", "pass a function that returns a freshly initialised module")
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
    """Leave the global generator of torch as it was, where there is one."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.random.fork_rng():
        yield


def parameters_of(make: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the arguments that a function takes, none where they cannot be read."""
    # The signature of a class of flax is that of its metaclass.
    made_by = make.__init__ if inspect.isclass(make) else make
    try:
        return frozenset(inspect.signature(made_by).parameters)
    except (TypeError, ValueError):
        return frozenset()


def home_of(made: Any) -> str:
    """Return the framework that an object is a module of; empty if it is of none."""
    # The nearest: layers of keras are modules of its backend too.
    homes = (base.__module__.partition(".")[0] for base in type(made).__mro__)
    return next((name for name in homes if name in _FRAMEWORKS), "")


def _framework_of(made: Any) -> str:
    """Return the framework that an object is a module of."""
    found = home_of(made)
    if not found:
        remedy = "return one, or pass an attncheck.frameworks.binding.Binding"
        refuse("make", made, f"is no module of {', '.join(_FRAMEWORKS)}", remedy)
    return found
