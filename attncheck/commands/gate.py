"""`attncheck gate`: judge, print, and write what was asked for."""

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
    """Decide whether a run may pass: complete, not violated, and no worse than a baseline.

    Parameters
    ----------
    run
        The record of the run.
    baseline
        What to compare with: what --write-baseline wrote, or any record. If there is none, the gate fails and writes
        BASELINE.candidate.
    junit
        Write the cases as JUnit XML to this file.
    summary
        Write a summary in Markdown to this file.
    json
        Write everything that was found as JSON to this file.
    badge
        Write what a badge of shields.io says to this file.
    annotations
        Print reasons as commands that GitHub Actions makes annotations of.
    false_alarm
        The chance that unchanged work is called drifted; by default the budget of the run.
    write_baseline
        Compare with nothing: make the run the baseline, if nothing is wrong with it by itself. A name that ends in .xz
        makes it small.
    history
        Add what the run leaves to this file, if it may pass, and fail where runs together show that something moves.
    key
        Names the commit in the history; by default what the record names, GITHUB_SHA, or HEAD of git.
    """
    from attncheck._lib.errors import InputError, refuse
    from attncheck._lib.files import check_writable, refuse_same
    from attncheck.gate import gate as judge
    from attncheck.gate import with_history
    from attncheck.gate.cases import sentence
    from attncheck.gate.outputs import (
        annotated,
        annotation,
        write_badge,
        write_json,
        write_junit,
        write_summary,
        write_unusable,
    )

    outputs = {"junit": junit, "summary": summary, "json": json, "badge": badge}
    refuse_same({"run": run, "baseline": baseline, "history": history}, outputs)
    check_writable(outputs)
    if history is None and key is not None:
        refuse("key", key, "names a run of a history, and there is none", "pass --history FILE, or leave it out")
    try:
        judgement = judge(run, baseline, false_alarm, write=write_baseline)
        if history is not None:
            judgement = with_history(judgement, history, key)
    except InputError as error:  # what an earlier run left must not be taken for this one's
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
    files = ((junit, write_junit), (summary, write_summary), (json, write_json), (badge, write_badge))
    for path, write in files:
        if path is not None:
            write(judgement, path)
    return judgement.exit_code
