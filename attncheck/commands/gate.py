"""`attncheck gate`: arguments, and what it prints and writes."""

from __future__ import annotations

from pathlib import Path


def gate(
    run: Path,
    /,
    *,
    baseline: Path,
    junit: Path | None = None,
    summary: Path | None = None,
    json: Path | None = None,
    badge: Path | None = None,
    annotations: bool = False,
    false_alarm: float | None = None,
    write_baseline: bool = False,
    history: Path | None = None,
    key: str | None = None,
) -> int:
    """Decide whether a run passes: complete, not violated, and no worse than a baseline.

    Parameters
    ----------
    run
        Record of the run.
    baseline
        Baseline written by --write-baseline, or any record. If it does not exist, the gate fails and writes
        BASELINE.candidate.
    junit
        Write JUnit XML to this path.
    summary
        Write a Markdown summary to this path.
    json
        Write all findings as JSON to this path.
    badge
        Write shields.io badge data to this path.
    annotations
        Print GitHub Actions annotations.
    false_alarm
        Probability of reporting drift if nothing changed; default: the budget of the run.
    write_baseline
        Make the run the baseline if it passes by itself, without comparison. The suffix .xz compresses it.
    history
        Add the run to this file if it passes, and fail if the runs together show drift.
    key
        Name of the run in the history; default: the commit in the record, GITHUB_SHA, git HEAD, or the run's time.
    """
    from attncheck._lib.errors import InputError, refuse
    from attncheck._lib.files import check_writable, refuse_same
    from attncheck.gate import gate as judge
    from attncheck.gate import with_history
    from attncheck.gate.cases import sentence
    from attncheck.gate.outputs import annotated, annotation, write_outputs, write_unusable

    outputs = {"junit": junit, "summary": summary, "json": json, "badge": badge}
    refuse_same({"run": run, "baseline": baseline, "history": history}, outputs)
    check_writable(outputs)
    if history is None and key is not None:
        refuse("key", key, "has no effect without --history", "pass --history FILE, or omit it")
    try:
        judgement = judge(run, baseline, false_alarm, write=write_baseline)
        if history is not None:
            judgement = with_history(judgement, history, key)
    except InputError as error:  # outputs of an earlier run must not be mistaken for those of this one
        if badge is not None:
            write_unusable(badge)
        if annotations:
            print(annotation(str(error)))
        raise
    print(sentence(judgement))
    for word, text in judgement.wrong:
        print(f"  {word + ':':9} {text}")
    for finding in judgement.findings:
        print(f"  {finding.part}: {finding.text}")
    for note in judgement.notes:
        print(f"  note: {note}")
    for line in annotated(judgement) if annotations else ():
        print(line)
    write_outputs(judgement, outputs)
    return judgement.exit_code
