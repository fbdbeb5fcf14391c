"""Subjects that misbehave, each in its own way, on two small layers."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
import threading
import time
from typing import Any

import numpy as np

from attncheck import AttentionLayer
from attncheck.checks.answers import projected
from attncheck.simulators.literal import LiteralSimulator
from attncheck.subject import collapsed

#: Layers that every subject is examined on.
LAYERS = [AttentionLayer(width=8, seq_len=2, num_heads=1), AttentionLayer(width=8, seq_len=3, num_heads=2)]
# Counts the calls of `counts_calls`.
_COUNT = itertools.count(1)
# Most draws of a probe call; larger calls take the bait.
_PROBE = 64

Arrays = dict[str, Any]


def right(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
    """Return what a right subject returns."""
    return dict(collapsed(layer, size, rng))


def fails_later(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    if size > _PROBE:
        raise RuntimeError("unreadable")
    return right(layer, size, rng)


def ends_process(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    os._exit(0)


def segfaults_later(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    if size > _PROBE:
        ctypes.string_at(0)
    return right(layer, size, rng)


def pauses(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    """Right, and slow enough to be stopped in time."""
    if size > _PROBE:
        time.sleep(0.2)
    return right(layer, size, rng)


def sleeps_on_every(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    if size > _PROBE:
        time.sleep(1e6)
    return right(layer, size, rng)


def forks_and_raises(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    if os.fork() == 0:
        raise ValueError("in the child")
    return right(layer, size, rng)


def leaves_thread(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    if threading.active_count() < 20:
        threading.Thread(target=time.sleep, args=(1e6,), daemon=False).start()
    return right(layer, size, rng)


def counts_calls(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    arrays = right(layer, size, rng)
    arrays["outputs"] = arrays["outputs"] * (1.0 + 1e-12 * next(_COUNT))
    return arrays


def prints(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
    print("x" * 10**5)
    os.write(1, b"y" * 10**5 + b"\n")
    os.write(2, b"z" * 10**5 + b"\n")
    return right(layer, size, rng)


def dies_when_questioned(layer: AttentionLayer, inputs: Any, rng: np.random.Generator) -> Any:
    """Scores are too large; the process ends at inputs of 0, which only a search for causes gives."""
    if not inputs.any():
        os._exit(3)
    made = projected(layer, inputs, rng)
    arrays = LiteralSimulator().after(layer, dataclasses.replace(made, queries=2.0 * made.queries), rng)
    return {name: arrays[name] for name in ("outputs", "scores")}


for _subject in [value for value in list(vars().values()) if getattr(value, "__module__", "") == __name__]:
    _subject.layers = LAYERS
# More layers than may hang before a run gives up.
vars(sleeps_on_every)["layers"] = [AttentionLayer(width=8, seq_len=length, num_heads=1) for length in range(1, 9)]
