"""Result of the inspection of a model: attention modules, parameters and notes."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attncheck._lib.errors import refuse
from attncheck._lib.names import grouped
from attncheck._lib.text import counted
from attncheck.frameworks.comparisons import DROPOUT
from attncheck.frameworks.expectations import LEVELS, excluding
from attncheck.frameworks.expectations import declared as declarations
from attncheck.frameworks.notes import WRONG, Note, PrintedInspection, wrong_first
from attncheck.frameworks.result import Inspection
from attncheck.models.attention import WITHOUT_SOFTMAX, AttentionModules
from attncheck.models.duties.duty import HOLDS, NOT_EXAMINED, DutyResult
from attncheck.models.duties.registry import NAMES, expectations
from attncheck.models.families import ParameterTable
from attncheck.models.initialisers import DECLARED, checked
from attncheck.models.initialisers import unmet as unmet_initialisers

#: Reason if a forward pass shows no attention.
UNRECOGNISED = (
    "no attention was recognised in the forward pass: no module with projections takes hidden states, (batch, "
    "positions, width), and multiplies weights by values"
)
_NOTE = "all attention modules"


@dataclasses.dataclass(frozen=True)
class ModelInspection(PrintedInspection):
    """A model at initialisation.

    ``found["h.3.attn"]`` is the `Inspection` of one attention module.

    Attributes
    ----------
    kind : str
        Class of the model.
    draws : int
        Number of models initialised.
    attention : tuple of AttentionModules
        Groups of similar attention modules.
    modules : mapping of str to Inspection
        All attention modules by name.
    parameters : ParameterTable
        Statistics of every parameter, by name; prints as a table.
    notes : tuple of Note
        Notes on the model and its parameters; those on attention modules are in `modules`.
    refused : mapping of str to str
        Reasons why attention modules were not inspected, by module name.
    duties : tuple of DutyResult
        Results of measuring properties that any attention model must have.
    padded : tuple of str
        Arguments that mark padding in the inputs.
    numbers : mapping of str to float
        Numbers in the model's configuration, for use in the initialisers that `require` takes.
    """

    kind: str
    draws: int
    attention: tuple[AttentionModules, ...]
    modules: Mapping[str, Inspection]
    parameters: ParameterTable
    notes: tuple[Note, ...]
    refused: Mapping[str, str]
    duties: tuple[DutyResult, ...] = ()
    padded: tuple[str, ...] = ()
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Inspection:
        """Return the inspection of the attention module called `name`."""
        if name not in self.modules:
            refuse("module", name, "is not an inspected attention module", f"use one of {', '.join(self.modules)}")
        return self.modules[name]

    @property
    def all_notes(self) -> list[Note]:
        """Notes on the model, its attention and its parameters, errors first."""
        # An error in a formula of attention is the cause of a violated property rather than its effect.
        attention = [*self._of_attention()]
        causes = [note for note in attention if note.level == WRONG]
        violations = (note for result in self.duties for note in result.notes)
        return wrong_first([*dict.fromkeys([*causes, *violations, *self.notes, *attention])])

    @property
    def told(self) -> list[tuple[str, str]]:
        """Notes, and the properties that hold or were not examined, as pairs of a label and a text."""
        holding = [result.name for result in self.duties if result.outcome == HOLDS]
        reasons = grouped([result for result in self.duties if result.reason], lambda result: result.reason)
        unexamined = [f"{', '.join(r.name for r in results)} ({reason})" for reason, results in reasons.items()]
        lines = ((HOLDS, ", ".join(holding)), (NOT_EXAMINED, "; ".join(unexamined)))
        return super().told + [(label, text) for label, text in lines if text]

    def _of_attention(self) -> Iterator[Note]:
        """Yield the notes on attention modules, each with the names of all modules concerned."""
        pairs = [(note, group.title) for group in self.attention for note in group.inspection.notes]
        for note, members in grouped(pairs, lambda pair: pair[0]).items():
            if str(note) == DROPOUT:  # dropout in training is usual in whole models
                continue
            everywhere = len(members) == len(self.attention) > 1
            where = _NOTE if everywhere else ", ".join(title for _, title in members)
            yield dataclasses.replace(note, text=f"{where}: {note}")

    def require(self, *declared: str, parameters: Mapping[str, str] | None = None, **expected: Any) -> None:
        """Raise an error if the model differs from expectations.

        Parameters
        ----------
        *declared, **expected
            Expectations of every attention module, as for `Inspection.require`; ``mask`` is not compared in
            cross-attention. ``blamed=False`` requires that no note reports an error, ``asked=False`` that no note asks
            about a choice, unless another expectation declares that choice; ``asked=["KV heads are tiled"]`` allows
            notes with this text. ``"causality"``, or ``causality=True``, requires that property of the model;
            ``causality=False`` declares its violation.
        parameters : mapping of str to str
            Initialisers by name pattern, such as ``{"*.bias": "zeros", "*.c_proj.weight":
            "normal(0.02/sqrt(2*n_layer))"}``: a law with the standard deviation of an entry. Expressions may contain
            fan_in, fan_out, and numbers of the model's configuration and of the defaults of `make`. Every matching
            pattern applies. ``{"head.weight": "tied(wte.weight)"}`` requires that two names are one parameter, and
            ``{"*": "declared"}`` that another pattern matches each parameter.

        Raises
        ------
        AssertionError
            With the values found.
        InputError
            For an unknown name or value, and for a pattern that matches no parameter.
        """
        __tracebackhide__ = True
        if failures := self.unmet(*declared, parameters=parameters, **expected):
            raise AssertionError("\n".join(failures))

    def unmet(self, *declared: str, parameters: Mapping[str, str] | None = None, **expected: Any) -> list[str]:
        """Return one sentence per unmet expectation; arguments as for `require`.

        A text such as ``"*.bias=zeros"`` counts as an entry of `parameters`.
        """
        patterns = dict(text.split("=", 1) for text in declared if is_pattern(text))
        duties = {name: expected.pop(name) for name in NAMES if name in expected} | expectations(declared)
        declared = tuple(text for text in declared if not is_pattern(text) and not expectations([text]))
        for text in declared:
            if text.partition("=")[0] in LEVELS:
                expected |= declarations(text, {})
        declared = tuple(text for text in declared if text.partition("=")[0] not in LEVELS)
        lines = [text for result in self.duties if result.name in duties if (text := result.unmet(duties[result.name]))]
        if (declared or expected) and self.not_examined:
            lines.append(f"no attention was read: {self._reasons}" if self.refused else UNRECOGNISED)
        elif (declared or expected.keys() - {"blamed"}) and self.refused:
            lines.append(f"{', '.join(self.refused)}: not read: {self._reasons}")
        errors, questions = (expected.pop(level, True) for level in LEVELS)
        for group in self.attention:
            values = {name: value for name, value in expected.items() if not (group.source and name == "mask")}
            texts = [text for text in declared if not (group.source and text in ("causal", "unmasked"))]
            lines += [f"{group.title}: {sentence}" for sentence in group.inspection.unmet(*texts, **values)]
        initialisers = {**patterns, **checked({} if parameters is None else parameters)}
        lines += unmet_initialisers(initialisers, self.parameters.rows, self.numbers)
        meant = {name for name, value in duties.items() if not value}
        stated = [pattern for pattern, text in initialisers.items() if text != DECLARED]
        confirmed = self.expecting(*declared)._confirmed({*expected, *meant}, stated)
        return [*excluding(confirmed.blamed, errors), *lines, *excluding(confirmed.asked, questions)]

    def expecting(self, *declared: str) -> ModelInspection:
        """Return a copy in which declared conventions are confirmed.

        If the model meets an expectation, the conventions that this expectation declares are no longer in question.
        """
        texts = [text for text in declared if not is_pattern(text) and not expectations([text])]
        meant = {name for name, value in expectations(declared).items() if not value}
        met = [text.partition("=")[0] for text in declared if is_pattern(text) and not self.unmet(text)]
        groups = (dataclasses.replace(group, inspection=group.inspection.expecting(*texts)) for group in self.attention)
        modules = {name: inspection.expecting(*texts) for name, inspection in self.modules.items()}
        return dataclasses.replace(self, attention=tuple(groups), modules=modules)._confirmed(meant, met)

    def _confirmed(self, names: set[str], patterns: Iterable[str]) -> ModelInspection:
        """Return a copy in which declared choices are no longer in question.

        Choices are declared by the expectations `names`, and for parameters whose names match one of `patterns`.
        """
        globs = tuple(patterns)
        rows = {row.name for row in self.parameters if any(fnmatch.fnmatchcase(row.name, pattern) for pattern in globs)}
        groups = (dataclasses.replace(group, inspection=group.inspection.confirmed(names)) for group in self.attention)
        notes = tuple(note.confirmed(names | rows) for note in self.notes)
        duties = tuple(result.confirmed(names | rows) for result in self.duties)
        return dataclasses.replace(self, attention=tuple(groups), notes=notes, duties=duties)

    def _fields(self) -> dict[str, Any]:
        return {
            "model": self.kind,
            "draws": self.draws,
            "verdict": self.verdict,
            "attention": {name: inspection.to_dict() for name, inspection in self.modules.items()},
            "refused": dict(self.refused),
            "duties": {result.name: result.outcome for result in self.duties},
            "parameters": self.parameters.rows,
            "notes": self.all_notes,
        }

    @property
    def headline(self) -> str:
        """Class, attention modules, parameters and draws as text."""
        mixing = not self.modules and {*self.refused.values()} == {WITHOUT_SOFTMAX}
        number = counted(len(self.modules) + len(self.refused), "module" if mixing else "attention module")
        forwards = [group.inspection.forward for group in self.attention]
        if self.refused:
            number += f" ({len(self.modules)} read, {len(self.refused)} not: {self._reasons})"
        elif self.modules and all(f.known and f.mask == "none" for f in forwards):
            number += " without a mask but of padding" if self.padded else " without a mask"
        size = sum(math.prod(row.shape) for row in self.parameters)
        return f"{self.kind}: {number}, {counted(size, 'parameter')}; {counted(self.draws, 'draw')}"

    @property
    def not_examined(self) -> bool:
        """Whether no attention module was inspected, so that the model cannot pass."""
        return not self.modules

    @property
    def examined(self) -> str:
        """The part that the verdict covers, as text; empty if it covers everything."""
        unmeasured = {result.reason for result in self.duties if result.outcome == NOT_EXAMINED}
        if len(unmeasured) == 1 and all(result.reason for result in self.duties):
            where = "those that were read" if self.refused else "attention and parameters"
            return f" in {where}; other properties were not examined ({unmeasured.pop()})"
        return " in those that were read" if self.refused else ""

    @property
    def verdict(self) -> str:
        """The first error, or a statement on what was examined; a model without inspected attention does not pass."""
        if self.blamed or not self.not_examined:
            return super().verdict
        return f"NOT EXAMINED: {self.headline}" + ("" if self.refused else f"; {UNRECOGNISED}")

    @property
    def _reasons(self) -> str:
        return "; ".join(dict.fromkeys(self.refused.values()))

    @property
    def tables(self) -> Mapping[str, list[tuple[str, ...]]]:
        """Tables by title, each a list of rows of text that starts with the heading."""
        attention: list[tuple[str, ...]] = [("", "class", "heads", "forward")]
        for group in self.attention:
            inspection = group.inspection
            heads = f"{inspection.num_heads} of {counted(inspection.head_dim, 'neuron')}"
            heads += f", {inspection.kv_heads} of keys and values" * (inspection.kv_heads != inspection.num_heads)
            forward = str(inspection.forward).partition("; equal")[0]
            source = f"keys and values from {group.source}: " if group.source else ""
            attention.append((group.title, group.kind, heads, source + forward))
        return {"Attention": attention, "Parameters": self.parameters.lines}


def is_pattern(text: str) -> bool:
    """Return whether the text of an expectation concerns parameters.

    Examples
    --------
    >>> is_pattern("*.bias=zeros"), is_pattern("wte.weight=normal(0.02)"), is_pattern("query=normal(0.02)")
    (True, True, False)
    """
    name, equals, _ = text.partition("=")
    return bool(equals) and any(mark in name for mark in ".*/")
