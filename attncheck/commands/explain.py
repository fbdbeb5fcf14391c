"""`attncheck explain`: arguments."""

from __future__ import annotations


def explain(name: str | None = None, /, *, checks: list[str] | None = None) -> int:
    """Explain a claim, check, known-wrong simulator or statement of the theory.

    Parameters
    ----------
    name
        Claim, property, check, known-wrong simulator, statement of the theory or group of statements; "faults" lists
        all known-wrong simulators. Default: list all claims.
    checks
        Module that registers further checks; can be repeated.
    """
    from attncheck.checks.registered import load_checks
    from attncheck.commands.explanation import print_explanation

    load_checks(checks or ())
    return print_explanation(name)
