"""Profiles: how many layers a run visits and what a look may cost, fixed before the run."""

from __future__ import annotations

import dataclasses

from attncheck._lib.errors import check_choice
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.case import Case
from attncheck.layers.regimes import REGIMES

#: Layers in which faults show best: more positions than width, tiny, paper-like, wide, and one number.
ANCHORS: tuple[AttentionLayer, ...] = (
    REGIMES["standard"].layer,
    AttentionLayer(width=8, seq_len=4, num_heads=2),
    REGIMES["one position"].layer,
    REGIMES["causal"].layer,
    AttentionLayer(width=16, seq_len=12, num_heads=16),
    AttentionLayer(width=256, seq_len=4, num_heads=2),
)
#: One layer of each regime that none of these is of.
REGIME_ANCHORS: tuple[AttentionLayer, ...] = tuple(
    dict.fromkeys(regime.layer for regime in REGIMES.values() if regime.layer not in ANCHORS)
)


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a run does, in numbers that are fixed before it.

    Attributes
    ----------
    name : str
    fixed_cases : int
        How many of `ANCHORS` every property of layers visits.
    regimes : int
        How many of `REGIME_ANCHORS` it visits after these.
    examples : int
        Random layers per property; a hard cap.
    fixed_programs, program_examples : int
        The same for properties of programs: of `attncheck.programs.EXAMPLES`, and random ones.
    program_entries : int
        Weight entries that a look on one program may draw.
    drawn : int
        Random layers or stacks of a test of its own.
    entries : int
        Weight entries that a look of one property on one layer may draw: the draws are this over
        the layer's `weight_entries`.
    most_draws : int
        Draws that a look may take, however cheap.
    power : float
        Chance of a violated verdict that sizes are planned for.
    draws : int or None
        Draws that the first looks of a whole run may take, shared out evenly over its cases whatever they
        cost; None where only cost bounds them.
    """

    name: str
    fixed_cases: int
    regimes: int
    examples: int
    entries: int
    most_draws: int
    power: float = 0.99
    draws: int | None = None
    fixed_programs: int = 9
    program_examples: int = 6
    program_entries: int = 150_000_000
    drawn: int = 4

    @property
    def layers(self) -> tuple[AttentionLayer, ...]:
        """The layers that every property of layers visits, whatever the seed."""
        return ANCHORS[: self.fixed_cases] + REGIME_ANCHORS[: self.regimes]

    def affordable(self, case: Case) -> int:
        """Return the draws that one look on `case` may take."""
        entries = self.program_entries if case.kind == "program" else self.entries
        return max(1, min(self.most_draws, entries // case.weight_entries))


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "smoke",
            fixed_cases=4,
            regimes=0,
            examples=4,
            entries=20_000_000,
            most_draws=6_000,
            power=0.9,
            fixed_programs=2,
            program_examples=2,
            program_entries=20_000_000,
            drawn=4,
        ),
        Profile("default", fixed_cases=6, regimes=8, examples=13, entries=300_000_000, most_draws=20_000),
        Profile(
            "thorough",
            fixed_cases=6,
            regimes=8,
            examples=40,
            entries=300_000_000,
            most_draws=60_000,
            draws=2_000_000,
            program_examples=20,
            program_entries=300_000_000,
            drawn=20,
        ),
    )
}


def profile_named(name: str) -> Profile:
    """Return a profile by name.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    return PROFILES[check_choice("profile", name, tuple(PROFILES))]
