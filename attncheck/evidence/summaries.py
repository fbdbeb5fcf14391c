"""Summaries of samples for pooling; see `attncheck.evidence.pools`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scipy import special

from attncheck._lib.errors import check_choice, check_integer, check_number, refuse, validate

#: Kinds of effect of a `NormalScore`.
UNITS = ("ratio", "size", "deviation", "shift", "excess")


@dataclass(frozen=True)
class NormalScore:
    """Test statistic, expressed as a standard normal score.

    Parameters
    ----------
    z : float
        N(0, 1) under the null, or stochastically smaller if `one_sided`.
    information : float
        Inverse squared error of the estimated effect z/√information.
    unit : {"ratio", "size", "deviation", "shift", "excess"}
        Kind of effect. "ratio": logarithm of an estimated ratio. "size": logarithm of the factor between two compared
        sizes. "deviation": deviation in the statistic's unit. "shift": shift in standard deviations. "excess": score
        that is suspicious only if it is large.
    bias : float
        Largest absolute mean of z under the null.

    Examples
    --------
    >>> NormalScore(z=2.0, information=100.0).one_sided
    False
    """

    z: float
    information: float
    unit: str = "deviation"
    bias: float = 0.0

    def __post_init__(self) -> None:
        remedy = "pass finite numbers, as the families do"
        validate(self, "z", check_number, remedy)
        for name in ("information", "bias"):
            validate(self, name, check_number, remedy, minimum=0.0)
        check_choice("unit", self.unit, UNITS)

    @property
    def one_sided(self) -> bool:
        """Whether only large values are evidence against the null."""
        return self.unit == "excess"


@dataclass(frozen=True)
class Events:
    """Number of events in trials, with known probability under the null; if `one_sided`, only an excess is suspicious.

    Examples
    --------
    >>> Events(events=3, trials=1000, probability=0.001).events
    3
    """

    events: int
    trials: int
    probability: float
    one_sided: bool = True

    def __post_init__(self) -> None:
        trials = check_integer("trials", self.trials, 1, "pass the number of independent trials")
        if check_integer("events", self.events, 0, "pass a number of events") > trials:
            refuse(
                "events", self.events, f"must not exceed the {trials} trials", "pass events and trials of one sample"
            )
        remedy = "pass the chance of the event in one trial"
        check_number("probability", self.probability, remedy, minimum=0.0, maximum=1.0)


#: Summary of a statistic after a look.
Summary = NormalScore | Events

# Smallest chance converted to a normal score.
_LEAST = 1e-300


def normal_score(below: float, above: float) -> float:
    """Return the normal quantile whose lower and upper tails are `below` and `above`, computed from the smaller one.

    Examples
    --------
    >>> round(normal_score(0.975, 0.025), 2), round(normal_score(1e-20, 1.0), 2)
    (1.96, -9.26)
    """
    if below <= above:
        return float(special.ndtri(max(below, _LEAST)))
    return -float(special.ndtri(max(above, _LEAST)))


def to_record(summary: Summary) -> dict[str, Any]:
    """Return the fields of a summary as built-in types.

    Examples
    --------
    >>> from_record(to_record(Events(1, 100, 0.5))) == Events(1, 100, 0.5)
    True
    """
    return asdict(summary)


def from_record(fields: Mapping[str, Any]) -> Summary:
    """Rebuild a summary from its fields in a record.

    Raises
    ------
    InputError
        If the fields are not those of a summary.
    """
    kind = Events if "trials" in fields else NormalScore
    try:
        return kind(**fields)
    except TypeError:
        refuse("summary", dict(fields), "has missing or unknown fields", "make the record again")
