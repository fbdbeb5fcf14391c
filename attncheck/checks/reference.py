"""Reference draws from a separate random stream: from the exact law, or literal ones for non-Gaussian weights."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import generator
from attncheck.checks.answers import Answer, DrawOn, Pair, answers, pair_of
from attncheck.checks.functionals import FUNCTIONALS, NEURONS, FunctionalOf
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.checks.whitening import precision
from attncheck.layers.attention import AttentionLayer
from attncheck.methods import drawn_blocks
from attncheck.simulators.collapsed import draw_images
from attncheck.simulators.finite import FINITE
from attncheck.simulators.linalg import bartlett
from attncheck.simulators.weights import WeightLaws, draw_with_weights

#: Reference draws per draw of the subject.
RATIO = 4
#: Reference draws by explicit weight matrices per draw of the subject, for non-Gaussian weights.
LITERAL_RATIO = 2
_SINGLE = float(np.finfo(np.float32).eps)
#: There is one draw with given inputs per PER_ANSWER draws of a look, and at least _FEWEST_ANSWERS of them.
PER_ANSWER = 32
_FEWEST_ANSWERS = 2
#: A call with equal inputs in all draws has one draw per PER_TWIN draws of a look.
PER_TWIN = 4
# Number of inputs in such calls.
_TWIN_INPUTS = 2
# Spawn keys of the random streams of `score_sizes`, `pair` and `twins`, which differ from all keys in `functionals`.
_SIZES_KEY, _ANSWERS_KEY, _TWINS_KEY = 2**31, 2**31 + 1, 2**31 + 2


_Case = TypeVar("_Case")


@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceOf(abc.ABC, Generic[_Case]):
    """Reference draws of a correct layer or program, reduced to the numbers (functionals) that checks compare.

    There are `RATIO` reference draws per draw of the subject. `seed` is independent of the seeds of the subject and of
    other looks. Only functionals in `wanted` are computed (all if None); `wanted` does not affect the draws.
    """

    case: _Case
    size: int
    coordinates: int
    seed: np.random.SeedSequence
    wanted: frozenset[str] | None = None

    @property
    @abc.abstractmethod
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (RATIO · size,)."""

    def values_of(
        self,
        functionals: Iterable[FunctionalOf[Any, Any]],
        described: Any,
        coordinates: int,
        drawn: Iterable[Any],
    ) -> dict[str, FloatArray]:
        """Return the values of the wanted functionals on all draws of a layer or program.

        `described` is the layer or program; `drawn` yields the draws in parts.
        """
        selection = [
            f
            for f in functionals
            if (self.wanted is None or f.name in self.wanted) and f.applies(described, coordinates)
        ]
        parts = [[f.compute(draws) for f in selection] for draws in drawn]
        return {f.name: np.concatenate(column) for f, column in zip(selection, zip(*parts, strict=True), strict=True)}


@dataclasses.dataclass(frozen=True, eq=False)
class Reference(ReferenceOf[AttentionLayer]):
    """Reference draws of a layer by the collapsed (matrix-free) method, which is exact in law; see `ReferenceOf`.

    `draw_on` calls the subject on given inputs.
    """

    draw_on: DrawOn | None = dataclasses.field(default=None, kw_only=True)

    @property
    def layer(self) -> AttentionLayer:
        """The layer under test."""
        return self.case

    @cached_property
    def pair(self) -> Pair:
        """The subject and a correct simulator, with inputs for both.

        There is one draw of inputs per `PER_ANSWER` draws of a look.
        """
        assert self.draw_on is not None
        size = max(_FEWEST_ANSWERS, self.size // PER_ANSWER)
        return pair_of(self.draw_on, self.layer, size, self._stream(_ANSWERS_KEY))

    @cached_property
    def twins(self) -> list[list[Answer]]:
        """Answers of the subject from two independent generators, to the same inputs; all draws of a call share them.

        Each generator answers `_TWIN_INPUTS` inputs, with the same weights.
        """
        assert self.draw_on is not None
        rng = self._stream(_TWINS_KEY)
        draws = max(2, self.size // PER_TWIN // 2 * 2)
        inputs = [np.repeat(draw_images(self.layer, 1, rng), draws, axis=0) for _ in range(_TWIN_INPUTS)]
        return [[*map(answers(self.draw_on, self.layer, child), inputs)] for child in rng.spawn(2)]

    def _stream(self, key: int) -> np.random.Generator:
        keys = (*self.seed.spawn_key, key)
        return generator(np.random.SeedSequence(self.seed.entropy, spawn_key=keys))

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (RATIO · size,)."""
        coordinates = min(self.coordinates, NEURONS, self.layer.width)
        drawn = drawn_blocks(self.layer, RATIO * self.size, self.seed, coordinates=coordinates, grams=frozenset())
        samples = (Sample(self.layer, **cast("dict[str, Any]", draws.as_dict())) for draws in drawn)
        return self.values_of(FUNCTIONALS, self.layer, coordinates, samples)

    def score_sizes(self, rank: int) -> FloatArray:
        """Draw log sums of squares of scores whitened by the inputs, (RATIO · size · kv_heads,).

        There is one sum per group of heads. If F is a factor of the inputs' Gram matrix, and σ the scale of the scores
        P, the whitened scores F⁺ P F⁺ᵀ/σ have the law of N Tᵀ/√ν, with ν the head width. Here N consists of standard
        normals, with `rank` rows for each head, and T is a Bartlett factor, with `rank` rows for each group of heads.
        """
        layer = self.layer
        rng = self._stream(_SIZES_KEY)
        factors = bartlett(rng, (RATIO * self.size, layer.kv_heads), rank, layer.head_width)
        normals = rng.standard_normal((*factors.shape[:2], layer.group_size * rank, factors.shape[-1]))
        squares = (normals @ factors.swapaxes(-1, -2)) ** 2
        return np.asarray(np.log(squares.sum(axis=(2, 3)) / layer.head_width)).ravel()


@dataclasses.dataclass(frozen=True, eq=False)
class LiteralReference(Reference):
    """Reference draws of a layer by explicit weight matrices that follow `laws`.

    There are `LITERAL_RATIO` of them per draw of the subject. They have the fields and the precision of the subject's
    sample `like`. `blocks` maps each property to its number of draws per block.
    """

    laws: WeightLaws = dataclasses.field(kw_only=True)
    like: Sample = dataclasses.field(kw_only=True)
    blocks: Mapping[str, int] = dataclasses.field(kw_only=True)

    @cached_property
    def sample(self) -> Sample:
        """The draws by explicit weight matrices, with the fields and the precision that the subject returns."""
        arrays: dict[str, Any] = {name: self._seen(name, values) for name, values in self._draw().items()}
        return Sample(self.layer, **arrays)

    @cached_property
    def functionals(self) -> dict[str, FloatArray]:
        """The values of every wanted functional, (LITERAL_RATIO · size,)."""
        return self.values_of(FUNCTIONALS, self.layer, self.coordinates, [self.sample])

    @property
    def _kept(self) -> frozenset[str]:
        fields = self.like.exposed & frozenset(EVERY_FIELD)
        return fields if self.layer.rotary_base is not None else fields - {"keys"}

    def _draw(self) -> dict[str, FloatArray]:
        """Return the fields of all draws by explicit weight matrices, drawn in blocks to bound memory."""
        step = max(1, 2**21 // FINITE[type(self.layer)]["direct"](self.layer, self.coordinates).entries)
        total, rng = LITERAL_RATIO * self.size, generator(self.seed)
        parts = [
            draw_with_weights(self.layer, min(step, total - start), self.coordinates, rng, self.laws).as_dict()
            for start in range(0, total, step)
        ]
        for part in parts if "attention" in self._kept else ():
            part["attention"] = self.layer.attention_weights(part["scores"])
        return {name: np.concatenate([part[name] for part in parts]) for name in self._kept}

    def _seen(self, name: str, values: FloatArray) -> FloatArray:
        """Set masked scores to −inf if the subject hides them, and round to single precision if the subject does."""
        if name == "scores" and "masked scores" not in self.like.exposed:
            values = np.where(self.layer.visible, values, -np.inf)
        single = precision(self.like.need(name)) == _SINGLE
        return values.astype(np.float32).astype(np.float64) if single else values
