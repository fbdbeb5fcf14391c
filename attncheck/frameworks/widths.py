"""`widths`: scaling of a model's activations with its width."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.errors import check_integers, refuse
from attncheck._lib.streams import stream
from attncheck.frameworks.adapter import in_words
from attncheck.frameworks.framework import MODELS, parameters_of, recognised
from attncheck.frameworks.models import ModelsAtWidths
from attncheck.scaling.examine import SEEDS, TOLERANCE, WIDTHS, examine
from attncheck.scaling.predictions import expectation
from attncheck.scaling.result import Widths
from attncheck.scaling.taps import Make, Model, Tap, as_tap

_STEPS = 2


def widths(
    build: Callable[..., Any],
    widths: Sequence[int] = WIDTHS,
    expect: str | Mapping[str, Any] | None = None,
    *,
    optimizer: Callable[..., Any] | None = None,
    loss: Callable[..., Any] | None = None,
    inputs: Callable[..., Any] | None = None,
    call: Callable[..., Any] | None = None,
    steps: int | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    false_alarm: float = 1e-6,
    tolerance: float = TOLERANCE,
) -> Widths:
    """Measure how activations scale with width, and compare with a prediction.

    The root mean square of each tap, a named intermediate value, grows as n^b with the width n. The exponent b is
    estimated from independent models of several widths, corrected to next order. With an optimiser, the exponent of
    the change from initialisation is estimated too.

    Parameters
    ----------
    build : callable
        ``build(width)`` returns a new module of torch, flax.linen or keras; ``build(width, rngs)`` one of
        flax.nnx; ``build(width, rng)`` an object with a method ``taps()`` that returns arrays by name, and
        ``step()`` to measure changes.
    widths : sequence of int
        At least three.
    expect : str or mapping, optional
        "standard" (the default), "mup", or a table of predictions by name, pattern or kind of tap.
    optimizer : callable, optional
        ``optimizer(module)`` returns an optimiser; for flax, ``optimizer(parameters)`` an optax transformation.
    loss : callable, optional
        ``loss(outputs, *inputs)``; by default the mean square distance from random numbers.
    inputs : callable, optional
        ``inputs(width, rng)`` returns an array or a tuple of arrays; random tokens or vectors by default.
    call : callable, optional
        ``call(module, *inputs)`` returns the outputs, if ``module(*inputs)`` does not.
    steps : int, optional
        Optimiser steps; by default two, or none if the models cannot take steps.
    seeds : int
        Number of models of the largest width per look; smaller widths, which vary more, get more models. Suspicious
        results are tested again on new models.
    seed : int
    false_alarm : float
        Probability of reporting any violation if all predictions are right.
    tolerance : float
        Allowed difference of an exponent from its prediction.

    Returns
    -------
    Widths

    Raises
    ------
    InputError
        If an argument is out of range, or the model fails.

    Examples
    --------
    >>> import numpy as np
    >>> class Perceptron:
    ...     def __init__(self, width, rng, readout=1.0):
    ...         self.x = rng.standard_normal((8, 16))
    ...         self.w = rng.standard_normal((16, width)) / 4, rng.standard_normal((width, width)) / width**0.5
    ...         self.out = rng.standard_normal((width, 64)) / width**readout
    ...
    ...     def taps(self):
    ...         first = np.tanh(self.x @ self.w[0])
    ...         second = np.tanh(first @ self.w[1])
    ...         return {"first": first, "second": second, "out": second @ self.out}
    >>> table = {"out": -0.5, "*": 0}
    >>> result = widths(Perceptron, (32, 64, 128, 256), table, seeds=32)
    >>> str(result.verdict), round(result["out"].exponent, 1)
    ('consistent', -0.5)
    >>> wrong = widths(lambda width, rng: Perceptron(width, rng, readout=0.5), (32, 64, 128, 256), table, seeds=32)
    >>> [row.name for row in wrong.violated]
    ['out']
    """
    functions = {"optimizer": optimizer, "loss": loss, "inputs": inputs, "call": call}
    for name, function in functions.items():
        if function is not None and not callable(function):
            refuse(name, function, "is not a function", f"pass a function as {name}=")
    measured = check_integers("widths", widths, 1, "pass whole numbers, e.g. (64, 128, 256, 512, 1024)")
    narrowest = measured[:1]
    expected = expectation("standard" if expect is None else expect)
    make = _make(build, narrowest, functions)
    plain = "rng" in parameters_of(build)
    model = make(narrowest[0], 0) if plain else None
    moves = hasattr(model.model, "step") if isinstance(model, _PlainModel) else optimizer is not None
    num_steps = _STEPS * moves if steps is None else steps
    if num_steps and not moves:
        refuse("steps", steps, "needs an optimiser", "pass optimizer=, or a model with a method step")
    options: dict[str, Any] = {"seeds": seeds, "steps": num_steps, "seed": seed}
    return examine(make, widths, expected, false_alarm=false_alarm, tolerance=tolerance, **options)


@dataclasses.dataclass(frozen=True)
class _PlainModel(Model):
    """A model from a function of (width, rng), whose failures become `InputError`."""

    model: Any

    def taps(self) -> Mapping[str, Tap]:
        """Return the taps by name."""
        return {name: in_words("taps", as_tap, array) for name, array in in_words("taps", self.model.taps).items()}

    def step(self) -> None:
        """Take a step."""
        in_words("step", self.model.step)


def _make(build: Callable[..., Any], narrowest: Sequence[int], functions: Mapping[str, Any]) -> Make:
    """Return a function of (width, seed) that returns a model.

    `narrowest` contains the width at which `build` is tried; `functions` are further arguments of `ModelsAtWidths`.
    """
    if not narrowest:
        refuse("widths", (), "is empty", "pass e.g. (64, 128, 256, 512, 1024)")
    if not callable(build):
        refuse("build", build, "is not a function", "pass a function of the width that returns a new model")
    if "rng" in parameters_of(build):
        return lambda width, seed: _PlainModel(in_words("build", build, width, stream(seed, "widths")))
    remedy = "return one, or take (width, rng) and return an object with a method taps()"
    kind, _ = recognised(build, "build", remedy, MODELS, narrowest[0])
    make: Make = ModelsAtWidths(kind, build, **functions).make
    first, second = (make(narrowest[0], seed).weights().values() for seed in (0, 1))
    drawn = [np.ptp(array) > 0 for array in first if array.size]
    if any(drawn) and all(map(np.array_equal, first, second)):
        refuse("build", build, "makes the same model for every seed", "let it draw from the framework's own generator")
    return make
