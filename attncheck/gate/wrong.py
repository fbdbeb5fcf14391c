"""Description of a violated run: cause, numbers, smallest layer and replay command, as in its summary."""

from __future__ import annotations

from attncheck.evidence.verdicts import Verdict
from attncheck.records.run_record import RunRecord
from attncheck.records.tallies import tallied
from attncheck.records.text import replay_command


def wrong_with(run: RunRecord) -> tuple[tuple[str, str], ...]:
    """Return (label, text) pairs, "cause" first; empty where the subject has no violation."""
    if not run.count(Verdict.VIOLATED):
        return ()
    from attncheck.runs.summary import wrong_in  # a late import, as it is rarely needed

    single = any(tally.verdicts[Verdict.VIOLATED] for tally in run.tallies.values())
    causes = () if run.closing is None else run.closing.causes
    told = wrong_in(
        run.tallies if single else tallied(run.pools),
        lambda id: replay_command(run.path, id, run.manifest.subject, run.manifest.checks),
        causes,
    )
    return tuple(told)
