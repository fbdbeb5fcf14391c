"""`attncheck.check`: the properties as a function call, for notebooks and other test-suites."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from attncheck.attention import AttentionLayer
from attncheck.checks.registry import PROPERTIES
from attncheck.errors import refuse
from attncheck.evidence.ledger import Conclusion
from attncheck.messages import explain
from attncheck.records import Result
from attncheck.run import Run
from attncheck.summary import summarize


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What `check` found: one result per check and layer, and the conclusion over all of them.

    Attributes
    ----------
    run : Run
        Subject, seed, profile and budget.
    results : tuple of Result
        In the order of layers and checks.
    conclusion : Conclusion
        Verdict over all results, with reasons.
    """

    run: Run
    results: tuple[Result, ...]
    conclusion: Conclusion

    @property
    def verdict(self) -> str:
        """Return "consistent", "violated" or "inconclusive"."""
        return self.conclusion.verdict

    @property
    def violated(self) -> tuple[Result, ...]:
        """The violated results."""
        return tuple(result for result in self.results if result.verdict == "violated")

    def messages(self) -> Iterator[str]:
        """Iterate over what is wrong, in words and numbers, one text per property and layer."""
        for unit in dict.fromkeys(result.unit for result in self.violated):
            yield explain([result for result in self.results if result.unit == unit], None)

    def require(self) -> None:
        """Raise AssertionError unless the verdict is consistent."""
        if self.verdict != "consistent":
            raise AssertionError("\n\n".join([*self.conclusion.reasons, *self.messages()]))

    def __str__(self) -> str:
        return "\n\n".join([summarize(self.run, self.results, self.conclusion), *self.messages()])


def check(
    subject: Any,
    layer: AttentionLayer | Iterable[AttentionLayer],
    *,
    properties: str | Iterable[str] = PROPERTIES,
    seed: int = 0,
    profile: str = "default",
    false_alarm: float = 1e-6,
) -> CheckReport:
    """Hold a simulator against the theorem on one or several layers.

    Parameters
    ----------
    subject : callable or str
        ``subject(layer, size, rng)`` or ``subject(layer, inputs, rng)`` returning a mapping of arrays, or
        its name ``module:callable``; see `attncheck.subject.Subject`.
    layer : AttentionLayer or iterable of them
        The layers to examine.
    properties : str or iterable of str
        Which of `attncheck.checks.registry.PROPERTIES`.
    seed : int
        The run seed: the same seed gives the same digits.
    profile : {"smoke", "default", "thorough"}
        What a look may cost.
    false_alarm : float
        Chance that a right simulator is called violated anywhere in this call.

    Returns
    -------
    CheckReport
        Print it, look at its ``results``, or call its ``require()``.

    Raises
    ------
    InputError
        If the subject cannot be called or returns something that cannot be used.

    Examples
    --------
    >>> from attncheck import AttentionLayer
    >>> layer = AttentionLayer(width=8, seq_len=2, num_heads=1)
    >>> report = check("attncheck.subject:collapsed", layer, properties=["scores"], profile="smoke")
    >>> report.verdict
    'consistent'
    """
    layers, names = _listed(layer), _listed(properties)
    for each in layers:
        if not isinstance(each, AttentionLayer):
            refuse("layer", each, "is not an AttentionLayer", "pass attncheck.AttentionLayer(width=...)")
    run = Run.of(subject=subject, seed=seed, profile=profile, false_alarm=false_alarm, record=None)
    units = [unit for name in dict.fromkeys(names) for unit in run.units_on(name, layers)]
    if not units:
        refuse("layer", layers, "leaves nothing to examine", "pass at least one layer and one property")
    run = run.settled([unit.id for unit in units])
    results = tuple(
        msgspec.convert(fields, Result) for unit in units for fields in run.examine(unit.property_name, unit.layer)[0]
    )
    return CheckReport(run, results, run.conclude(results))


def _listed(value: Any) -> list[Any]:
    """Return what is to be iterated over as a list, and a single thing as a list of one."""
    single = isinstance(value, str | AttentionLayer | Mapping) or not isinstance(value, Iterable)
    return [value] if single else list(value)
