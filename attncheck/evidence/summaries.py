"""A few numbers that stand for a sample and add up with those of others; `attncheck.evidence.pools` does so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scipy import special

from attncheck._lib.errors import check_choice, check_number, check_whole, refuse

#: What the effect of a score may be.
UNITS = ("ratio", "size", "deviation", "shift", "excess")


@dataclass(frozen=True)
class NormalScore:
    """A statistic as a standard normal number.

    Parameters
    ----------
    z : float
        N(0, 1) where the null holds, or stochastically smaller where `one_sided`.
    information : float
        Inverse of the squared error of the effect that it estimates: that effect is z/√information.
    item : {"ratio", "size", "deviation", "shift", "excess"}
        What the effect is: the logarithm of a ratio that the statistic estimates, or of the sizes of what is compared;
        a deviation in the statistic's own unit; a shift in standard deviations; or, of a statistic that is never
        negative, the score itself, of which only large values speak against the null.
    bias : float
        What the null may move the mean of z by at most.

    Raises
    ------
    InputError
        If a number is not finite, or negative where it cannot be, or the unit is another one.

    Examples
    --------
    >>> NormalScore(z=2.0, information=100.0).effect
    0.2
    """

    z: float
    information: float
    unit: str = "deviation"
    bias: float = 0.0

    def __post_init__(self) -> None:
        remedy = "pass finite numbers, as the families do"
        object.__setattr__(self, "z", check_number("z", self.z, remedy))
        for name in ("information", "bias"):
            object.__setattr__(self, name, check_number(name, getattr(self, name), remedy, minimum=0.0))
        check_choice("unit", self.unit, UNITS)

    @property
    def one_sided(self) -> bool:
        """Whether only large values speak against the null."""
        return self.unit == "excess"

    @property
    def effect(self) -> float:
        """The effect that it estimates; 0 where it holds no information."""
        return self.z / self.information**0.5 if self.information else 0.0


@dataclass(frozen=True)
class Events:
    """How often something of known chance happened.

    Parameters
    ----------
    events, trials : int
    probability : float
        Chance in one trial where the null holds.
    one_sided : bool
        Whether only too many speak against the null.

    Raises
    ------
    InputError
        If a number lies outside its range.

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
        trials = check_whole("trials", self.trials, 1, "pass the number of independent trials")
        if check_whole("events", self.events, 0, "pass a number of events") > trials:
            refuse(
                "events", self.events, f"must not exceed the {trials} trials", "pass events and trials of one sample"
            )
        remedy = "pass the chance of the event in one trial"
        check_number("probability", self.probability, remedy, minimum=0.0, maximum=1.0)


#: What a look leaves of a statistic.
Summary = NormalScore | Events

# The smallest chance that a normal score is made of.
_LEAST = 1e-300


def normal_score(below: float, above: float) -> float:
    """Return the normal number that has these chances on its two sides.

    Parameters
    ----------
    below, above : float
        Chances of a smaller and of a larger value; each exact where it is small.

    Examples
    --------
    >>> round(normal_score(0.975, 0.025), 2), round(normal_score(1e-20, 1.0), 2)
    (1.96, -9.26)
    """
    if below <= above:
        return float(special.ndtri(max(below, _LEAST)))
    return -float(special.ndtri(max(above, _LEAST)))


def to_record(summary: Summary) -> dict[str, Any]:
    """Return a summary in built-in types.

    Examples
    --------
    >>> from_record(to_record(Events(1, 100, 0.5))) == Events(1, 100, 0.5)
    True
    """
    return asdict(summary)


def from_record(fields: Mapping[str, Any]) -> Summary:
    """Return the summary of a record.

    Raises
    ------
    InputError
        If the fields are not those of a summary.
    """
    kind = Events if "trials" in fields else NormalScore
    try:
        return kind(**fields)
    except TypeError:
        refuse("summary", dict(fields), "is not one that this version writes", "make the record again")
