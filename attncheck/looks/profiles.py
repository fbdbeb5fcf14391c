"""Profiles: the number of cases of a run and the cost limit of a look."""

from __future__ import annotations

import dataclasses

from attncheck._lib.errors import check_choice
from attncheck.evidence.looks import Budget
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.regimes import CAUSAL, EIGHT_HEADS, NARROW, ONE_POSITION, REGIMES, STANDARD, TWO_NEURONS, WIDE
from attncheck.looks.plan import Cost

#: Layers that reveal faults well: a standard and a narrow one, one with a single position, a causal one with groups of
#: heads, the same with two neurons (whose scores and outputs reveal shared matrices), one with many heads, and a wide
#: one.
ANCHORS: tuple[AttentionLayer, ...] = (
    STANDARD,
    NARROW,
    ONE_POSITION,
    CAUSAL,
    TWO_NEURONS,
    EIGHT_HEADS,
    WIDE,
)
#: One layer for each regime of the theory that no layer of `ANCHORS` is in.
REGIME_ANCHORS: tuple[AttentionLayer, ...] = tuple(
    dict.fromkeys(layer for layer in REGIMES.values() if layer not in ANCHORS)
)


@dataclasses.dataclass(frozen=True)
class Profile:
    """Size and cost of a run.

    Attributes
    ----------
    name : str
    fixed_cases : int
        Number of layers of `ANCHORS`.
    regimes : int
        Number of layers of `REGIME_ANCHORS`.
    examples : int
        Number of random layers.
    fixed_programs : int
        Number of programs of `attncheck.programs.EXAMPLES`.
    program_examples : int
        Number of random programs.
    program_entries : int
        Maximum number of weight entries of a look at one program: its number of draws times its `weight_entries`.
    entries : int
        Maximum number of weight entries of a look at one layer.
    most_draws : int
        Maximum number of draws of a look.
    power : float
        Planned power at the alternative of a check.
    parts : bool
        Whether a subject that declares which layers it supports is also tested on layers with optional parts, such as
        a window, one part per layer.
    fewest_draws : int
        Number of draws that a look may always take, even if they have more than `entries` weight entries.
    """

    name: str
    fixed_cases: int
    regimes: int
    examples: int
    entries: int
    most_draws: int
    power: float = 0.99
    parts: bool = True
    fewest_draws: int = 0
    fixed_programs: int = 9
    program_examples: int = 6
    program_entries: int = 160_000_000

    @property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """The fixed layers on which every property of layers is tested."""
        return ANCHORS[: self.fixed_cases] + REGIME_ANCHORS[: self.regimes]

    def affordable(self, case: Case) -> int:
        """Return the maximum number of draws of one look at `case`."""
        entries = self.program_entries if case.kind == "program" else self.entries
        return max(1, self.fewest_draws, min(self.most_draws, entries // case.weight_entries))

    def cost(self, case: Case, budget: Budget | None = None) -> Cost:
        """Return the limits of looks at `case`; without a budget, the default one applies."""
        return Cost(self.affordable(case), (budget or Budget()).level(), self.power)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "smoke",
            fixed_cases=5,
            regimes=0,
            examples=3,
            entries=20_000_000,
            most_draws=6_000,
            power=0.9,
            parts=False,
            fixed_programs=2,
            program_examples=2,
            program_entries=20_000_000,
        ),
        Profile("default", fixed_cases=7, regimes=8, examples=6, entries=150_000_000, most_draws=20_000),
        Profile(
            "thorough",
            fixed_cases=7,
            regimes=8,
            examples=50,
            entries=300_000_000,
            most_draws=60_000,
            fewest_draws=3_000,
            program_examples=20,
            program_entries=300_000_000,
        ),
    )
}


def profile_named(name: str) -> Profile:
    """Return a profile by name; raises InputError if there is none."""
    return PROFILES[check_choice("profile", name, tuple(PROFILES))]
