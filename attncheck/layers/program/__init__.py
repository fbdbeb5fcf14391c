"""Netsor programs with dot-product scores.

A program is a list of n-vectors and scalar scores, each computed from earlier ones:

- *initial*: i.i.d. coordinates, jointly Gaussian within a group of vectors;
- *MatMul*: W h, entries of W i.i.d. N(0, std²/fan-in); using a `Weight` object twice shares the matrix;
- *Nonlin*: a coordinatewise function of one or several vectors;
- *score*: g¹ᵀ g² over the square root of their dimension (over the dimension, in Yang's regime);
- *output*: a coordinatewise function of vectors and scores, as in Theorem 1.
"""

from attncheck.layers.program.functions import Coordinatewise, LinearCombination, PerArgumentFunction, StackedFunction
from attncheck.layers.program.nodes import Initial, MatMul, Node, Nonlin, Output, Score, Step, Weight
from attncheck.layers.program.program import Program, ProgramAt, ProgramCase

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
]
