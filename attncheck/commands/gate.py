"""`attncheck gate`: arguments and output."""

from __future__ import annotations

from pathlib import Path


def gate(
    run: Path,
    /,
    *more: Path,
    baseline: Path,
    summary: Path | None = None,
    json: Path | None = None,
    false_alarm: float | None = None,
    write_baseline: bool = False,
) -> int:
    """Decide whether a run passes: complete, not violated, and no worse than a baseline.

    Parameters
    ----------
    run
        Record of the run.
    more
        Records of other parts of the same run.
    baseline
        Record of an earlier run, which --write-baseline copies. If it does not exist, the gate fails.
    summary
        Write a Markdown summary to this path.
    json
        Write the verdict and all findings as JSON to this path.
    false_alarm
        Probability of reporting drift if nothing changed; default: the budget of the run.
    write_baseline
        Make the run the baseline if it passes by itself, without comparison. The suffix .gz compresses it.
    """
    from attncheck._lib.errors import InputError
    from attncheck._lib.files import check_writable, refuse_same
    from attncheck.gate import gate as judge
    from attncheck.gate.outputs import detectable, sentence, write_outputs, write_refusal
    from attncheck.runs.summary import labelled

    outputs = {"summary": summary, "json": json}
    parts = {f"run {number}": path for number, path in enumerate((run, *more), 1)}
    refuse_same({**parts, "baseline": baseline}, outputs)
    check_writable(outputs)
    try:
        judgement = judge((run, *more), baseline, false_alarm, write=write_baseline)
    except InputError as error:
        write_refusal(str(error), outputs)
        raise
    print(sentence(judgement))
    print(*labelled(judgement.view.lines), sep="\n", end="\n" if judgement.view.lines else "")
    for finding in judgement.findings:
        print(f"  {finding.part}: {finding.text}")
    for line in detectable(judgement):
        print(f"  {line}")
    for note in judgement.notes:
        print(f"  note: {note}")
    write_outputs(judgement, outputs)
    return judgement.exit_code
