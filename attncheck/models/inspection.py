"""`inspect`: an attention layer, or a whole model, at initialisation."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from attncheck._lib.errors import InputError, check_whole, refuse
from attncheck.frameworks.binding import Binding, NoAttentionCall, generator_kept
from attncheck.frameworks.inputs import FIRST_AXIS
from attncheck.frameworks.inspection import DRAWS, MOST_DRAWS, inspected
from attncheck.frameworks.inspection import inspect as inspect_layer
from attncheck.frameworks.notes import Note
from attncheck.frameworks.result import Inspection
from attncheck.models.attention import alike, attention_calls, differences
from attncheck.models.binding import Inputs, ModelBinding, bound_model
from attncheck.models.calls import ModuleCall
from attncheck.models.names import names_of, pattern_of
from attncheck.models.parameter_notes import copied, notes_of
from attncheck.models.parameters import Parameter, statistics_of
from attncheck.models.result import ModelInspection
from attncheck.models.sizes import notes_of_sizes

# Entries of each parameter, of all draws together.
_ENTRIES = 2**16
_RANDOM = "two calls of the model on one input differ, in evaluation: dropout, or other random numbers"
_LONG = "modules that are called with masks or the like of {} positions are not inspected: pass shorter inputs"
_NO_ATTENTION = (
    "no attention was recognised in the forward pass: no module that is called with hidden states, (batch, positions, "
    "width), and has projections multiplies weights by values"
)


@overload
def inspect(
    make: Callable[..., Any] | Binding,
    width: int,
    call: Callable[..., Any] | None = None,
    *,
    inputs: None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Inspection: ...
@overload
def inspect(
    make: Callable[..., Any],
    width: None = None,
    call: Callable[..., Any] | None = None,
    *,
    inputs: Inputs | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> ModelInspection: ...
def inspect(
    make: Callable[..., Any] | Binding,
    width: int | None = None,
    call: Callable[..., Any] | None = None,
    *,
    inputs: Inputs | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Inspection | ModelInspection:
    """Inspect an attention layer of a `width`, or a model on `inputs`, at initialisation.

    Of a layer, the matrices, entry laws, scales and formula are determined: unit vectors as inputs, with the module's
    attention replaced, give the matrices exactly, for any law of the weights. Then the outputs are compared with the
    formula for these matrices.

    Of a model, one forward pass on real inputs shows in which modules attention runs, and what each module is called
    with. Each of them is inspected as a layer that is called so, and all parameters are compared with laws, with
    common initialisers and with each other.

    Parameters
    ----------
    make : callable or attncheck.frameworks.binding.Binding
        Returns a newly initialised module of torch, flax, keras or equinox. With an argument `width`, a layer of a
        second width is inspected too; for a model, `width` and `depth` need defaults, of which the double is compared.
        flax.nnx receives generators as `rngs`, equinox a key as `key`.
    width : int, optional
        Number of input neurons of a layer; omit it for a model.
    call : callable, optional
        For a layer, ``call(module, x)`` returns the outputs, if ``module(x)`` does not; both are (batch, positions,
        width). For a model, ``call(model, *inputs)``.
    inputs : mapping, sequence or callable, optional
        Inputs of a model: arrays or tensors by argument name, or in order, of which the first axis is the batch; or a
        function that returns them. Models of transformers have their own.
    draws : int
        Number of modules to initialise.
    seed : int
        Seed of the first module.

    Returns
    -------
    Inspection or ModelInspection
        Of a layer, or of a model.

    Raises
    ------
    InputError
        If the module fails, or attention in a layer cannot be observed.

    Examples
    --------
    >>> import numpy as np
    >>> from attncheck.frameworks.trace import AttentionCore
    >>> from scipy.special import softmax
    >>> class Plain(Binding):
    ...     def init(self, seed):
    ...         return np.random.default_rng(seed).standard_normal((4, 64, 64)) / 8
    ...
    ...     def run(self, state, x, core, path):
    ...         q, k, v = ((x @ w).reshape(*x.shape[:2], 2, 32).swapaxes(1, 2) for w in state[:3])
    ...         weights = softmax(q @ k.swapaxes(-1, -2) / 32**0.5, axis=-1)
    ...         heads = core(AttentionCore(q, k, v, weights))
    ...         heads = weights @ v if heads is None else heads
    ...         return heads.swapaxes(1, 2).reshape(x.shape) @ state[3]
    >>> found = inspect(Plain(), width=64)
    >>> found.weights["query"].law, found.forward.mask, found.forward.scale, found.notes
    ('normal', 'none', '1/sqrt(head_dim)', ())
    >>> found.require(query_std=1.0, mask="none", bias=False)
    >>> found.require(query_std=0.5)
    Traceback (most recent call last):
    ...
    AssertionError: W_Q: std·√fan-in is 0.9992, from 0.9771 to 1.022, not 0.5
    """
    if width is not None and inputs is None:
        return inspect_layer(make, width, call, draws=draws, seed=seed)
    if width is not None:
        refuse("width", width, "is read off a model that has inputs", "omit it")
    draws = check_whole("draws", draws, 1, "pass a number of draws, e.g. draws=8", MOST_DRAWS)
    seed = check_whole("seed", seed, 0, "pass a whole number, e.g. seed=0")
    with generator_kept():
        binding, model = bound_model(make, inputs, call, seed)
        found = _of_model(binding, model, draws, seed)
        del model
        notes = notes_of_sizes(make, inputs, call, seed, found.parameters)
        return dataclasses.replace(found, notes=(*found.notes, *notes))


@dataclasses.dataclass(frozen=True, eq=False)
class _ModelDraws:
    """What is kept of all draws of a model: calls and draws of its attention modules, and its parameters.

    `long` is the largest number of positions at which modules are not examined, or 0.
    """

    calls: Sequence[ModuleCall]
    modules: Mapping[str, Sequence[Any]]
    parameters: Sequence[Parameter]
    long: int


def _of_model(binding: ModelBinding, model: Any, draws: int, seed: int) -> ModelInspection:
    """Return the inspection of a model."""
    kind, numbers, steady = binding.kind(model), binding.numbers(model), binding.steady(model)
    kept = _drawn(binding, model, draws, seed)
    del model
    inspections: dict[str, Inspection] = {}
    refused: dict[tuple[str, str], list[str]] = {}
    for call in kept.calls:
        made = _inspected(binding.replayed(call, kept.modules[call.name]), call, len(kept.modules[call.name]))
        if isinstance(made, Inspection):
            inspections[call.name] = made
        else:
            refused.setdefault((call.kind, made), []).append(call.name)
    inspections = _positions_first(inspections)
    groups = alike([call for call in kept.calls if call.name in inspections], inspections)
    table = tuple(statistics_of(kept.parameters, _depth(kept.calls)))
    notes = [
        *notes_of(table),
        *copied(kept.parameters),
        *differences(groups),
        *(Note(f"{names_of(names)} ({kind}): not inspected: {why}") for (kind, why), names in refused.items()),
        *([] if steady is not False else [Note(_RANDOM, convention=True)]),
        *([Note(_LONG.format(kept.long), convention=True)] if kept.long else []),
        *([] if kept.calls else [Note(_NO_ATTENTION, convention=True)]),
    ]
    return ModelInspection(kind, draws, groups, inspections, table, tuple(notes), numbers)


def _drawn(binding: ModelBinding, model: Any, draws: int, seed: int) -> _ModelDraws:
    """Draw a model several times; each draw is made once, and only its attention modules are kept.

    Of modules whose names differ in numbers alone, all draws of the first are kept, and the first of each other.
    """
    most = -(-_ENTRIES // draws)
    samples = [binding.parameters(model, most)]
    calls, long = _attention(binding, model)
    unused = binding.unused(model)
    modules = {call.name: [binding.module(model, call.name)] for call in calls}
    first = {(pattern_of(call.name), call.kind, call.source): call.name for call in reversed(calls)}
    for i in range(1, draws):
        del model
        model = binding.fresh(seed + i)
        samples.append(binding.parameters(model, most))
        for name in first.values():
            modules[name].append(binding.module(model, name))
    return _ModelDraws(calls, modules, list(_joined(samples, unused)), long)


def _attention(binding: ModelBinding, model: Any) -> tuple[list[ModuleCall], int]:
    """Return the calls of the attention modules of a model, and the most positions that are too many, or 0."""

    def bound(call: ModuleCall) -> Binding:
        return binding.replayed(call, [binding.module(model, call.name)])

    calls = binding.calls(model)
    long = (call.given.lengths[0] for call in calls if call.given is not None and call.given.long)
    return attention_calls(calls, bound), max(long, default=0)


def _inspected(binding: Binding, call: ModuleCall, draws: int) -> Inspection | str:
    """Return the inspection of a module, or why there is none."""
    assert call.given is not None
    try:
        made = inspected(binding, call.given.width, draws, 0, whole=False)
    except (InputError, NoAttentionCall) as error:
        return str(error).partition("; ")[0]
    return made or "its output does not depend on attention"


def _joined(samples: Sequence[Sequence[Parameter]], unused: frozenset[str] | None) -> Iterator[Parameter]:
    """Yield each parameter with the entries of all draws."""
    shapes = [[(each.name, each.shape) for each in sample] for sample in samples]
    for i, other in enumerate(shapes):
        if other != shapes[0]:
            name = next((n for n, _ in sorted({*other} ^ {*shapes[0]})), "the order")
            refuse("make", name, f"differs between the models of draws 0 and {i}", "return models of one shape")
    for draws in zip(*samples, strict=True):
        if not math.prod(draws[0].shape):
            continue
        used = None if unused is None else draws[0].name not in unused
        entries, written = tuple(each.entries[0] for each in draws), all(each.initialised for each in draws)
        yield dataclasses.replace(draws[0], entries=entries, used=used, initialised=written)


def _positions_first(inspections: dict[str, Inspection]) -> dict[str, Inspection]:
    """Return inspections in which attention over the first axis is a convention, if all modules have it."""
    if not all(FIRST_AXIS in map(str, found.notes) for found in inspections.values()):
        return inspections
    meant = Note(FIRST_AXIS, convention=True)
    return {
        name: dataclasses.replace(found, notes=tuple(meant if str(n) == FIRST_AXIS else n for n in found.notes))
        for name, found in inspections.items()
    }


def _depth(found: Sequence[ModuleCall]) -> int | None:
    """Return the largest number of attention modules whose names differ in numbers alone."""
    return max(Counter((pattern_of(call.name), call.source) for call in found).values(), default=None)
