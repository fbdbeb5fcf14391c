"""Terminal summary of a run: verdict, cause and numbers, then a table of properties."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from attncheck._lib.names import grouped
from attncheck._lib.text import chance
from attncheck.evidence.verdicts import Verdict
from attncheck.records.schema import Result, case_key
from attncheck.runs.view import RunView


def summarize(view: RunView, color: bool = False, verbose: bool = False) -> str:
    """Return the summary of a run.

    With `verbose`, it lists the checks that were examined on no case; with `color`, it contains colour codes.
    """
    run = view.run
    lines = [view.sentence, *(f"  {reason}" for reason in view.reasons)]
    lines += labelled([("failed", view.failed), ("draws", view.unrepeatable)])
    lines += labelled(view.lines)
    if run.examined:
        numbers = ("cases", "examined", "draws", "smallest p-value")
        lines += [table_text(("property", "verdict"), numbers, _rows(run.results), color), *view.pooled]
    lines += unexamined_lines(view.unexamined_checks) if verbose else view.remedies
    lines += view.detectable
    if run.digest:
        lines.append(f"Digest of all digits: {run.digest}")
    if run.path is not None:
        lines.append(f"Record: {run.path}")
    return "\n".join(lines)


def labelled(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Format pairs of label and text as lines; pairs with an empty text are omitted."""
    return [f"  {label + ':':9} {text}" for label, text in pairs if text]


def unexamined_lines(checks: Mapping[str, Sequence[str]], heading: str = "Not examined on any layer:") -> list[str]:
    """Return a heading and lines that list unexamined checks by reason.

    `checks` maps each reason to the names of checks that were examined on no case. There are no lines if it is empty.
    """
    lines = [f"  {reason}: {', '.join(names)}" for reason, names in checks.items()]
    return [heading, *lines] if lines else []


def _rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    for name, group in sorted(grouped(results, lambda result: result.property).items()):
        examined = [result for result in group if result.p_values]
        if not examined:
            continue
        cases = {case_key(result) for result in group}
        draws = sum(max(result.size for result in group if case_key(result) == case) for case in cases)
        yield (
            name,
            str(Verdict.worst(result.verdict for result in group)),
            _of(len(set(map(case_key, examined))), len(cases)),
            _of(len(examined), len(group)),
            f"{draws:,}",
            chance(min(result.p_values[0] for result in examined)),
        )


def _of(part: int, total: int) -> str:
    return f"{part}/{total}" if part < total else str(total)


def table_text(texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]], color: bool = False) -> str:
    """Return a table with columns of text, then columns of numbers."""
    table = Table(box=SIMPLE, pad_edge=False)
    for column in texts:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    written = io.StringIO()
    console = Console(file=written, width=180, force_terminal=color, legacy_windows=False, markup=False, emoji=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines() if line.strip())
