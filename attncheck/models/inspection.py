"""`inspect`: an attention layer, or a whole model, at initialisation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from attncheck._lib.errors import InputError, check_integer, refuse
from attncheck._lib.names import grouped, names_of, pattern_of
from attncheck.frameworks.adapter import Adapter, NoAttentionCall
from attncheck.frameworks.framework import Parameter, generator_restored
from attncheck.frameworks.inputs import FIRST_AXIS
from attncheck.frameworks.inspection import inspect_layer, inspected
from attncheck.frameworks.notes import Note, asks
from attncheck.frameworks.result import Inspection
from attncheck.models.attention import (
    WITHOUT_SOFTMAX,
    attention_calls,
    differences,
    grouped_modules,
    mixing_calls,
    unread_calls,
)
from attncheck.models.duties.registry import measured
from attncheck.models.factory import Inputs, first_model, has_entry_per_token, numbers_of
from attncheck.models.families import ParameterTable
from attncheck.models.parameter_notes import copied, notes_of
from attncheck.models.parameters import statistics_of
from attncheck.models.replay import ModuleCall
from attncheck.models.result import UNRECOGNISED, ModelInspection

DRAWS, _MOST_DRAWS = 8, 1024
# Maximum width of a layer; wider inputs would take too much memory.
_MOST_NEURONS = 2**20
# Maximum number of entries used per parameter, over all draws.
_ENTRIES = 2**16
_RANDOM = "two calls of the model in evaluation mode on the same inputs differ: dropout, or other random numbers"
_LONG = "modules called with masks or similar arrays of {} positions are not inspected: pass shorter inputs"


@overload
def inspect(
    make: Callable[..., Any] | Adapter,
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
    make: Callable[..., Any] | Adapter,
    width: int | None = None,
    call: Callable[..., Any] | None = None,
    *,
    inputs: Inputs | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Inspection | ModelInspection:
    """Inspect an attention layer, given its `width`, or a whole model, given its `inputs`, at initialisation.

    For a layer, matrices, entry laws, scales and formula are determined: with attention replaced, the outputs for unit
    vectors give the matrices exactly, whatever the law of the weights. The outputs of the layer are then compared with
    the formula for these matrices.

    For a model, a forward pass on real inputs shows which modules run attention, and with which arguments. Each such
    module is inspected as a layer called with these arguments. All parameters are compared with laws, with common
    initialisers and with each other.

    Parameters
    ----------
    make : callable or attncheck.frameworks.adapter.Adapter
        Returns a newly initialised module of torch, flax, keras or equinox. If a layer's function has an argument
        `width`, a second width is inspected too. flax.nnx receives generators as `rngs`, equinox a key as `key`.
    width : int, optional
        Number of input neurons of a layer; omit it for a model.
    call : callable, optional
        For a layer, ``call(module, x)`` returns the outputs, if ``module(x)`` does not; both are (batch, positions,
        width). For a model, ``call(model, *inputs)``.
    inputs : mapping, sequence or callable, optional
        Inputs of a model: arrays or tensors by argument name or in order, with the batch as first axis; or a function
        that returns them. Models of transformers for text or images have defaults.
    draws : int
        Number of modules to initialise.
    seed : int
        Seed of the first module.

    Returns
    -------
    Inspection or ModelInspection
        `Inspection` for a layer, `ModelInspection` for a model.

    Raises
    ------
    InputError
        If the module fails, or attention in a layer cannot be observed.

    Examples
    --------
    >>> import numpy as np
    >>> from attncheck.frameworks.trace import AttentionCore
    >>> from scipy.special import softmax
    >>> class Plain(Adapter):
    ...     def make(self, seed):
    ...         return np.random.default_rng(seed).standard_normal((4, 64, 64)) / 8
    ...
    ...     def run(self, state, x, trace, path):
    ...         q, k, v = ((x @ w).reshape(*x.shape[:2], 2, 32).swapaxes(1, 2) for w in state[:3])
    ...         weights = softmax(q @ k.swapaxes(-1, -2) / 32**0.5, axis=-1)
    ...         heads = trace.core(AttentionCore(q, k, v, weights))
    ...         heads = weights @ v if heads is None else heads
    ...         return heads.swapaxes(1, 2).reshape(x.shape) @ state[3]
    >>> inspection = inspect(Plain(), width=64)
    >>> inspection.weights["query"].law, inspection.forward.mask, inspection.forward.scale, inspection.notes
    ('normal', 'none', '1/sqrt(head_dim)', ())
    >>> inspection.require(query_std=1.0, mask="none", bias=False)
    >>> inspection.require(query_std=0.5)
    Traceback (most recent call last):
    ...
    AssertionError: W_Q: std·√fan-in is 0.9992, from 0.9771 to 1.022, not 0.5
    """
    if width is not None:
        if inputs is not None:
            refuse("width", width, "cannot be combined with inputs, which a whole model takes", "omit one of them")
        width = check_integer("width", width, 1, "pass the number of input neurons, e.g. width=64", _MOST_NEURONS)
    draws = check_integer("draws", draws, 1, "pass a number of draws, e.g. draws=8", _MOST_DRAWS)
    seed = check_integer("seed", seed, 0, "pass a whole number, e.g. seed=0")
    with generator_restored():
        if width is not None:
            return inspect_layer(make, width, call, draws, seed)
        return _inspect_model(make, inputs, call, draws, seed)


def _inspect_model(
    make: Any, inputs: Inputs | None, call: Callable[..., Any] | None, draws: int, seed: int
) -> ModelInspection:
    """Return the inspection of a model.

    To limit memory, only attention modules and a sample of each parameter's entries are kept, but no whole model. Among
    modules whose names differ only in numbers, all draws of the first are kept, but only the first draw of the others.
    """
    factory, model = first_model(make, inputs, call, seed)
    class_name, numbers, steady = type(model).__name__, numbers_of(make, model), factory.steady(model)
    most = -(-_ENTRIES // draws)
    samples, every = [factory.parameters(model, most)], factory.calls(model)
    long = max((c.given.lengths[0] for c in every if c.given is not None and c.given.long), default=0)
    parts = factory.adapter.modules(model)
    calls = attention_calls(every, lambda c: factory.replayed(c, [parts[c.name]]))
    mixing = mixing_calls(every, calls, lambda c: factory.replayed(c, [parts[c.name]]))
    examined = [*(c.name for c in calls), *mixing]
    mixing |= unread_calls(every, examined, lambda c: factory.replayed(c, [parts[c.name]]))
    unused, duties = factory.unused(model), measured(factory, model, calls, steady)
    masks = _differing_masks(factory.arguments(model, None)[1])
    modules = {c.name: [parts[c.name]] for c in calls}
    first = {(pattern_of(c.name), c.kind, c.source): c.name for c in reversed(calls)}
    for i in range(1, draws):
        model, parts = None, {}  # free the model before the next one is made
        model = factory.fresh(seed + i)
        samples.append(factory.parameters(model, most))
        parts = factory.adapter.modules(model)
        for name in first.values():
            modules[name].append(parts[name])
    model, parts = None, {}
    parameters = list(_joined(samples, unused))
    results: dict[str, tuple[ModuleCall, Inspection | str]] = {
        c.name: (c, _inspected(factory.replayed(c, modules[c.name]), c, len(modules[c.name]))) for c in calls
    }
    results |= mixing
    inspections = _positions_first({n: result for n, (_, result) in results.items() if isinstance(result, Inspection)})
    unread = {name: (call.kind, why) for name, (call, why) in results.items() if isinstance(why, str)}
    refused = grouped(unread, unread.__getitem__)
    groups = grouped_modules([call for call in calls if call.name in inspections], inspections)
    table, padded = ParameterTable(tuple(statistics_of(parameters))), tuple(factory.padded)
    notes = [
        *notes_of(table.rows, any(group.inspection.forward.mask == "causal" for group in groups)),
        *copied(parameters),
        *differences(groups),
        *(Note(f"{names_of(names)} ({kind}): not inspected: {why}") for (kind, why), names in refused.items()),
        *(Note(f"{name} differs between sequences: masks are those of the first one") for name in masks),
        *(Note(f"positions that {name} marks as padding are read as tokens") for name in padded),
        *([] if steady else [asks(_RANDOM)]),
        *([asks(_LONG.format(long))] if long else []),
        *([] if calls or refused else [Note(UNRECOGNISED)]),
    ]
    # If other modules have attention, a module without a softmax, such as a convolution, is not listed as attention
    # that was not inspected.
    reasons = {n: why for (_, why), names in refused.items() for n in names if why != WITHOUT_SOFTMAX or not groups}
    return ModelInspection(
        class_name, draws, groups, inspections, table, tuple(notes), reasons, duties, padded, numbers
    )


def _differing_masks(inputs: Mapping[str, Any]) -> list[str]:
    """Return the names of those inputs of a model that are masks of tokens and differ between sequences.

    Examples
    --------
    >>> import numpy as np
    >>> _differing_masks({"ids": np.ones((2, 3)), "src_mask": np.eye(2, 3), "causal_mask": np.tri(3)})
    ['src_mask']
    """
    masks = {name: inputs[name] for name in inputs if "mask" in name and has_entry_per_token(name, inputs)}
    return [name for name, array in masks.items() if bool((array != array[:1]).any())]


def _inspected(adapter: Adapter, call: ModuleCall, draws: int) -> Inspection | str:
    """Return the inspection of a module, or the reason for not inspecting it."""
    assert call.given is not None
    try:
        inspection = inspected(adapter, call.given.width, draws, 0, calls_module=False)
    except (InputError, NoAttentionCall) as error:
        return str(error).partition("; ")[0]
    return inspection or "its output does not depend on attention"


def _joined(samples: Sequence[Sequence[Parameter]], unused: tuple[str, ...] | None) -> Iterator[Parameter]:
    """Yield each parameter with its entries in all draws.

    `samples` has the parameters of each draw, and `unused` the names of parameters that do not affect the outputs, if
    known.
    """
    shapes = [[(p.name, p.shape) for p in sample] for sample in samples]
    for i, draw_shapes in enumerate(shapes):
        if draw_shapes != shapes[0]:
            name = next((n for n, _ in sorted({*draw_shapes} ^ {*shapes[0]})), "the order")
            refuse("make", name, f"differs between the models of draws 0 and {i}", "return models of one shape")
    for draws in zip(*samples, strict=True):
        if not math.prod(draws[0].shape):
            continue
        used = None if unused is None else draws[0].name not in unused
        entries, written = tuple(p.entries[0] for p in draws), all(p.initialised for p in draws)
        yield dataclasses.replace(draws[0], entries=entries, used=used, initialised=written)


def _positions_first(inspections: dict[str, Inspection]) -> dict[str, Inspection]:
    """Mark attention over the first axis as a convention, not an error, if all modules attend over that axis."""
    if not all(FIRST_AXIS in map(str, module.notes) for module in inspections.values()):
        return inspections
    meant = asks(FIRST_AXIS)
    return {
        name: dataclasses.replace(module, notes=tuple(meant if str(n) == FIRST_AXIS else n for n in module.notes))
        for name, module in inspections.items()
    }
