"""Netsor programs with dot-product scores: the description that every reading interprets.

A program is a list of n-vectors and scalar scores, each made from earlier ones:

- *initial*: coordinates drawn i.i.d., jointly Gaussian over the vectors of one group;
- *MatMul*: W h, with the entries of W i.i.d. N(0, std²/fan-in); a `Weight` object *is* the matrix,
  so using it twice is weight sharing;
- *Nonlin*: a function applied coordinate by coordinate to one or several vectors;
- *score*: g¹ᵀ g² divided by the square root of their size (or by the size, in Yang's regime);
- *output*: a coordinatewise function of vectors and scores, as in Theorem 1.
"""

from attncheck.layers.program.functions import Coordinatewise, LinearCombination, PerArgumentFunction, StackedFunction
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score, Step, Weight
from attncheck.layers.program.program import Program, ProgramAt, ProgramCase, WidthSeries

__all__ = [
    "Coordinatewise",
    "Initial",
    "LinearCombination",
    "MatMul",
    "Node",
    "Nonlin",
    "Output",
    "PerArgumentFunction",
    "Program",
    "ProgramAt",
    "ProgramCase",
    "Score",
    "StackedFunction",
    "Step",
    "Weight",
    "WidthSeries",
]
