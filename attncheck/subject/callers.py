"""Calls of a subject on layers, whose inputs it draws or receives, and on programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck._lib.arrays import FloatArray
from attncheck._lib.errors import refuse
from attncheck.checks.check import Setting
from attncheck.checks.claims import UNSUPPORTED
from attncheck.checks.programs.sample import ProgramSample, ProgramSetting, sample_of
from attncheck.checks.returned import EVERY_FIELD
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.norm import normalised
from attncheck.layers.program import Program, ProgramCase
from attncheck.layers.requirements import linear
from attncheck.simulators.collapsed import draw_images
from attncheck.subject.caller import Caller
from attncheck.subject.declared import SUPPORTS, Form


@dataclasses.dataclass(frozen=True)
class ProgramCaller(Caller[ProgramCase, ProgramSample, ProgramSetting]):
    """Calls a subject on programs; attributes as in `Subject`."""

    programs: Callable[..., Mapping[str, Any]] | None

    def reason_unsupported(self, case: ProgramCase) -> str:
        """Return why the subject does not simulate programs, or an empty string."""
        return "" if self.programs else "the subject simulates layers only"

    def draw(self, case: ProgramCase, size: int, rng: np.random.Generator) -> ProgramSample:
        """Draw a validated sample of a program at each width of a case."""
        if self.programs is None:
            remedy = "define its attribute `programs`, see attncheck.subject.Subject"
            self.refuse(case, f"was asked for a program; {remedy}")
        arrays = [self.run(self.programs, case, n, size, rng) for n in case.widths]
        with self.reading(case):
            return sample_of(case, arrays, size)

    def setting(self, case: ProgramCase, sample: ProgramSample, repeatable: bool) -> ProgramSetting:
        """Return the setting of a program: the arrays and neurons in a sample, and whether draws are repeatable."""
        return ProgramSetting(case, sample.exposed, sample.coordinates, self.weights, repeatable)

    def called_with(self, case: ProgramCase) -> Program:
        """Return the program; widths are separate arguments."""
        return case.program


# Maximum number of entries of the inputs X per call of a subject.
_INPUT_ENTRIES = 2**22


@dataclasses.dataclass(frozen=True)
class LayerCaller(Caller[AttentionLayer, Sample, Setting]):
    """Calls a subject on layers; attributes as in `Subject`."""

    call: Callable[..., Mapping[str, Any]]
    form: Form
    supports: Callable[[AttentionLayer], bool | str]

    def reason_unsupported(self, case: AttentionLayer) -> str:
        """Return why the subject does not support a layer; empty if it does."""
        if self.form == "program":
            return "the subject simulates programs only"
        answer = self.run(self.supports, case)
        if isinstance(answer, str):
            return answer or UNSUPPORTED
        if not isinstance(answer, bool | np.bool_):
            refuse(f"{self.name}.supports", answer, f"was returned for {case.describe()}", SUPPORTS)
        return "" if answer else UNSUPPORTED

    def draw(self, case: AttentionLayer, size: int, rng: np.random.Generator) -> Sample:
        """Draw a validated sample; inputs passed to the subject are split into calls of bounded size."""
        if self.form == "size":
            return self._sample(case, size, size, rng)
        step = max(1, _INPUT_ENTRIES // (case.seq_len * case.width))
        counts = [min(step, size - start) for start in range(0, size, step)]
        parts = [self.draw_on(case, draw_images(case, count, rng), rng) for count in counts]
        for part in parts:
            self.hold(case, part, parts[0].exposed, parts[0].coordinates)
        return _joined(parts)

    def drawer(
        self, case: AttentionLayer, size: int, rng: np.random.Generator
    ) -> Callable[[np.random.Generator], Sample]:
        """Return a function that draws a sample from a generator, on fixed inputs if attncheck draws them."""
        if self.form == "size":
            return super().drawer(case, size, rng)
        inputs = draw_images(case, size, rng)
        return lambda generator: self.draw_on(case, inputs, generator)

    def given(self, case: AttentionLayer) -> tuple[str, ...]:
        """Return the names of arrays that may be equal for two generators: given or saturated inputs, and products."""
        names = ("inputs", "input_gram") if self.form == "inputs" or not linear(case) else ()
        signs = not self.weights.continuous and case.width == 1
        return (*names, "key_gram", "value_gram") if names and signs else names

    def setting(self, case: AttentionLayer, sample: Sample, repeatable: bool) -> Setting:
        """Return the setting of a layer: the arrays and neurons in a sample, and whether draws are repeatable."""
        draw_on = self.draw_on if self.form == "inputs" else None
        return Setting(case, sample.exposed, sample.coordinates, self.weights, repeatable, draw_on)

    def draw_on(self, layer: AttentionLayer, inputs: FloatArray, rng: np.random.Generator) -> Sample:
        """Call the subject on inputs X, before any norm of the layer; the sample contains X and its Gram matrix too."""
        sample = self._sample(layer, inputs.copy(), len(inputs), rng)
        inputs = normalised(layer.norm, inputs)
        exposed = inputs[:, :, : sample.coordinates]
        gram = inputs @ inputs.swapaxes(-1, -2) / layer.width
        return dataclasses.replace(sample, inputs=exposed, input_gram=gram)

    def _sample(self, layer: AttentionLayer, second: Any, size: int, rng: np.random.Generator) -> Sample:
        arrays = self.run(self.call, layer, second, rng)
        with self.reading(layer):
            return Sample.from_mapping(layer, arrays, size)


def _joined(samples: Sequence[Sample]) -> Sample:
    """Concatenate samples that expose the same arrays."""
    first = samples[0]
    if len(samples) == 1:
        return first
    fields = [name for name in EVERY_FIELD if name in first.exposed]
    joined: dict[str, Any] = {name: np.concatenate([part.need(name) for part in samples]) for name in fields}
    return dataclasses.replace(first, **joined)
