"""The two domains of properties: layers and programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attncheck.checks.check import Setting
from attncheck.checks.programs import RATE_PROPERTIES
from attncheck.checks.programs.functionals import ProgramReference
from attncheck.checks.reference import LiteralReference, Reference
from attncheck.checks.registry import PROGRAM_PROPERTIES, PROPERTIES
from attncheck.checks.sample import Sample
from attncheck.layers.case import EXACT_WIDTHS, RATE_WIDTHS, Case
from attncheck.layers.program import Program, ProgramCase
from attncheck.looks.examples import random_layers, random_programs
from attncheck.looks.profiles import Profile
from attncheck.programs import EXAMPLES

AnyReference = Reference | ProgramReference


@dataclasses.dataclass(frozen=True)
class Domain:
    """A kind of case (layer or program), with the functions that are specific to it.

    Attributes
    ----------
    kind : str
    properties : tuple of str
    reference : callable
        ``reference(setting, sample, seed, wanted, blocks)`` returns the reference draws of a look.
    fixed : callable
        ``fixed(name, profile)`` returns the fixed cases of a property.
    random : callable
        ``random(name, profile, seed)`` returns those random cases of a run on which a property is tested.
    """

    kind: str
    properties: tuple[str, ...]
    reference: Callable[[Any, Any, np.random.SeedSequence, frozenset[str], Mapping[str, int]], AnyReference]
    fixed: Callable[[str, Profile], Sequence[Case]]
    random: Callable[[str, Profile, int], Sequence[Case]]


def widths_of(name: str) -> tuple[int, ...]:
    """Return the widths at which a property of programs is tested."""
    return RATE_WIDTHS if name in RATE_PROPERTIES else EXACT_WIDTHS


def fixed_programs(name: str) -> list[ProgramCase]:
    """Return the example programs that suit a property, at its widths; those with scores come first."""
    cases = [ProgramCase.of(write(), widths_of(name)) for write in EXAMPLES.values()]
    with_scores = [case for case in cases if case.scores]
    about_scores = name in ("program_scores", "theorem1")
    return with_scores if about_scores else with_scores + [case for case in cases if not case.scores]


def _random_programs(name: str, profile: Profile, seed: int) -> list[ProgramCase]:
    """Return the random programs that suit a property, at its widths."""
    drawn = random_programs(profile.program_examples, seed)
    # Fact 1 concerns programs without scores; all other properties except netsor need scores.
    suited = [case for case in drawn if name == "netsor" or bool(case.scores) != (name == "fact1")]
    return [ProgramCase.of(case.program, widths_of(name)) for case in suited]


def _layer_reference(
    setting: Setting,
    sample: Sample,
    seed: np.random.SeedSequence,
    functionals: frozenset[str],
    blocks: Mapping[str, int],
) -> Reference:
    arguments = (setting.layer, len(sample), setting.coordinates, seed, functionals)
    if setting.weights.gaussian:
        return Reference(*arguments, draw_on=setting.draw_on)
    return LiteralReference(*arguments, draw_on=setting.draw_on, laws=setting.weights, like=sample, blocks=blocks)


LAYERS = Domain(
    "layer",
    PROPERTIES,
    _layer_reference,
    lambda name, profile: profile.layers,
    lambda name, profile, seed: random_layers(profile.examples, seed, profile.layers),
)
PROGRAMS = Domain(
    "program",
    PROGRAM_PROPERTIES,
    lambda setting, sample, seed, functionals, blocks: ProgramReference(
        setting.case, len(sample), setting.coordinates, seed, functionals
    ),
    lambda name, profile: fixed_programs(name)[: profile.fixed_programs],
    _random_programs,
)


def domain_of(name: str) -> Domain:
    """Return the domain of a property, `LAYERS` or `PROGRAMS`.

    Examples
    --------
    >>> domain_of("scores").kind, domain_of("netsor").kind
    ('layer', 'program')
    """
    return PROGRAMS if name in PROGRAMS.properties else LAYERS


def case_of(name: str, description: Any, width: int) -> Case:
    """Return a layer as it is, or a program as a case.

    The case is at `width`, or at several widths if the property needs them.
    """
    if not isinstance(description, Program):
        case: Case = description
        return case
    widths = widths_of(name)
    return ProgramCase.of(description, (width,) if widths == EXACT_WIDTHS else widths)
