"""HTML page of an inspection: the printed output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attncheck._lib.files import write_whole
from attncheck.evidence.verdicts import Verdict
from attncheck.frameworks.result import Inspection
from attncheck.models.result import ModelInspection
from attncheck.report.page import encoded, fill


def render_inspection(
    found: Inspection | ModelInspection, name: str, out: Path, unexpected: Sequence[str] = ()
) -> Path:
    """Write a self-contained page on a layer or model made by `name`.

    `unexpected` are sentences on unmet expectations.
    """
    lines = [("not as expected", text) for text in unexpected] + found.told
    unread = Verdict.INCONCLUSIVE if found.not_examined else Verdict.CONSISTENT
    verdict = Verdict.VIOLATED if found.blamed or unexpected else unread
    first = next(iter([*found.blamed, *unexpected]), found.verdict)
    shown = {"verdict": verdict, "sentence": first, "found": found, "name": name, "lines": lines}
    return write_whole(out, encoded(fill("inspection.html.j2", "Inspection", **shown)))
