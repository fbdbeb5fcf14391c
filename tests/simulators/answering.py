"""Subjects that receive their inputs: the literal simulator, with one step or its results changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attncheck import AttentionLayer
from attncheck._lib.arrays import FloatArray
from attncheck.checks.answers import projected
from attncheck.simulators.literal import LiteralSimulator, Projections

Answering = Callable[[AttentionLayer, FloatArray, np.random.Generator], dict[str, Any]]


def on_inputs(
    simulator: LiteralSimulator,
    change: Callable[[AttentionLayer, Projections], Projections] = lambda layer, made: made,
    shown: tuple[str, ...] = ("outputs", "scores"),
) -> Answering:
    """Return a subject that computes the steps of a simulator, with a change of its projections."""

    def simulate(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        drawn = simulator.after(layer, change(layer, projected(layer, inputs, rng)), rng)
        return {name: drawn[name] for name in shown}

    return simulate


RIGHT = on_inputs(LiteralSimulator())


def changed(change: Callable[[dict[str, Any]], dict[str, Any]], before: Any = np.asarray) -> Answering:
    """Return a right subject with a change of its results, or of its inputs before it reads them."""

    def simulate(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
        drawn = RIGHT(layer, before(inputs), rng)
        return drawn | change(drawn)

    return simulate


SINGLE = changed(lambda drawn: {name: values.astype(np.float32) for name, values in drawn.items()})
HALF = changed(lambda drawn: {name: values.astype(np.float16).astype(float) for name, values in drawn.items()})
CENTRED_ON_BATCH = changed(lambda drawn: {"outputs": drawn["outputs"] - drawn["outputs"].mean(axis=0)})


def few_weights(layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> dict[str, Any]:
    """Give draws k and k + N/2 the same weights."""
    halves = np.array_split(inputs, 2)
    seed = int(rng.integers(2**32))
    drawn = [RIGHT(layer, half, np.random.default_rng(seed)) for half in halves]
    return {name: np.concatenate([each[name] for each in drawn]) for name in drawn[0]}
