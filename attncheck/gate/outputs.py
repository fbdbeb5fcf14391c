"""The gate's verdict as a sentence, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attncheck._lib.exit_codes import ExitCode
from attncheck._lib.files import write_file
from attncheck.gate import Judgement

# Maximum number of reasons, and of notes, in a summary; the other outputs contain all.
_REASONS, _NOTES = 8, 3
# Characters per line of a summary.
_LINE = 240
# The hash of a case in an id.
_CASE = re.compile("@[0-9a-f]{12}\\b")
# Characters with a meaning in Markdown.
_MARKS = re.compile(r"([\\`*_\[\]#|~])")
# Text that GitHub would turn into a link.
_LINKS = re.compile(r"(?i)(\b(?:https?|ftp)|\bwww)(://|\.)")


def write_outputs(judgement: Judgement, paths: Mapping[str, Path | None]) -> None:
    """Write each output that has a path; `paths` maps names of outputs to paths.

    ``summary`` is Markdown, e.g. for a GitHub step summary; ``json`` has all findings.
    """
    document = {
        "verdict": judgement.verdict,
        "exit_code": int(judgement.exit_code),
        "sentence": sentence(judgement),
        "findings": [dataclasses.asdict(finding) for finding in judgement.findings],
        "notes": list(judgement.notes),
        "wrong": [{"label": label, "text": text} for label, text in judgement.view.lines],
        "detectable": detectable(judgement),
    }
    _write("".join(f"{line}\n" for line in _lines(judgement)), document, paths)


def write_refusal(error: str, paths: Mapping[str, Path | None]) -> None:
    """Write the error that prevented a judgement to each output that has a path, replacing earlier outputs."""
    document = {"verdict": "unusable", "exit_code": int(ExitCode.UNUSABLE), "sentence": error}
    _write(f"## attncheck: unusable\n\n{_short(error)}\n", document, paths)


def _write(summary: str, document: Mapping[str, Any], paths: Mapping[str, Path | None]) -> None:
    texts = {"summary": summary, "json": msgspec.json.format(msgspec.json.encode(document).decode(), indent=2) + "\n"}
    for name, path in paths.items():
        if path is not None:
            write_file(path, texts[name].encode("utf-8", errors="backslashreplace"), name)


def sentence(judgement: Judgement) -> str:
    """Return the verdict in a sentence."""
    text = judgement.view.sentence_on(judgement.verdict)
    return text if judgement.baseline is None else f"{text} Compared with {judgement.baseline_path}."


def detectable(judgement: Judgement) -> list[str]:
    """Return lines on the smallest errors that the run would have detected; none if it does not pass."""
    return judgement.view.detectable if judgement.verdict == "consistent" else []


def _lines(judgement: Judgement) -> Iterator[str]:
    """Iterate over the Markdown lines of a summary that fits on a screen; the verdict comes first."""
    yield from (f"## attncheck: {judgement.verdict}", "")
    command = dict(judgement.view.lines).get("replay", "")
    yield from (f"- **{label}**: {_short(text)}" for label, text in judgement.view.lines if label != "replay")
    if command:
        yield from ("", f"<pre>{html.escape(' '.join(command.split()))}</pre>", "")
    texts = [f"**{finding.part}**: {_short(finding.text)}" for finding in judgement.findings]
    yield from _first_few(texts, _REASONS)
    head = judgement.run.manifest
    yield from ("", f"{_short(sentence(judgement))} Seed {head.seed}, profile {_short(head.profile)}.", "")
    yield from (f"- {_short(line)}" for line in detectable(judgement))
    yield from _first_few([_short(note) for note in judgement.notes], _NOTES)


def _first_few(texts: Sequence[str], most: int) -> Iterator[str]:
    yield from (f"- {text}" for text in texts[:most])
    if len(texts) > most:
        yield f"- and {len(texts) - most} more"


def _short(text: str) -> str:
    """Return text as one bounded line, escaped for Markdown and HTML, without case hashes."""
    line = " ".join(_CASE.sub("", text).split())
    shown = line if len(line) <= _LINE else f"{line[: _LINE - 1]}…"
    marked = _MARKS.sub(r"\\\1", html.escape(shown, quote=False))
    return _LINKS.sub(r"\1\\\2", marked)
