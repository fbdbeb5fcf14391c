"""`attncheck explain`: its arguments."""

from __future__ import annotations


def explain(name: str | None = None, /) -> int:
    """Say what a claim states, which checks examine it, and what they cannot see; or what a fault is.

    Parameters
    ----------
    name
        A claim, a property, a check, a known-wrong simulator, a statement of the theory or a group of these; without
        it, all claims are listed, and with "faults" all known-wrong simulators.
    """
    from attncheck.commands.explanation import print_explanation

    return print_explanation(name)
