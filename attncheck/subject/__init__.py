"""The simulator under test, and attncheck's own simulators."""

from __future__ import annotations

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program import Program
from attncheck.layers.program.extent import vectors_of
from attncheck.methods import Method, simulate
from attncheck.simulators.multipliers import DirectMultiplier, MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.subject.callers import StoppedCall
from attncheck.subject.named import SubjectName
from attncheck.subject.subject import Subject

__all__ = ["DEFAULT_SUBJECT", "StoppedCall", "Subject", "SubjectName", "collapsed", "direct", "matrix_free", "programs"]

DEFAULT_SUBJECT = "attncheck.subject:direct"
# Largest width at which programs are simulated with explicit matrices.
_LITERAL = 24


def direct(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` with explicit weight matrices; the default subject."""
    return _read(layer, size, rng, "direct")


def programs(program: Program, width: int, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate a program, with explicit matrices at small widths and exactly in law without them at larger ones."""
    multiplier = DirectMultiplier if width <= _LITERAL else MatrixFreeMultiplier
    coordinates = min(2, *(node.length(width) for node in vectors_of(program)))
    return draw_exposed(program, width, size, coordinates, rng, multiplier).as_dict()


direct.supports = lambda layer: True  # type: ignore[attr-defined]  # mypy knows no attributes of functions
direct.programs = programs  # type: ignore[attr-defined]  # mypy knows no attributes of functions


def matrix_free(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` exactly in law without weight matrices."""
    return _read(layer, size, rng, "matrix-free")


def collapsed(layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
    """Simulate `layer` exactly in law through Wishart Gram matrices."""
    return _read(layer, size, rng, "collapsed")


def _read(layer: AttentionLayer, size: int, rng: np.random.Generator, method: Method) -> dict[str, FloatArray]:
    seed = np.random.SeedSequence([int(word) for word in rng.integers(2**32, size=4)])
    return simulate(layer, size, seed, method, coordinates=min(layer.width, 2)).as_dict()
