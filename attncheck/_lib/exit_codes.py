"""Exit codes of the command line, the same for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command.

    Examples
    --------
    >>> int(ExitCode.of("inconclusive"))
    3
    """

    CONSISTENT = 0
    VIOLATED = 1
    UNUSABLE = 2
    INCONCLUSIVE = 3
    INCOMPLETE = 4
    INTERRUPTED = 130

    @classmethod
    def of(cls, verdict: str) -> ExitCode:
        """Return the exit code of a verdict; "not examined" and "explained" count as inconclusive."""
        return cls.INCONCLUSIVE if verdict in ("not examined", "explained") else cls[verdict.upper()]
