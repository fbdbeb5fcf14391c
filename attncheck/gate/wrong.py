"""What is wrong with a violated run, as its own summary has it: cause, number, smallest layer, how to repeat it."""

from __future__ import annotations

from attncheck.evidence.verdicts import Verdict
from attncheck.gate.record_table import RecordTable
from attncheck.records.gather import gather, tallied
from attncheck.records.words import replay_command


def wrong_with(run: RecordTable) -> tuple[tuple[str, str], ...]:
    """Return pairs of a word, the first one "cause", and what it is; empty where nothing of the subject is violated."""
    if not run.having(Verdict.VIOLATED).any():
        return ()
    from attncheck.runs.summary import wrong_in  # most runs need none of it

    found = gather(run.path)
    single = any(tally.verdicts[Verdict.VIOLATED] for tally in found.tallies.values())
    causes = () if run.closing is None else run.closing.causes
    told = wrong_in(
        found.tallies if single else tallied(found.pools),
        lambda id: replay_command(run.path, id, run.head.subject),
        causes,
    )
    return tuple(told)
