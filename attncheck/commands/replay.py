"""`attncheck replay`: arguments."""

from __future__ import annotations

from pathlib import Path


def replay(record: Path, id: str, /, *, subject: str | None = None, trust: list[str] | None = None) -> int:
    """Reproduce one result of a record, digit for digit.

    Parameters
    ----------
    record
        Record of a run.
    id
        Id of the result, as in the record and in messages: CHECK@LAYER.
    subject
        Test this simulator instead of the recorded one, for example a fixed one.
    trust
        Module that the record may import, such as that of its simulator; otherwise only attncheck's own code runs.
    """
    from attncheck.commands.replaying import replay_result

    return replay_result(record, id, subject, trust or ())
