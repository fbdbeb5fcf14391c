"""Public names of ``attncheck.checks``, for checks in other packages."""

from __future__ import annotations

from attncheck.checks.check import Alternative, Check, Setting
from attncheck.checks.reference import Reference
from attncheck.checks.registration import register
from attncheck.checks.sample import Sample
from attncheck.evidence.families import Count, Scale, TwoSample, Uniform
from attncheck.evidence.family import Family
from attncheck.layers.requirements import OfLayer

__all__ = [
    "Alternative",
    "Check",
    "Count",
    "Family",
    "OfLayer",
    "Reference",
    "Sample",
    "Scale",
    "Setting",
    "TwoSample",
    "Uniform",
    "register",
]
