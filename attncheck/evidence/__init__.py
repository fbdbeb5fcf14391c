"""Evidence within a false-alarm budget: families of tests, looks, verdicts and the ledger of a run.

`Evidence` and the families are imported on first use. Arguments that are out of range, not finite or of wrong shape
raise `InputError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.evidence.assertions import Evidence
    from attncheck.evidence.families import Association, Count, Scale, Smooth, TwoSample, Uniform

__all__ = ["Association", "Count", "Evidence", "Scale", "Smooth", "TwoSample", "Uniform"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'attncheck.evidence' has no attribute {name!r}")
    from attncheck.evidence import assertions, families

    return getattr(assertions if name == "Evidence" else families, name)
