"""Base class of the adapters to frameworks, and detection of the framework of a user's modules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck._lib.imports import find
from attncheck.frameworks.adapter import SINGLE, Adapter, in_words
from attncheck.frameworks.trace import Trace, first_array

#: Arguments of a call: by position, and by name.
Arguments = tuple[Sequence[Any], Mapping[str, Any]]
#: Adapter of each framework. A key is the beginning of the names of the Python modules that define the framework's
#: classes; its part before the first dot is the name of the extra to install.
ADAPTERS = {
    "torch": "attncheck.frameworks.torch:Torch",
    "flax.linen": "attncheck.frameworks.flax:Linen",
    "flax": "attncheck.frameworks.flax:NNX",
    "keras": "attncheck.frameworks.keras:Keras",
    "equinox": "attncheck.frameworks.equinox:Equinox",
}
#: Frameworks whose whole models can be inspected, not only single layers.
MODELS = frozenset({"torch", "flax.linen", "flax", "keras"})
# Arguments of a function that reveal the framework before a call.
_ARGUMENTS = {"rngs": "flax", "key": "equinox"}


@dataclasses.dataclass(frozen=True, eq=False)
class Parameter:
    """A model parameter, with a sample of its entries in several draws of the model.

    Adapters yield parameters with one draw.

    Attributes
    ----------
    name : str
    shape : tuple of int
    owner : str
        Class of the module that holds it, e.g. "Linear".
    fans : tuple of int or None
        (fan_in, fan_out) of a projection or convolution, None for other parameters.
    entries : tuple of ndarray
        Flat sample of the entries, at the same indices in each draw. An adapter yields one array of the framework,
        without the zeros that an embedding uses for padding.
    tied : tuple of str
        Other names of the same parameter.
    used : bool or None
        Whether the outputs depend on it; None if unknown.
    initialised : bool
        False if nothing was written to its memory.
    default : tuple of str and float, or None
        Law and standard deviation of the owner's default initialiser, e.g. ("uniform", 0.072).
    precision : float
        Unit roundoff of the entries.
    """

    name: str
    shape: tuple[int, ...]
    owner: str
    fans: tuple[int, int] | None
    entries: tuple[Any, ...]
    tied: tuple[str, ...] = ()
    used: bool | None = None
    initialised: bool = True
    default: tuple[str, float] | None = None
    precision: float = SINGLE

    @property
    def drawn(self) -> bool:
        """Whether the first two draws differ or, if there is only one draw, whether the array has several axes."""
        first, *rest = self.entries
        return not np.array_equal(first, rest[0]) if rest else len(self.shape) > 1


class FrameworkAdapter(Adapter):
    """Adapter to the modules that a user's function builds in a framework.

    For inspections of single layers, a framework needs only `make`, `run`, `parameters` and `fill`. The other methods
    are needed for inspections of whole models, and for measurements at several widths.

    Parameters
    ----------
    build : callable
        Returns a new module.
    call : callable, optional
        ``call(module, *inputs)``, if not ``module(*inputs)``.
    inputs : callable, optional
        Returns the arguments of the first call of a module, which may build its parameters.
    example : optional
        A module that `build` returned, which may determine the code paths.
    fields : tuple of str
        Names of `build` and `call` in error messages.

    Attributes
    ----------
    method : str
        Name of the method that computes the outputs of a module.
    """

    fills = True
    method = "__call__"

    def __init__(
        self,
        build: Callable[..., Any],
        call: Callable[..., Any] | None = None,
        inputs: Callable[[Any], Arguments] = lambda module: ((), {}),
        example: Any = None,
        fields: tuple[str, str] = ("make", "call"),
    ) -> None:
        self.build, self.call, self.inputs, self.fields = build, call, inputs, fields

    def new_module(self, **options: Any) -> Any:
        """Call the user's `build` with those options that it accepts, and return the module."""
        accepted = {name: option for name, option in options.items() if name in parameters_of(self.build)}
        return in_words(self.fields[0], self.build, **accepted)

    def part(self, modules: Sequence[Any], call: Callable[..., Any], lengths: tuple[int, ...]) -> Self:
        """Return an adapter to one module of a model, with the default code paths of its framework.

        `modules` has this module in each draw of the model, and `lengths` are the sequence lengths to try.
        """
        part = type(self)(lambda: modules[0], call, example=modules[0])
        part.draws, part.lengths, part.paths, part.spare = modules, lengths, type(self).paths, frozenset()
        return part

    def apply(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a module on tensors, through the user's `call` if there is one."""
        return (self.call or self.plain)(module, *args, **kwargs)

    def plain(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a module on tensors directly, without the user's `call`."""
        return module(*args, **kwargs)

    def called(self, module: Any, arguments: Arguments) -> Any:
        """Convert arguments to tensors, call a module on them, and return the outputs."""
        tensor = functools.partial(self.tensor, module)
        args, kwargs = arguments
        named = {name: tensor(value) for name, value in kwargs.items()}
        return in_words(self.fields[1], self.apply, module, *map(tensor, args), **named)

    def tensor(self, module: Any, value: Any) -> Any:
        """Convert an input to the type that the module takes; by default, return it unchanged."""
        return value

    def numbers(self, tensor: Any) -> FloatArray:
        """Return a tensor as a NumPy array."""
        return np.asarray(tensor, dtype=np.float64)

    def first(self, outputs: Any) -> Any:
        """Return the first array of real numbers in the outputs, or None."""
        return first_array(outputs)

    def running(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which modules of a model are called one by one."""
        return contextlib.nullcontext()

    def traced(self, trace: Trace, model: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context that reports calls of modules and softmaxes to a trace."""
        raise NotImplementedError  # called only for frameworks in `MODELS`

    def modules(self, model: Any) -> Mapping[str, Any]:
        """Return a model's modules by name; the name of the model itself is empty."""
        raise NotImplementedError  # called only for frameworks in `MODELS`

    def stored(self, model: Any) -> Iterator[Parameter]:
        """Yield the parameters of a model, and write zeros to uninitialised memory."""
        raise NotImplementedError  # called only for frameworks in `MODELS`

    def evaluated(self, module: Any, single: bool = False) -> Any:
        """Return a module in evaluation mode; `single` replaces half precision by single precision."""
        return module

    def marking(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which NaN marks parameters that no initialiser wrote, if the framework can do so."""
        return contextlib.nullcontext()

    def independent(self, model: Any, outputs: Callable[[], Any]) -> tuple[str, ...] | None:
        """Return the names of parameters on which no output depends, or None if unknown."""
        return None

    def tokens(self, module: Any) -> int | None:
        """Return the vocabulary size of a module's embedding, or None without one."""
        return None

    def address(self, tensor: Any) -> Hashable:
        """Return a key that identifies the memory of a tensor."""
        return id(tensor)

    def trainer(
        self, module: Any, optimizer: Callable[..., Any], loss: Callable[..., Any], data: Sequence[Any]
    ) -> Callable[[], Any]:
        """Return a function that takes one step on ``loss(module, *data)``, and returns the module.

        This default implementation takes PyTorch optimisers.
        """
        steps = in_words("optimizer", optimizer, module)

        def step() -> Any:
            steps.zero_grad()
            in_words("loss", lambda: loss(module, *data).backward())
            in_words("optimizer", steps.step)
            return module

        return step


def adapter_of(make: Any, width: int, call: Callable[..., Any] | None = None) -> Adapter:
    """Return the adapter to the layers that `make` returns.

    Parameters
    ----------
    make : callable or Adapter
        Returns a module; its arguments may be `width`, and `rngs` (flax) or `key` (equinox). An adapter is returned
        unchanged.
    width : int
    call : callable, optional
        ``call(module, x)`` returns the output, if ``module(x)`` does not.

    Raises
    ------
    InputError
        If the modules belong to no supported framework, or to one that is not installed.

    Examples
    --------
    >>> adapter_of(lambda: 3, width=8)
    Traceback (most recent call last):
    ...
    attncheck._lib.errors.InputError: make=3: is not a module of torch, flax, keras, equinox; return one, or pass ...
    """
    if isinstance(make, Adapter):
        return make
    if framework_of(make):
        refuse(
            "make", type(make).__name__, "is a module, already initialised", "pass lambda: ..., which returns a new one"
        )
    if not callable(make):
        refuse("make", make, "is not a function", "pass a function that returns a freshly initialised module")
    if "width" in parameters_of(make):
        make = functools.partial(make, width=width)
    remedy = "return one, or pass an attncheck.frameworks.adapter.Adapter"
    kind, example = recognised(make, "make", remedy)
    return kind(make, call, lambda module: ((np.zeros((1, 2, width)),), {}), example=example)


def recognised(
    make: Callable[..., Any], field: str, remedy: str, known: Collection[str] = ADAPTERS, *arguments: Any
) -> tuple[type[FrameworkAdapter], Any]:
    """Return the adapter class for modules that ``make(*arguments)`` returns, and one such module.

    If the names of the arguments of `make` reveal the framework, no module is made, and None is returned in its place.
    `field` and `remedy` are used in error messages. Frameworks other than the `known` ones are refused.
    """
    example, framework = None, next((name for key, name in _ARGUMENTS.items() if key in parameters_of(make)), "")
    if not framework:
        with generator_restored():
            example = in_words(field, make, *arguments)
        framework = framework_of(example)
    if framework not in known:
        names = dict.fromkeys(name.partition(".")[0] for name in ADAPTERS if name in known)
        refuse(field, framework if example is None else example, f"is not a module of {', '.join(names)}", remedy)
    try:
        kind: type[FrameworkAdapter] = find(ADAPTERS[framework])
    except ImportError as error:
        extra = framework.partition(".")[0]
        refuse(field, extra, f"cannot be used: {error}", f"pip install 'attncheck[{extra}]'")
    return kind, example


def framework_of(module: Any) -> str:
    """Return the framework of a module, or an empty string for any other object."""
    if isinstance(module, type):
        return ""
    # The first match wins: keras layers are also modules of the backend.
    names = (name for base in type(module).__mro__ for name in ADAPTERS if f"{base.__module__}.".startswith(f"{name}."))
    return next(names, "")


def parameters_of(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the default values of a function's arguments by name; empty if the signature is unknown."""
    function = make
    # For a class, the signature of `__init__` is used, because `inspect` finds the metaclass's signature for flax
    # classes.
    if inspect.isclass(make):
        function = make.__init__
    elif isinstance(make, functools.partial) and inspect.isclass(make.func):
        function = functools.partial(make.func.__init__, None, *make.args, **make.keywords)
    try:
        return {name: argument.default for name, argument in inspect.signature(function).parameters.items()}
    except (TypeError, ValueError):
        return {}


def generator_restored() -> contextlib.AbstractContextManager[Any]:
    """Return a context that restores PyTorch's global generator on exit, if PyTorch is loaded."""
    torch: Any = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.random.fork_rng()
