"""`attncheck gate`: judge, print, and write what was asked for."""

from __future__ import annotations

from pathlib import Path

from attncheck.gate import gate
from attncheck.gate.cases import sentence
from attncheck.gate.outputs import write_json, write_junit, write_summary


def gate_run(
    run: Path,
    baseline: Path,
    *,
    junit: Path | None = None,
    summary: Path | None = None,
    json: Path | None = None,
    false_alarm: float | None = None,
) -> int:
    """Judge a run and print the judgement; the arguments are those of `attncheck gate`.

    Returns
    -------
    int
        See `attncheck._lib.exit_codes`.

    Raises
    ------
    InputError
        If a record cannot be used or a file cannot be written.
    """
    judgement = gate(run, baseline, false_alarm)
    print(sentence(judgement))
    for finding in judgement.findings:
        print(f"  {finding.part}: {finding.text}")
    for note in judgement.notes:
        print(f"  note: {note}")
    for path, write in ((junit, write_junit), (summary, write_summary), (json, write_json)):
        if path is not None:
            write(judgement, path)
    return judgement.exit_code
