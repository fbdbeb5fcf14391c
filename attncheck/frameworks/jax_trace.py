"""Detection of attention cores in JAX functions, by the dataflow of their jaxprs."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

_INLINED = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}
_OPAQUE = {"scan", "while", "cond", "conv_general_dilated", "dot_general"}  # results are not followed further
_LINEAR = {"add", "sub", "mul", "div", "neg", "convert_element_type", "copy", "stop_gradient", "reduce_precision"}
# Primitives that move or repeat entries, as functions of an array and the primitive's parameters.
_MOVES: dict[str, Callable[[Any, Any], Any]] = {
    "transpose": lambda array, params: array.transpose(params["permutation"]),
    "reshape": lambda array, params: array.reshape(params["new_sizes"]),
    "squeeze": lambda array, params: array.squeeze(params["dimensions"]),
    "slice": lambda array, params: array[
        tuple(map(slice, params["start_indices"], params["limit_indices"], params["strides"] or (1,) * array.ndim))
    ],
    "broadcast_in_dim": lambda array, params: np.broadcast_to(
        np.expand_dims(array, [a for a in range(len(params["shape"])) if a not in params["broadcast_dimensions"]]),
        params["shape"],
    ),
    "concatenate": lambda array, params: np.pad(array, params["widths"], constant_values=-1),
}


@dataclasses.dataclass(frozen=True, eq=False)
class _Product:
    """A `dot_general` with at least one operand that depends on x."""

    operands: tuple[_Traced, _Traced]
    dimensions: Any
    shape: tuple[int, ...]

    @property
    def both(self) -> bool:
        """Whether both operands depend on x."""
        return all(operand.depends for operand in self.operands)


@dataclasses.dataclass(frozen=True, eq=False)
class _Open:
    """How an array is derived from a product of matrices.

    `moves` are functions that are applied in turn to the entries of the product, to move them to their places in the
    array. It is None if the places are unknown, e.g. after a reduction. `sides` says for each axis of the array from
    which operand of the product it comes (0 or 1), or -1 if this is unknown; for a single position, sizes of axes would
    not show it. `met` has the names of the primitives that lead from the product to the array.
    """

    product: _Product
    moves: tuple[Callable[[Any], Any], ...] | None
    sides: tuple[int, ...]
    met: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """A value, whether it depends on x, and in `open` how it is derived from a product of matrices, if it is."""

    value: Any
    depends: bool = False
    open: _Open | None = None


def watching(function: Callable[[Any, Any], Any], core: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a function of parameters and x, (B, L, n), in which `core` replaces every attention core.

    `core` receives traced q, k, v, weights, and the product of weights and v, all (N, rows, ·). It returns an array
    that replaces this product.

    A core consists of a product of queries, (N, L, d), and keys, (N, L', d), that depend on x; operations without
    products; and a product with values that depend on x, which contracts the keys. Queries may be parameters if `exp`
    occurs between the products. If the first product contracts the L positions, and only linear operations follow, it
    belongs to linear attention and is no core. Cores in `while` and `cond` are not found.
    """

    def watched(parameters: Any, x: Any) -> Any:
        with jax.disable_jit():  # otherwise, parts that are already compiled would not be traced
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(parameters, x)
        arguments = [*map(_Traced, jax.tree.leaves(parameters)), _Traced(x, depends=True)]
        results = _Evaluation(x.shape[1], core).results(closed.jaxpr, closed.consts, arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), [result.value for result in results])

    return watched


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """Evaluation of jaxprs for inputs with `length` positions."""

    length: int
    core: Callable[..., Any]

    def results(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[_Traced]) -> list[_Traced]:
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*map(_Traced, constants), *arguments], strict=True))

        def read(atom: Any) -> _Traced:
            return _Traced(atom.val) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            known |= zip(equation.outvars, self._evaluated(equation, [*map(read, equation.invars)]), strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _evaluated(self, equation: Any, operands: list[_Traced]) -> list[_Traced]:
        primitive, params = equation.primitive, equation.params
        if primitive.name in _INLINED:
            inner = params.get("jaxpr", params.get("call_jaxpr"))
            return self.results(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
        if isinstance(params.get("precision"), jax.lax.DotAlgorithmPreset):  # some fail on the CPU
            params = {**params, "precision": None}
        output = primitive.bind(*(array.value for array in operands), **params)
        depends = any(array.depends for array in operands)
        if primitive.name == "dot_general" and depends:
            return [self._multiplied(operands, params["dimension_numbers"], output)]
        results = output if primitive.multiple_results else [output]
        return [_Traced(array, depends, _descent(primitive.name, params, operands, array)) for array in results]

    def _multiplied(self, operands: list[_Traced], dimensions: Any, product: Any) -> _Traced:
        """Return a product, or the result of `core` if the product completes an attention core."""
        for side in (0, 1):
            core = self._core_of(operands, dimensions, side)
            if core is not None:
                rows, size = core[0].shape[1], core[2].shape[2]
                matrices = product.reshape(-1, *((size, rows) if side else (rows, size)))
                result = self.core(*core, matrices.swapaxes(1, 2) if side else matrices)
                return _Traced((result.swapaxes(1, 2) if side else result).reshape(product.shape), True)
        free = (operands[side].value.ndim - len(dimensions[0][side]) - len(dimensions[1][side]) for side in (0, 1))
        sides = (-1,) * len(dimensions[1][0]) + sum(((side,) * count for side, count in enumerate(free)), ())
        return _Traced(product, True, _Open(_Product((operands[0], operands[1]), dimensions, product.shape), (), sides))

    def _core_of(self, factors: list[_Traced], dimensions: Any, side: int) -> tuple[Any, ...] | None:
        """Return q, k, v and weights if operand `side` of a product contains attention weights, else None.

        `factors` are both operands of the product, and `dimensions` its dimension numbers.
        """
        weights, values = factors[side], factors[1 - side]
        origin = weights.open
        if origin is None or origin.moves is None or not values.depends:
            return None
        product = origin.product
        operands = [_canonical(operand.value, i, product.dimensions) for i, operand in enumerate(product.operands)]
        if operands[0].shape[-1] == self.length and origin.met <= _LINEAR | _MOVES.keys():
            return None
        indices = np.arange(math.prod(product.shape)).reshape(product.shape)
        indices = _canonical(functools.reduce(lambda array, move: move(array), origin.moves, indices), side, dimensions)
        if indices.min(initial=0) < 0:
            return None
        batch, *entries = np.unravel_index(indices, (*operands[0].shape[:2], operands[1].shape[1]))
        first = int({origin.sides[axis] for axis in dimensions[0][side]} == {0})
        for query, key in ((first, 1 - first), (1 - first, first)):
            at, rows, columns = _along(batch, (1, 2)), _along(entries[query], (2,)), _along(entries[key], (1,))
            if at is None or rows is None or columns is None:
                continue
            same_batch = len(at) == len(operands[0]) and len(product.dimensions[1][0]) == len(dimensions[1][0])
            if not product.both and not (product.operands[key].depends and same_batch and "exp" in origin.met):
                continue
            q, k = operands[query][at[:, None], rows], operands[key][at[:, None], columns]
            v = _canonical(values.value, 1 - side, dimensions).swapaxes(1, 2)
            return q, k, v, _canonical(weights.value, side, dimensions)
        return None


def _descent(name: str, params: Any, operands: Sequence[_Traced], result: Any) -> _Open | None:
    """Return how the result of a primitive operation is derived from a product of matrices; None if it is not.

    `name` and `params` are the name and the parameters of the primitive.
    """
    origins = [(operand.open, operand.value.shape) for operand in operands if operand.open is not None]
    if not origins or name in _OPAQUE:
        return None
    best, shape = max(origins, key=lambda one: (one[0].product.both, bool(one[0].sides)))
    met = best.met.union([name], *(one.met for one, _ in origins if one.product is best.product))
    if name not in _MOVES and shape == result.shape:
        return dataclasses.replace(best, met=met)
    if name not in _MOVES or best.moves is None:
        return _Open(best.product, None, (), met)
    if name == "concatenate":
        params = {"widths": _widths(params["dimension"], operands, best)}
    sides = _sides_after(name, params, best.sides, shape, result.shape)
    return _Open(best.product, (*best.moves, lambda array: _MOVES[name](array, params)), sides, met)


def _widths(axis: int, operands: Sequence[_Traced], origin: _Open) -> list[tuple[int, int]]:
    """Return, for each axis, how many entries lie before and after one operand of a concatenation along `axis`.

    It is the operand with the derivation `origin`.
    """
    sizes = [operand.value.shape[axis] for operand in operands]
    at = next(i for i, operand in enumerate(operands) if operand.open is origin)
    width = sum(sizes[:at]), sum(sizes[at + 1 :])
    return [width if i == axis else (0, 0) for i in range(operands[0].value.ndim)]


def _sides_after(name: str, params: Any, sides: tuple[int, ...], before: Any, after: Any) -> tuple[int, ...]:
    """Return `_Open.sides` after the primitive called `name`, which moves the entries of an array.

    `sides` is the value before it, and `before` and `after` are the shapes of the array.
    """
    if name == "transpose":
        return tuple(sides[axis] for axis in params["permutation"])
    if name == "squeeze":
        return tuple(side for axis, side in enumerate(sides) if axis not in params["dimensions"])
    if name == "broadcast_in_dim":
        source = dict(zip(params["broadcast_dimensions"], sides, strict=True))
        return tuple(source.get(axis, -1) for axis in range(len(after)))
    if name in ("slice", "concatenate"):
        return sides
    # A reshape may leave the last axes as they are; it is unknown from which operand the other axes come.
    end = [*map(operator.eq, before[::-1], after[::-1]), False].index(False)
    return (-1,) * (len(after) - end) + sides[len(sides) - end :]


def _canonical(array: Any, side: int, dimensions: Any) -> Any:
    """Return operand `side` of a `dot_general` with its axes merged to three: (batch, free, contracted).

    `dimensions` are the dimension numbers of the `dot_general`.
    """
    contracted, batch = (tuple(axes[side]) for axes in dimensions)
    free = tuple(axis for axis in range(array.ndim) if axis not in (*contracted, *batch))
    sizes = [math.prod(array.shape[axis] for axis in axes) for axes in (batch, free, contracted)]
    return array.transpose(*batch, *free, *contracted).reshape(sizes)


def _along(array: Any, axes: tuple[int, ...]) -> Any:
    """Drop the given axes of an array; return None if the array is not constant along them."""
    first = array[tuple(slice(1) if axis in axes else slice(None) for axis in range(array.ndim))]
    return first.squeeze(axes) if (array == first).all() else None
