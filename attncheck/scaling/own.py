"""Layers, stacks and programs as models of several widths, with computed exponents."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.streams import stream
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.program import Node, Program, Score
from attncheck.layers.program.extent import vectors_of
from attncheck.layers.stack import AttentionStack
from attncheck.methods import simulate
from attncheck.scaling.exponents import slope_weights
from attncheck.scaling.predictions import INIT, Expectation, ExponentPrediction, TapSeries
from attncheck.scaling.taps import MODULE, OUTPUT, SCORES, Model, Tap
from attncheck.simulators.multipliers import MatrixFreeMultiplier
from attncheck.simulators.programs import draw_exposed
from attncheck.theory.limits.programs import limit_of_program
from attncheck.theory.rates.law import finite_width_law

#: Descriptions available at any width.
Description = AttentionLayer | AttentionStack | Program
#: Number of independent draws of a tap per seed.
DRAWS = 1_024
# Replicates of the exact law: accurate to about 1e-4.
_REPLICATES = 256
_KINDS = {"inputs": MODULE, "scores": SCORES, "outputs": OUTPUT}
# Draws of the limit used to find program lines that are 0 in it.
_SEEN = 16


@dataclasses.dataclass(frozen=True)
class OwnModel(Model):
    """Draws of a layer, stack or program at one width."""

    description: Description
    width: int
    seed: int

    def taps(self) -> Mapping[str, Tap]:
        """Return inputs, scores and outputs of a layer; streams and scores of a stack; or all lines of a program."""
        if isinstance(self.description, AttentionLayer):
            drawn = simulate(self.description.replace(width=self.width), DRAWS, self.seed, coordinates=1).as_dict()
            return {name: Tap(drawn[name], kind, "AttentionLayer") for name, kind in _KINDS.items()}
        if isinstance(self.description, AttentionStack):
            return self._of_stack(self.description)
        return self._of_program(self.description)

    def step(self) -> None:
        """Do nothing."""

    def _of_stack(self, stack: AttentionStack) -> dict[str, Tap]:
        drawn = simulate(stack.at_width(self.width), DRAWS, self.seed, coordinates=1)
        taps = {}
        for layer in range(stack.depth):
            taps[f"{layer}.stream"] = Tap(drawn.streams[:, layer], MODULE, "AttentionStack")
            taps[f"{layer}.scores"] = Tap(drawn.scores[:, layer], SCORES, "AttentionStack")
        return {**taps, "outputs": Tap(drawn.outputs, OUTPUT, "AttentionStack")}

    def _of_program(self, program: Program) -> dict[str, Tap]:
        rng = stream(self.seed, "widths", self.width)
        drawn = draw_exposed(program, self.width, DRAWS, 1, rng, MatrixFreeMultiplier)
        assert drawn.gram is not None
        lengths = np.sqrt(np.diagonal(drawn.gram, axis1=1, axis2=2))
        scores = [node for node in program.lines() if isinstance(node, Score)]
        made: dict[Node, Tap] = {
            **{node: Tap(each, MODULE, "Program") for node, each in zip(vectors_of(program), lengths.T, strict=True)},
            **{node: Tap(each, SCORES, "Program") for node, each in zip(scores, drawn.scores.T, strict=True)},
        }
        return {node.name: made[node] for node in program.lines()}


def computed(description: Description, widths: Sequence[int]) -> Expectation:
    """Return predicted exponents: from the exact law at each width for a layer, else from the limit.

    Nonzero limits have order 0, and scores with 1/n scaling order -1/2. Program lines with limit 0 have no
    prediction.

    Parameters
    ----------
    description : AttentionLayer, AttentionStack or Program
    widths : sequence of int

    Examples
    --------
    >>> layer = AttentionLayer(width=64, seq_len=2, score_scaling="1/n")
    >>> expected = computed(layer, (64, 128, 256))
    >>> print(*(expected(TapSeries(name, "", kind, True), "init") for name, kind in _KINDS.items()))
    0 -0.5 0
    >>> from attncheck.programs import recurrent_attention
    >>> print(computed(recurrent_attention(), (64, 128, 256))(TapSeries("p1,1", "", SCORES, False), "init"))
    0
    """
    if isinstance(description, AttentionLayer):
        held = _of_layer(description, widths)
    elif isinstance(description, AttentionStack):
        order = -0.5 if description.layer.score_scaling == "1/n" else 0.0
        held = {f"{layer}.scores": order for layer in range(description.depth)}
        held |= dict.fromkeys([*(f"{layer}.stream" for layer in range(description.depth)), "outputs"], 0.0)
    else:
        held = _of_program(description)

    def expected(place: TapSeries, moment: str) -> ExponentPrediction | None:
        order = held.get(place.name)
        return ExponentPrediction(order, order) if moment == INIT and order is not None else None

    return expected


def _of_layer(layer: AttentionLayer, widths: Sequence[int]) -> dict[str, float]:
    layers = [layer.replace(width=width) for width in widths]
    laws = [finite_width_law(each, size=_REPLICATES) for each in layers]
    variances = [np.mean([law.variance(position) for position in range(layer.seq_len)]) for law in laws]
    # The size of inputs is constant to leading order, so scores scale as their factor does.
    sizes: dict[str, FloatArray | list[float]] = {
        "scores": [each.score_factor for each in layers],
        "outputs": np.sqrt(variances),
    }
    orders = {name: float(slope_weights(widths) @ np.log(each)) for name, each in sizes.items()}
    # Errors of the variances change the exponents by less than 0.001.
    return {"inputs": 0.0} | {name: round(order, 3) + 0.0 for name, order in orders.items()}


def _of_program(program: Program) -> dict[str, float]:
    limit = limit_of_program(program)
    drawn = limit.draw(_SEEN, 1, stream(0, "widths", "limit")).scores
    sizes = {node.name: float(limit.conditional_square(node, drawn).mean()) for node in vectors_of(program)}
    held = {name: 0.0 for name, size in sizes.items() if size > limit.error}
    variances = np.diag(limit.score_covariance)
    return held | {score.name: 0.0 for score, known in zip(limit.scores, variances, strict=True) if known > limit.error}
