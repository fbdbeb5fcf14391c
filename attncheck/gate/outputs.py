"""The gate's verdict as a sentence, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from attncheck._lib.files import write_whole
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import Judgement
from attncheck.records.run_record import RunRecord
from attncheck.records.schema import Result

#: Results listed per verdict; all are counted.
MOST_LISTED = 1000
# Maximum number of reasons, and of notes, in a summary; the other outputs contain all.
_REASONS, _NOTES = 8, 3
# Characters per line of a summary.
_LINE = 240
# Fields of a listed result in JSON.
_SHOWN = ("id", "claim", "case", "verdict", "text", "p_values", "effect", "low", "high")
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
    contents: dict[str, Callable[[Judgement], Iterator[str]]] = {
        "summary": _markdown,
        "json": _document,
    }
    for name, path in paths.items():
        if path is not None:
            _write(path, name, "".join(contents[name](judgement)))


def _write(path: Path, name: str, text: str) -> None:
    write_whole(path, text.encode("utf-8", errors="backslashreplace"), name)


def sentence(judgement: Judgement) -> str:
    """Return the verdict in a sentence."""
    verdict = "consistent" if judgement.first else judgement.verdict
    text = judgement.view.sentence_on(verdict)
    if judgement.first:
        text = text.replace(": ", ", NO BASELINE YET: ", 1)
    return text if judgement.baseline is None else f"{text} Compared with {judgement.baseline_path}."


def detectable(judgement: Judgement) -> list[str]:
    """Return lines on the smallest errors that a run that passes, or needs only a baseline, would have detected."""
    return judgement.view.detectable if judgement.first or judgement.verdict == "consistent" else []


def notable(run: RunRecord) -> list[Result]:
    """Return up to `MOST_LISTED` violated, then inconclusive results, the most suspicious first."""
    found = []
    for verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE):
        having = [result for result in run.every if result.verdict == verdict]
        found += sorted(having, key=lambda each: (each.combined, min(each.p_values, default=1.0), each.id))[
            :MOST_LISTED
        ]
    return found


def _document(judgement: Judgement) -> Iterator[str]:
    run, baseline = judgement.run, judgement.baseline
    results = [{name: getattr(each, name) for name in _SHOWN} | {"expected": each.null_effect} for each in notable(run)]
    document = {
        "schema": 1,
        "verdict": judgement.verdict,
        "exit_code": int(judgement.exit_code),
        "findings": [dataclasses.asdict(finding) for finding in judgement.findings],
        "notes": list(judgement.notes),
        "wrong": [{"word": word, "text": text} for word, text in judgement.view.lines],
        "run": _run(run),
        "baseline": None if baseline is None else _origin(baseline),
        "claims": _claims(run),
        "results": results,
    }
    yield msgspec.json.format(msgspec.json.encode(document).decode(), indent=2)
    yield "\n"


def _claims(run: RunRecord) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in run.every:
        counts[result.claim][result.verdict] += 1
    return {name: {str(verdict): counts[name][verdict] for verdict in Verdict} for name in sorted(counts)}


def _run(run: RunRecord) -> dict[str, object]:
    return _origin(run) | {
        "planned": len(run.planned),
        "reported": len(run.every),
        "examined": len(run.examined_by_id.keys() & run.planned.keys()),
        "digest": run.digest or None,
    }


def _origin(record: RunRecord) -> dict[str, object]:
    head = {name: getattr(record.manifest, name) for name in ("subject", "seed", "profile", "false_alarm", "versions")}
    closing = record.closing
    return {
        "path": str(record.path),
        **head,
        "examined": len(record.examined_by_id.keys() - {pool.id for pool in record.pools}),
        "verdict": None if closing is None else closing.verdict,
        "digest": None if closing is None else closing.digest,
    }


def _markdown(judgement: Judgement) -> Iterator[str]:
    return (f"{line}\n" for line in _lines(judgement))


def _lines(judgement: Judgement) -> Iterator[str]:
    """Iterate over the Markdown lines of a summary that fits on a screen, from the verdict to the reasons for it."""
    yield from (f"## attncheck: {'no baseline yet' if judgement.first else judgement.verdict}", "")
    words = dict(judgement.view.lines)
    command = words.pop("replay", "")
    yield from (f"- **{word}**: {_short(text)}" for word, text in judgement.view.lines if word in words)
    if command:
        yield from ("", f"<pre>{html.escape(' '.join(command.split()))}</pre>", "")
    texts = [f"**{each.part}**: {_short(each.text)}" for each in judgement.findings]
    yield from _some(texts, _REASONS)
    head = judgement.run.manifest
    yield from ("", f"{_short(sentence(judgement))} Seed {head.seed}, profile {_short(head.profile)}.", "")
    yield from (f"- {_short(line)}" for line in detectable(judgement))
    yield from _some([_short(note) for note in judgement.notes], _NOTES)


def _some(texts: Sequence[str], most: int) -> Iterator[str]:
    yield from (f"- {text}" for text in texts[:most])
    if len(texts) > most:
        yield f"- and {len(texts) - most} more"


def _short(text: str) -> str:
    """Return text as one bounded Markdown line, without case hashes."""
    line = _CASE.sub("", " ".join(text.split()))
    return _plain(line if len(line) <= _LINE else f"{line[: _LINE - 1]}…")


def _plain(text: str) -> str:
    """Return text as one line, escaped for Markdown and HTML."""
    marked = _MARKS.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
    return _LINKS.sub(r"\1\\\2", marked)
