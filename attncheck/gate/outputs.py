"""The gate's outputs: JUnit XML, JSON, Markdown, a badge and GitHub annotations."""

from __future__ import annotations

import dataclasses
import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import msgspec

from attncheck._lib.files import write_whole
from attncheck._lib.text import inert
from attncheck.evidence.verdicts import Verdict
from attncheck.gate import Judgement
from attncheck.gate.cases import GateCase, cases, notable, refuted, sentence
from attncheck.records.baseline import Baseline
from attncheck.records.run_record import RunRecord

# Maximum number of reasons, and of notes, in a summary; the other outputs contain all.
_REASONS, _NOTES = 8, 3
# Characters per line of a summary.
_LINE = 240
# GitHub shows at most ten errors per step.
_ANNOTATED = 10
_COLOURS = {
    "consistent": "brightgreen",
    "violated": "red",
    "refuted": "orange",
    "inconclusive": "yellow",
    "incomplete": "orange",
}
# Fields of a listed result in JSON.
_SHOWN = ("id", "claim", "case", "verdict", "text", "p_values", "effect", "low", "high")
_TAGS = {"failed": "failure", "error": "error", "skipped": "skipped"}
# Characters that XML 1.0 forbids.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The hash of a case in an id.
_CASE = re.compile("@[0-9a-f]{12}\\b")
# Characters with a meaning in Markdown.
_MARKS = re.compile(r"([\\`*_\[\]#|~])")
# Text that GitHub would turn into a link.
_LINKS = re.compile(r"(?i)(\b(?:https?|ftp)|\bwww)(://|\.)")


def write_outputs(judgement: Judgement, paths: Mapping[str, Path | None]) -> None:
    """Write each output that has a path; `paths` maps names of outputs to paths.

    ``junit`` is JUnit XML with a case per property and layer, and per part of the judgement; ``summary`` Markdown,
    e.g. for a GitHub step summary; ``json`` has all findings; ``badge`` is in the shields.io endpoint format.
    """
    contents: dict[str, Callable[[Judgement], Iterator[str]]] = {
        "junit": _junit,
        "summary": _markdown,
        "json": _document,
        "badge": lambda each: _badge(each.verdict),
    }
    for name, path in paths.items():
        if path is not None:
            _write(path, name, "".join(contents[name](judgement)))


def write_unusable(path: Path) -> None:
    """Write a badge for a run that could not be judged."""
    _write(path, "badge", "".join(_badge("unusable")))


def _write(path: Path, name: str, text: str) -> None:
    write_whole(path, text.encode("utf-8", errors="backslashreplace"), name)


def annotation(error: str) -> str:
    """Return a GitHub annotation of an error that stopped the gate."""
    return _command("error", "attncheck", inert(error))


def _badge(verdict: str) -> Iterator[str]:
    colour = _COLOURS.get(verdict, "lightgrey")
    yield msgspec.json.encode({"schemaVersion": 1, "label": "attncheck", "message": verdict, "color": colour}).decode()
    yield "\n"


def annotated(judgement: Judgement) -> Iterator[str]:
    """Iterate over GitHub error annotations, one per reason; if there are too many, the last one counts the rest."""
    words = "; ".join(f"{word}: {text}" for word, text in judgement.wrong)
    reasons = [(each.part, each.text) for each in judgement.findings]
    told = ([("wrong", words)] if words else []) + reasons
    for part, text in told[:_ANNOTATED] if len(told) <= _ANNOTATED else told[: _ANNOTATED - 1]:
        yield _command("error", f"attncheck: {part}", text)
    if len(told) > _ANNOTATED:
        yield _command("error", "attncheck", f"and {len(told) - _ANNOTATED + 1} more reasons: see the summary")
    if not told:
        yield _command("notice", "attncheck", sentence(judgement))


def _command(kind: str, title: str, text: str) -> str:
    """Return a GitHub workflow command in one line."""
    said = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    name = title.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={name}::{said}"


def _junit(judgement: Judgement) -> Iterator[str]:
    totals, seconds = {outcome: 0 for outcome in ("passed", *_TAGS)}, 0.0
    for case in cases(judgement):
        totals[case.outcome] += 1
        seconds += case.seconds
    counts = f'tests="{sum(totals.values())}" failures="{totals["failed"]}" errors="{totals["error"]}"'
    suite = f'<testsuite name="attncheck" {counts} skipped="{totals["skipped"]}" time="{seconds:.3f}"'
    yield '<?xml version="1.0" encoding="utf-8"?>\n'
    yield f'<testsuites name="attncheck" {counts} time="{seconds:.3f}">{suite}>\n'
    for case in cases(judgement):
        yield _element(case)
    yield "</testsuite></testsuites>\n"


def _element(case: GateCase) -> str:
    opening = f'<testcase classname={_quoted(case.group)} name={_quoted(case.name)} time="{case.seconds:.3f}"'
    if case.outcome not in _TAGS:
        return f"{opening}/>\n"
    tag = _TAGS[case.outcome]
    said = f"message={_quoted(case.message)}"
    if case.verdict:
        said += f" type={_quoted(case.verdict)}"
    details = html.escape(_FORBIDDEN.sub("�", case.details), quote=False)
    return f"{opening}><{tag} {said}>{details}</{tag}></testcase>\n"


def _quoted(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("�", text))


def _document(judgement: Judgement) -> Iterator[str]:
    run, baseline = judgement.run, judgement.baseline
    results = [{name: getattr(each, name) for name in _SHOWN} | {"expected": each.null_effect} for each in notable(run)]
    document = {
        "schema": 1,
        "verdict": judgement.verdict,
        "exit_code": int(judgement.exit_code),
        "findings": [dataclasses.asdict(finding) for finding in judgement.findings],
        "notes": list(judgement.notes),
        "wrong": [{"word": word, "text": text} for word, text in judgement.wrong],
        "run": _run(run),
        "baseline": None if baseline is None else _origin(baseline, len(baseline.single)),
        "claims": _claims(run),
        "results": results,
        "theory": [msgspec.to_builtins(line) for line in refuted(run)],
    }
    yield msgspec.json.format(msgspec.json.encode(document).decode(), indent=2)
    yield "\n"


def _claims(run: RunRecord) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in run.every:
        counts[result.claim][result.verdict] += 1
    return {name: {str(verdict): counts[name][verdict] for verdict in Verdict} for name in sorted(counts)}


def _run(run: RunRecord) -> dict[str, object]:
    examined = {result.id for result in run.every if result.verdict != Verdict.NOT_EXAMINED}
    single = examined - {pool.id for pool in run.pools}
    return _origin(run, len(single)) | {
        "planned": len(run.planned),
        "reported": len(run.every),
        "examined": len(examined & run.planned.keys()),
        "digest": run.digest or None,
    }


def _origin(record: RunRecord | Baseline, examined: int) -> dict[str, object]:
    head = {name: getattr(record.manifest, name) for name in ("subject", "seed", "profile", "false_alarm", "versions")}
    closing = record.closing
    return {
        "path": str(record.path),
        **head,
        "examined": examined,
        "verdict": None if closing is None else closing.verdict,
        "digest": None if closing is None else closing.digest,
    }


def _markdown(judgement: Judgement) -> Iterator[str]:
    return (f"{line}\n" for line in _lines(judgement))


def _lines(judgement: Judgement) -> Iterator[str]:
    """Iterate over the Markdown lines of a summary that fits on a screen, from the verdict to the reasons for it."""
    yield from (f"## attncheck: {'no baseline yet' if judgement.first else judgement.verdict}", "")
    words = dict(judgement.wrong)
    command = words.pop("replay", "")
    yield from (f"- **{word}**: {_short(text)}" for word, text in judgement.wrong if word in words)
    if command:
        yield from ("", f"<pre>{html.escape(' '.join(command.split()))}</pre>", "")
    texts = [f"**{each.part}**: {_short(each.text)}" for each in judgement.findings]
    yield from _some(texts, _REASONS)
    head = judgement.run.manifest
    yield from ("", f"{_short(sentence(judgement))} Seed {head.seed}, profile {_short(head.profile)}.", "")
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
