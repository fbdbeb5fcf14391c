"""`attncheck replay`: its arguments."""

from __future__ import annotations

from pathlib import Path


def replay(record: Path, id: str, /, *, subject: str | None = None, trust: list[str] | None = None) -> int:
    """Repeat one result of a record, to the digit.

    Parameters
    ----------
    record
        A run record.
    id
        The result, as it is written in the record and in messages: CHECK@LAYER.
    subject
        Examine this simulator instead of the recorded one, a mended one for example.
    trust
        A module that the record may import, such as that of its simulator; else it runs no code but attncheck's own.
    """
    from attncheck.commands.replaying import replay_result

    return replay_result(record, id, subject, trust or ())
