"""A subject's draws of a program, with cached residuals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import InputError, refuse
from attncheck.checks.check import BaseSetting
from attncheck.checks.programs import residuals
from attncheck.checks.whitening import Residual
from attncheck.layers.draws import ProgramDraws
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.program.extent import results_of, vectors_of

#: Fields that a subject may return for a program; outputs and scores are required.
PROGRAM_FIELDS = ("outputs", "scores", "vectors", "gram")
_LARGEST = 1e100


class ProgramSetting(BaseSetting[ProgramCase]):
    """The program under test, and properties of the subject that are known before sampling."""

    @property
    def description(self) -> Program:
        """The program under test."""
        return self.case.program


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramSample:
    """Independent draws of a program at each width of a case.

    Attributes
    ----------
    case : ProgramCase
    draws : tuple of ProgramDraws
        One per width, each with the same number of draws.
    calls : tuple of int
        Numbers of draws per call of the subject at each width; by default, a single call.
    """

    case: ProgramCase
    draws: tuple[ProgramDraws, ...]
    calls: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.calls:
            object.__setattr__(self, "calls", (len(self),))

    def __len__(self) -> int:
        return len(self.draws[0])

    def __getitem__(self, part: slice) -> ProgramSample:
        """Return consecutive draws as a new sample."""
        return ProgramSample(self.case, tuple(draws[part] for draws in self.draws))

    def joined(self, others: Sequence[ProgramSample]) -> ProgramSample:
        """Return one sample of the draws of this sample and of others that expose the same arrays."""
        parts = (self, *others)
        draws = [
            ProgramDraws(**{name: np.concatenate([getattr(one, name) for one in of_width]) for name in self.exposed})
            for of_width in zip(*(part.draws for part in parts), strict=True)
        ]
        return ProgramSample(self.case, tuple(draws), sum((part.calls for part in parts), ()))

    @property
    def outputs(self) -> FloatArray:
        """Outputs at the first width, (draws, results, neurons)."""
        return self.draws[0].outputs

    @property
    def coordinates(self) -> int:
        """The number of returned neurons."""
        return int(self.outputs.shape[-1])

    @property
    def exposed(self) -> frozenset[str]:
        """Names of the exposed arrays."""
        return frozenset(self.draws[0].as_dict())

    def need(self, name: str) -> FloatArray:
        """Return an exposed array at the first width, or raise `InputError` if it is missing."""
        value: FloatArray | None = getattr(self.draws[0], name)
        if value is None:
            raise InputError(f"{name}: is not exposed by the subject; return it, or leave out the checks that need it")
        return value

    @cached_property
    def initial(self) -> Residual:
        """The normals that generate the initial vectors: i.i.d. N(0, 1), (draws, directions, coordinates)."""
        return residuals.initial_residual(self.case.program, self.need("vectors"))

    @cached_property
    def images(self) -> tuple[residuals.Images, ...]:
        """The inputs and images of each matrix, in the order of the program."""
        return residuals.images_of(self.case.program)

    @cached_property
    def matmuls(self) -> Residual:
        """Products of matrices with orthonormal new directions, (draws, uses of matrices, coordinates).

        They are i.i.d. N(0, 1) under the null: given all earlier vectors, a matrix applied to a new direction gives a
        normal vector that is independent of them, at every width.
        """
        gram, vectors = self.need("gram"), self.need("vectors")
        none = np.zeros((len(self), 0, self.coordinates))
        parts = [
            Residual(none, none > 0),
            *(residuals.sequential_residual(images, gram, vectors) for images in self.images),
        ]
        return Residual(
            *(np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("values", "kept"))
        )

    @cached_property
    def score_noise(self) -> Residual:
        """Scores whitened given the vectors on which they are conditioned: i.i.d. N(0, 1), (draws, scores)."""
        sides, _ = residuals.conditioned_sides(self.case.program)
        return residuals.score_residual(self.case, sides, self.need("gram"), self.need("scores"))


def sample_of(case: ProgramCase, mappings: list[Any], size: int) -> ProgramSample:
    """Validate the arrays returned by a subject at each width of a case.

    Raises
    ------
    InputError
        For unknown names, wrong shapes, or values that are not finite.
    """
    return ProgramSample(
        case, tuple(_draws_of(case, n, mapping, size) for n, mapping in zip(case.widths, mappings, strict=True))
    )


def _draws_of(case: ProgramCase, width: int, arrays: Any, size: int) -> ProgramDraws:
    if isinstance(arrays, ProgramDraws):
        arrays = arrays.as_dict()
    if not isinstance(arrays, Mapping):
        remedy = "return {'outputs': ..., 'scores': ...}"
        refuse("subject", type(arrays).__name__, "must return a mapping of arrays", remedy)
    entries = {name: value for name, value in arrays.items() if value is not None}
    for name in entries:
        if name not in PROGRAM_FIELDS:
            refuse(f"subject[{name!r}]", "...", "is not a known field", "return some of " + ", ".join(PROGRAM_FIELDS))
    for name in ("outputs", *(["scores"] if case.scores else [])):
        if name not in entries:
            refuse("subject", sorted(entries), f"returned no {name}", "return outputs and scores, one row per draw")
    raw = {name: np.asarray(value) for name, value in entries.items()}
    raw.setdefault("scores", np.empty((size, 0)))
    coordinates = raw["outputs"].shape[-1] if raw["outputs"].ndim == 3 else 0
    count = len(vectors_of(case.program))
    shapes = {
        "outputs": (size, len(results_of(case.program)), coordinates),
        "scores": (size, len(case.scores)),
        "vectors": (size, count, coordinates),
        "gram": (size, count, count),
    }
    result = {}
    for name, value in raw.items():
        if value.shape != shapes[name] or not coordinates:
            requirement = (
                f"must be {shapes[name]} at width {width}" if coordinates else f"must be ({size}, results, neurons)"
            )
            remedy = (
                "return lines in the order of the program, where vectors are all lines but scores (see "
                "attncheck.ProgramDraws); to test a simulator of one program, call attncheck.check(simulator, program)"
            )
            refuse(f"subject[{name!r}].shape", value.shape, requirement, remedy)
        result[name] = value.astype(np.float64)
        if not (np.abs(result[name]) <= _LARGEST).all():
            refuse(f"subject[{name!r}]", "...", "holds NaN, infinity or numbers beyond 1e100", "mend the simulator")
    return ProgramDraws(**result)
