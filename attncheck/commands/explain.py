"""`attncheck explain`: arguments."""

from __future__ import annotations

from attncheck._lib.exit_codes import ExitCode


def explain(name: str | None = None, /, *, checks: list[str] | None = None) -> int:
    """Explain a claim, check or known-wrong simulator.

    Parameters
    ----------
    name
        Claim, property, check or known-wrong simulator; "faults" lists all known-wrong simulators. Default: list all
        claims.
    checks
        Module that registers further checks; can be repeated.
    """
    from attncheck.checks.registered import load_checks
    from attncheck.commands.explanation import explanation, overview

    load_checks(checks or ())
    print("\n".join(overview() if name is None else explanation(name)))
    return ExitCode.CONSISTENT
