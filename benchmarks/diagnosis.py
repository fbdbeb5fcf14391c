"""Measure how often diagnosis names the right first cause, for known-wrong simulators and reported bugs.

``python benchmarks/diagnosis.py --write`` fits samples of every bug at every exposure and of every fault at one, and
updates benchmarks/diagnosis.md; ``--resume FILE`` continues an interrupted run, and ``--seeds 3`` tries all exposures.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attncheck._lib.arithmetic import own_arithmetic
from attncheck._lib.errors import InputError
from attncheck._lib.streams import seed_sequence, stream
from attncheck._lib.text import counted
from attncheck.checks.sample import Sample
from attncheck.diagnosis.causes import TOLD, UNKNOWN
from attncheck.diagnosis.differences import OTHER_CALL, read_off
from attncheck.diagnosis.fit import FittedCause, draws_of, fitted
from attncheck.faults import EXPOSURES, FAULTS
from attncheck.faults.literal import LiteralSimulator
from attncheck.faults.named import NAMED_BY
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.regimes import REGIMES
from attncheck.simulators.weights import GAUSSIAN_LAWS
from attncheck.subject import Subject
from benchmarks import diagnosis_bugs, diagnosis_bugs_2
from benchmarks.diagnosis_bugs.parts import Reported
from benchmarks.rows import Rows

#: Two sets of bugs by name; the second was frozen once written.
SETS = {"bug": diagnosis_bugs.BUGS, "later bug": diagnosis_bugs_2.BUGS}
#: Each bug is tried on the first three of these layers that it supports.
LAYERS = (
    AttentionLayer(width=16),
    AttentionLayer(width=8, seq_len=3, num_heads=4),
    AttentionLayer(width=16, head_dim=8),
    AttentionLayer(width=8, num_heads=4, head_dim=2),
    AttentionLayer(width=16, mask="causal"),
    AttentionLayer(width=8, seq_len=3, mask="causal"),
    AttentionLayer(width=16, num_heads=4, num_kv_heads=2),
    AttentionLayer(width=4, num_heads=4, num_kv_heads=2),
    AttentionLayer(width=4, num_heads=1),
)
#: Further layers, for bugs that the ones above do not reveal.
MORE = tuple(REGIMES[name].layer for name in ("relu inputs", "positions"))
_MOST = 3
# Evidence that reveals a scale, by the prefix of the names of scale faults.
_MATRICES = {"query": "W_Q", "key": "W_K", "value": "W_V", "output": "W_O"}

# Evidence read off before fitting, and the faults that it names.
_READ = {"come again": ("copied_draws", "repeated_stream"), "share their weights": ("weights_per_call",)}

# Two simultaneous faults: the steps of the first, except those replaced by the second.
_PAIRS = (
    ("shared_keys", "softmax_over_columns"),
    ("tied_query_key", "dropped_head"),
    ("tied_key_value", "uneven_heads"),
    ("inputs_apart", "softmax_over_columns"),
    ("twin_queries", "shifted_outputs"),
    ("tied_query_value", "dropped_head"),
    ("half_precision_scores", "uneven_heads"),
    ("bartlett_freedom", "softmax_over_columns"),
)
_AND = " and "
_TWO = "Two faults at once: one of them is named"
_TITLES = {
    "fault": "Known-wrong simulators",
    "bug": "Bugs that others reported",
    "later bug": "More bugs that others reported",
    "two": _TWO,
}
_BLIND = {
    "bug": (
        "Bugs and expected messages were written independently of the causes. Three have since got separate "
        "causes, as no other matched: shared_by_slices, split_by_view and mask_inverted."
    ),
    "later bug": "Written later in the same way; no cause or message has been changed since.",
}
# Faults that are a factor on one matrix, and are reported as one.
_AS_SCALES = {"missing_head_scaling": "output_std √H", "scores_over_n": "query_std 1/√head_dim"}
_AS_READINGS = {"forgotten_norm": "norm=None", "other_norm": "norm='layer'"}


class Cell(msgspec.Struct, frozen=True):
    """Diagnosis of one fault or bug at one exposure.

    ``named`` is the rank at which it was named, from 1, or 0 if it was not; ``alone`` says whether no other cause
    fits.
    """

    seed: int
    kind: str
    name: str
    exposure: str
    seen: bool
    named: int
    alone: bool
    first: str


def cells(names: Iterable[str], seeds: int, resume: Path | None) -> Iterator[Cell]:
    """Yield the diagnosis of every bug at every exposure, and of every fault at one exposure for each seed."""
    rows = Rows(resume)
    wrong = [("fault", name) for name in FAULTS]
    wrong += [(kind, bug.name) for kind, bugs in SETS.items() for bug in bugs]
    wrong += [("two", _AND.join(pair)) for pair in _PAIRS]
    for seed, (number, (kind, name)), (turn, exposure) in itertools.product(
        range(seeds), enumerate(wrong), enumerate(EXPOSURES)
    ):
        if name not in names or (kind not in SETS and (number + seed - turn) % len(EXPOSURES)):
            continue
        make = functools.partial(_cell, seed, kind, name, exposure)
        yield rows.get(f"seed {seed}, {kind} {name}, {exposure}", Cell, make)


def _cell(seed: int, kind: str, name: str, exposure: str) -> Cell:
    pairs = list(_samples(kind, name, exposure, seed))
    if not pairs:
        return Cell(seed, kind, name, exposure, False, 0, False, "")
    samples, later = zip(*pairs, strict=True)
    if read := next(read_off(samples, later, GAUSSIAN_LAWS), ""):
        return Cell(
            seed,
            kind,
            name,
            exposure,
            True,
            int(any(name in of and said in read for said, of in _READ.items())),
            True,
            read,
        )
    fits, others = fitted(samples, seed_sequence(seed, "diagnosis", role="candidates"))
    words = [cause.candidate.words for cause in fits[:TOLD]] or [UNKNOWN] * bool(others)
    if kind not in SETS:
        places = [
            place
            for place, cause in enumerate(fits[:TOLD], 1)
            if any(_names(fault, cause) for fault in name.split(_AND))
        ]
    else:
        places = [place for place, said in enumerate(words, 1) if fits and says(_bug(kind, name).words, said)]
    return Cell(
        seed, kind, name, exposure, bool(words), places[0] if places else 0, len(fits) <= 1, words[0] if words else ""
    )


def _bug(kind: str, name: str) -> Reported:
    return next(bug for bug in SETS[kind] if bug.name == name)


def _samples(kind: str, name: str, exposure: str, seed: int) -> Iterator[tuple[Sample, Sample]]:
    """Yield two-call samples for each layer that reveals the fault."""
    if kind == "fault":
        subject = Subject.of(FAULTS[name].subject)
        layers = [NAMED_BY[name][0], *(layer for layer in LAYERS if not FAULTS[name].reason_hidden(layer))]
    elif kind == "two":
        first, second = (FAULTS[fault] for fault in name.split(_AND))
        subject = Subject.of(_both(first.subject, second.subject))
        layers = [each for each in LAYERS if not (first.reason_hidden(each) or second.reason_hidden(each))]
    else:
        subject, layers = Subject.of(_bug(kind, name).subject), list(LAYERS)
        if all(subject.reason_unsupported(layer) for layer in layers):
            layers = list(MORE)
    found = 0
    for layer in dict.fromkeys(layers):
        if found == _MOST or subject.reason_unsupported(layer):
            continue
        try:
            rng, draws = stream(seed, "diagnosis", layer.key), draws_of(layer, frozenset(EXPOSURES[exposure]))
            drawn, other = (subject.draw(layer, size, rng) for size in (draws, min(draws, OTHER_CALL)))
        except InputError:
            continue
        found += 1
        yield (_showing(drawn, exposure), _showing(other, exposure))


def _showing(drawn: Sample, exposure: str) -> Sample:
    arrays = {field: drawn.need(field) for field in EXPOSURES[exposure] if field in drawn.exposed}
    return Sample.from_mapping(drawn.layer, arrays, len(drawn))


def _both(first: Any, second: Any) -> LiteralSimulator:
    """Return a simulator with the steps of both, which must replace different ones."""
    steps = {field.name: getattr(second, field.name) for field in dataclasses.fields(LiteralSimulator)}
    own = {name: step for name, step in steps.items() if step is not getattr(LiteralSimulator(), name)}
    made: LiteralSimulator = dataclasses.replace(first, **own)
    return made


def _names(fault: str, cause: FittedCause) -> bool:
    """Return whether a cause is a fault, or the scale or field that it changes."""
    if cause.candidate.name in (fault, _AS_SCALES.get(fault), _AS_READINGS.get(fault)):
        return True
    matrix = _MATRICES.get(fault.partition("_std_")[0], "none") if "_std_" in fault else "none"
    return matrix in cause.candidate.words and "times the declared" in cause.candidate.words


def says(words: Iterable[Iterable[str]], said: str) -> bool:
    """Return whether a sentence matches all patterns of one of the alternatives."""
    return any(all(re.search(part, said, re.IGNORECASE) for part in parts) for parts in words)


def page(found: Sequence[Cell]) -> str:
    seeds = len({cell.seed for cell in found})
    lines = ["# The first cause", "", "`python benchmarks/diagnosis.py --write` makes this page.", ""]
    lines += [
        (
            f"Samples of up to three layers, as in a violated run, with {counted(seeds, 'seed')}, from 0: how often "
            "the first cause is right. *Alone* counts cases in which no other cause fits. Cells in which the right "
            "simulator also fits are left out: there users get the violated checks' hints. Repeated draws and "
            "differing calls are detected before fitting. Bugs are tried at every exposure, known-wrong simulators at "
            "one for each seed, in turn: a share of N of them has a standard error of at most 1/(2√N)."
        ),
        "",
    ]
    for kind, title in _TITLES.items():
        of_kind = [cell for cell in found if cell.kind == kind]
        if not of_kind:
            continue
        lines += [
            f"## {title}",
            "",
            *([_BLIND[kind], ""] if kind in _BLIND else []),
            "| exposed | seen | named first | among three | none known | alone |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for exposure in EXPOSURES:
            seen = [cell for cell in of_kind if cell.exposure == exposure and cell.seen]
            first, three = sum(cell.named == 1 for cell in seen), sum(cell.named > 0 for cell in seen)
            alone, none = sum(cell.alone for cell in seen), sum(cell.first == UNKNOWN for cell in seen)
            all_of = sum(cell.exposure == exposure for cell in of_kind)
            lines.append(f"| {exposure} | {len(seen)} of {all_of} | {first} | {three} | {none} | {alone} |")
        lines += ["", "| name | exposed | seed | named | told first |", "| --- | --- | --- | --- | --- |"]
        lines += [
            f"| {cell.name} | {cell.exposure} | {cell.seed} | {cell.named or 'no'} | {cell.first} |"
            for cell in of_kind
            if cell.seen and (cell.named != 1 or kind != "fault")
        ]
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure how often the first cause is the right one.")
    names = [*FAULTS, *(bug.name for bugs in SETS.values() for bug in bugs), *map(_AND.join, _PAIRS)]
    parser.add_argument("--only", action="append", choices=names, help="only these")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run seeds 0 to N - 1 (default: 1)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done there, and go on from it")
    parser.add_argument("--write", action="store_true", help="write benchmarks/diagnosis.md")
    options = parser.parse_args(arguments)
    with own_arithmetic():
        text = page(list(cells(options.only or names, options.seeds, options.resume)))
    print(text, end="")
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
