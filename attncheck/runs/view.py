"""View of a run, computed from its record, for the terminal, the HTML page, the gate and JSON."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from functools import cached_property

from attncheck._lib.text import chance, counted, listed
from attncheck.checks.claims import CLAIMS
from attncheck.checks.declared import DRAWS
from attncheck.diagnosis.causes import diagnosed, hints, most_informative, sharpest_first
from attncheck.evidence.verdicts import Verdict
from attncheck.layers.features import FEATURES, features_of
from attncheck.layers.names import layer_name
from attncheck.layers.parts import PARTS
from attncheck.records.explanation import Certainty, Explanation
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result, case_key, case_label, of_pool
from attncheck.records.tallies import Tally, layers_of
from attncheck.records.text import missing_fields, replay_command, unexamined
from attncheck.runs.details import mdes, not_detected, of_cases

#: Last line of the summary of a consistent run.
NOT_PROVED = (
    "Not ruled out: smaller errors, and anything that no check examines; see 'What a green run proves, and what it "
    "does not' in the README."
)
#: Labels of explanations: of the first one, of further ones, and of hints, which no comparison has confirmed.
EXPLAINING = ("cause", "or", "hint")
# Maximum numbers of displayed sentences of a diagnosis, minimum detectable effects, and violated pools.
_OBSERVED, _MDES, _POOLS = 3, 3, 3


@dataclasses.dataclass(frozen=True, eq=False)
class RunView:
    """View of a run, for display; its verdict is never better than the recorded one.

    `call` is the Python call that repeats a run without a record.
    """

    run: RunRecord
    call: str = ""

    @property
    def verdict(self) -> str:
        """The verdict of the run."""
        return self.run.conclusion.verdict

    @property
    def sentence(self) -> str:
        """The verdict in a sentence with its scope, the numbers of results, and the false-alarm budget."""
        return self.sentence_on(self.verdict)

    def sentence_on(self, verdict: str) -> str:
        """Return `sentence` with another verdict, for instance after a comparison with a baseline."""
        run, bad = self.run, self.run.count(Verdict.VIOLATED)
        pools = sum(bool(pool.p_values) for pool in run.pools)
        fields, count = missing_fields(self._reasons)
        return (
            f"{run.scope.beside(verdict)}: {run.manifest.subject}, "
            f"{f'{bad:,} violated, ' if bad else ''}{run.examined:,} of {counted(len(run.planned), 'planned result')} "
            f"examined on {self._extent}{f', plus {pools:,} pooled over cases' if pools else ''}"
            f"{f' ({count:,} more need {fields})' if fields else ''}; false-alarm "
            f"probability set to {run.manifest.false_alarm:g} before the run."
        )

    @property
    def _extent(self) -> str:
        claims = len({tally.claim for tally in self.run.tallies.values() if tally.examined})
        return f"{counted(claims, 'claim')} and {counted(len(self.run.space.cases), 'case')}"

    @cached_property
    def reasons(self) -> list[str]:
        """Reasons why the run does not pass, other than violated results, which `lines` explains."""
        findings = self.run.conclusion.findings
        return [finding.text for finding in findings if not (self.failures and finding.verdict == Verdict.VIOLATED)]

    @cached_property
    def failures(self) -> list[Tally]:
        """The violated checks, or the violated pools if no single case is violated.

        Those of the first violated stage of the computation come first.
        """
        return sharpest_first(self.violations)

    @cached_property
    def violations(self) -> dict[str, Tally]:
        """Results on single cases, by check; pools are included if no single result is violated."""
        return dict(most_informative(self.run.every))

    @cached_property
    def explanations(self) -> list[Explanation]:
        """Explanations in the record or, if it has none, the hints of the violated checks."""
        closing = self.run.closing
        return list(closing.explanations if closing else ()) or hints(self.violations)

    @cached_property
    def observed(self) -> list[str]:
        """Sentences on estimates that differ from the declaration."""
        result = diagnosed(self.violations)
        # Intervals of estimates assume independent draws.
        is_dependent = any(explanation.stage == DRAWS for explanation in self.explanations)
        return result.diagnosis[:_OBSERVED] if result and not is_dependent else []

    @property
    def smallest(self) -> Result:
        """The violated result on the smallest case, of the first violated check."""
        return self.failures[0].smallest or self.failures[0].worst[0]

    @cached_property
    def headline(self) -> str:
        """The verdict in words: for a violated run with the cause and a number, for a pass with its evidence."""
        run, subject = self.run, self.run.manifest.subject
        if self.verdict == "consistent":
            scope = f"{run.scope.words.capitalize()}: " if run.scope.words else ""
            extent = f"{counted(run.examined, 'result')} on {self._extent}"
            return f"{scope}{subject} behaves as the theorem says, as far as {extent} can show."
        if self.verdict == "violated":
            return f"{subject} departs from the theorem: {self._first_cause}."
        why = self.run.closing.failed[0] if self.run.closing and self.run.closing.failed else ""
        return f"The run on {subject} is {self.verdict}, which is not a pass{f': {why}' if why else ''}."

    @property
    def _first_cause(self) -> str:
        """The first explanation, followed by a measured number unless the explanation names the measured quantity."""
        if not self.failures:
            return next(finding.text for finding in self.run.conclusion.findings if finding.verdict == Verdict.VIOLATED)
        cause, number = str(self.explanations[0]), (self.observed or [self.smallest.text])[0]
        quantity = "".join(itertools.takewhile(lambda letter: not letter.isdigit(), number)).strip(" -")
        if quantity in cause:
            return cause
        return f"{cause} {number[:1].upper()}{number[1:]}" if cause.endswith("?") else f"{cause}; {number}"

    @cached_property
    def lines(self) -> list[tuple[str, str]]:
        """Labels with texts about a violated run: causes, numbers, the smallest violated case, and a replay command."""
        if not self.failures:
            return []
        leading, smallest = self.failures[0], self.smallest
        count = leading.verdicts[Verdict.VIOLATED]
        alone = f"{count} of {of_cases(leading.examined, leading.name)}{self._features_of(leading.claim)}"
        where = "several cases pooled, on none of them alone" if of_pool(smallest) else alone
        first = f"{leading.name} on {where}: {smallest.text}; p = {', '.join(map(chance, smallest.p_values))}"
        which = ", the smallest of them" if count > 1 else ""
        pairs = [
            *((_label(index, explanation), str(explanation)) for index, explanation in enumerate(self.explanations)),
            *(("observed", text) for text in self.observed if text not in map(str, self.explanations)),
            ("first", first),
            (case_label(smallest), f"{layer_name(smallest.case)}{which}"),
            ("replay", self.replay(smallest)),
        ]
        return [(label, text) for label, text in pairs if text]

    def replay(self, result: Result) -> str:
        """Return the command that repeats a result."""
        path, head = self.run.part_of(result.id).path, self.run.manifest
        return replay_command(path, result.id, head.subject, head.checks) if path else self.call

    def _features_of(self, claim: str) -> str:
        """Return, as text, the features that all layers violating a claim have and that no other layer has."""
        examined = [result for result in self.run.results if result.claim == claim and result.p_values]
        bad = layers_of(result for result in examined if result.verdict == Verdict.VIOLATED)
        good = [layer for layer in layers_of(examined) if layer not in bad]
        if not bad or not good:
            return ""
        shared = set.intersection(*(set(features_of(layer)) for layer in bad)).difference(*map(features_of, good))
        return f"; only with {listed(name for name in FEATURES if name in shared)}" if shared else ""

    @cached_property
    def failed(self) -> str:
        """The first error of the subject and the number of its other errors, as text."""
        errors = self.run.closing.failed if self.run.closing else []
        return f"{errors[0]}{f' (and {len(errors) - 1} more like it)' if len(errors) > 1 else ''}" if errors else ""

    @cached_property
    def unrepeatable(self) -> str:
        """A sentence that draws depend on more than the generator, or an empty string."""
        cases = {case_key(result): result.case for result in self.run.results if not result.repeatable}
        if not cases:
            return ""
        on = layer_name(next(iter(cases.values()))) + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
        cause = f"equal generators gave different digits on {on}; draw all random numbers from rng"
        return f"not reproducible: {cause}. This run has no digest."

    @cached_property
    def pooled(self) -> list[str]:
        """A line on the pools, and one per violated pool."""
        examined = [pool for pool in self.run.pools if pool.p_values]
        if not examined:
            return []
        counts = Counter(pool.verdict for pool in examined)
        why = {Verdict.EXPLAINED: " by violated cases"}
        texts = [f"{counts[verdict]:,} {verdict}{why.get(verdict, '')}" for verdict in Verdict if counts[verdict]]
        least = min(examined, key=lambda pool: pool.p_values[0])
        count = f"{counted(len(examined), 'check')} of several cases together"
        lines = [f"Pooled: {count}, {', '.join(texts)}; smallest p-value {chance(least.p_values[0])} ({least.id})"]
        return lines + [f"  {p.id}: {p.text}" for p in examined if p.verdict == Verdict.VIOLATED][:_POOLS]

    @cached_property
    def remedies(self) -> list[str]:
        """Lines on results that were not examined, with remedies."""
        return unexamined(self._reasons)

    @cached_property
    def _reasons(self) -> dict[str, int]:
        """Numbers of results that were not examined, by reason."""
        reasons = sum((tally.reasons for tally in self.run.tallies.values()), Counter[str]())
        return dict(sorted(reasons.items()))

    @cached_property
    def unexamined_checks(self) -> dict[str, list[str]]:
        """Names of the checks that were examined on no case, by their most informative reason."""
        return not_detected(self.run.results)

    @cached_property
    def unexamined_claims(self) -> list[str]:
        """Claims without an examined result."""
        examined = {tally.claim for tally in self.run.tallies.values() if tally.examined}
        return [name for name in CLAIMS if name not in examined]

    @cached_property
    def detectable(self) -> list[str]:
        """Lines with the smallest errors that a consistent run would have detected, and with what it does not prove."""
        if self.verdict != "consistent" or not self.run.planned:
            return []
        layers = layers_of(result for result in self.run.results if result.p_values)
        absent = [part.name for part in PARTS if not any(map(part.present, layers))]
        untested = [f"No tested layer has: {', '.join(absent)}"] if layers and absent else []
        return [*mdes(self.run.results, self.run.pools)[:_MDES], *untested, NOT_PROVED]


def _label(index: int, explanation: Explanation) -> str:
    cause, other, hint = EXPLAINING
    if explanation.certainty == Certainty.HINTED:
        return hint
    return other if index else cause
