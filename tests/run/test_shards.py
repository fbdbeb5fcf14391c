"""Shards: dealt evenly and reproducibly, and merged to the record of one machine."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncheck._lib.errors import InputError
from attncheck.layers.attention import AttentionLayer
from attncheck.looks.item import Item
from attncheck.records.run_record import RunRecord, read_record
from attncheck.records.schema import Closing, Manifest, Result, of_pool, read
from attncheck.records.writer import Writer
from attncheck.runs.merge import OWED, lacking, merged, planned_by, with_looks_taken
from attncheck.runs.reporting import RunReport
from attncheck.runs.resumed import ResumedRun
from attncheck.runs.run import Run
from attncheck.runs.shards import Dealer, Shard
from attncheck.subject import Subject, collapsed

from .conftest import closing_of, made

LAYERS = [AttentionLayer(width=width, seq_len=2, num_heads=1) for width in (3, 4, 5, 6, 7, 8, 9, 10)]


def right(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return collapsed(layer, size, rng)


def slight(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
    """Draw scores with variance 2% too large: visible in pools, hardly in a layer."""
    return collapsed(layer.replace(query_std=1.012 * layer.query_std), size, rng)


def gross(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Mapping[str, Any]:
    return collapsed(layer.replace(query_std=2**0.5 * layer.query_std), size, rng)


SUBJECTS = {each.__name__: each for each in (right, slight, gross)}


class Whole(NamedTuple):
    run: Run
    items: list[Item]
    closing: Closing


class Runs:
    """Unsharded runs and their shards, each made once; their records are not to be changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cache  # noqa: B019  # lives as long as the module's tests
    def whole(self, name: str) -> Whole:
        return unsharded(name, self._folder / f"{name}.jsonl")

    def record(self, name: str) -> Path:
        record = self.whole(name).run.record
        assert record is not None
        return record

    @functools.cache  # noqa: B019  # as above
    def parts(self, name: str, of: int) -> tuple[Path, ...]:
        folder = self._folder / f"{name}-{of}"
        folder.mkdir()
        return tuple(parts_of(self.whole(name), of, folder))

    def read_parts(self, name: str, of: int) -> list[RunRecord]:
        return read_all(self.parts(name, of))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def unsharded(name: str, record: Path) -> Whole:
    # Diagnosis takes most of the time, and is not tested here.
    run = dataclasses.replace(made(record=record, subject=SUBJECTS[name]), explains=False)
    items = [item for each in ("scores", "independence") for item in run.items_on(each, LAYERS)]
    run = run.settled([item.id for item in items])
    report = RunReport(run)
    for item in items:
        report.take(run.examine([item]))
    report.take(report.pool()[0])
    report.finish()
    found: dict[str, list[Result]] = {}
    for result in report.results:
        found.setdefault(result.item, []).append(result)
    # Shards give the same digits at the same level: examine once for all tests.
    return Whole(dataclasses.replace(run, earlier=ResumedRun(found)), items, closing_of(record))


def parts_of(whole: Whole, of: int, folder: Path) -> list[Path]:
    """Write the records of a run's shards, and return their paths."""
    homes = Dealer(of).deal(whole.run.costs(whole.items))
    paths = []
    for number in range(1, of + 1):
        paths.append(folder / f"part{number}.jsonl")
        shard = dataclasses.replace(whole.run, shard=Shard(number, of), record=paths[-1])
        own = [item for item in whole.items if homes[item.case.key].number == number]
        shard = shard.settled(whole.run.item_ids, (), [item.id for item in own])
        report = RunReport(shard)
        for item in own:
            report.take(shard.kept(item))
        assert report.pool() == ([], [])
        report.finish()
    return paths


def read_all(paths: Sequence[Path]) -> list[RunRecord]:
    return [read_record(path) for path in paths]


def lines_of(record: Path) -> list[bytes]:
    results = [line for line in read(record) if isinstance(line, Result)]
    return sorted(msgspec.json.encode(msgspec.structs.replace(each, seconds=0.0)) for each in results)


class TestShard:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("9/8", "shard='9/8': is not one of 1/8 to 8/8; pass e.g. 2/8, the second of eight"),
            ("0/8", "shard='0/8': is not one of 1/8 to 8/8"),
            ("0/0", "shard='0/0': must have 1 to 10,000 shards"),
            ("1/99999", "must have 1 to 10,000 shards"),
            ("x", "shard='x': is not of the form number/shards; pass e.g. 2/8"),
            ("", "is not of the form number/shards"),
            ("2", "is not of the form number/shards"),
            ("1/2/3", "is not of the form number/shards"),
            ("-1/8", "is not of the form number/shards"),
            ("1.0/8", "is not of the form number/shards"),
            ("²/8", "is not of the form number/shards"),
            ("1/8\n", "is not of the form number/shards"),
        ],
    )
    def test_unusable_one_is_named(self, text: str, words: str) -> None:
        with pytest.raises(InputError) as caught:
            made(shard=text)
        assert words in str(caught.value)

    def test_fewest_results_are_of_the_whole_run(self) -> None:
        with pytest.raises(InputError, match="min_examined=5: applies to the whole run, not to a shard"):
            made(shard="1/2", min_examined="5")

    def test_header_says_which_it_is(self) -> None:
        assert made(shard="2/8").header().endswith(", shard 2/8")
        assert "shard" not in made().header()


class TestDealer:
    @given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9), st.randoms(use_true_random=False))
    def test_no_shard_has_more_than_another_by_more_than_a_piece(
        self, costs: list[int], of: int, order: random.Random
    ) -> None:
        work = {f"unit {place}": float(cost) for place, cost in enumerate(costs)}
        shuffled = list(work.items())
        order.shuffle(shuffled)
        dealt = Dealer(of).deal(work)
        assert Dealer(of).deal(dict(shuffled)) == dealt
        loads = [sum(cost for key, cost in work.items() if dealt[key].number == number + 1) for number in range(of)]
        assert set(dealt) == set(work)
        assert max(loads) - min(loads) <= max(work.values(), default=0.0)

    def test_later_work_evens_out_what_came_before(self) -> None:
        dealer = Dealer(2)
        first, second = dealer.deal({"large": 5.0}), dealer.deal({"a": 2.0, "b": 2.0})
        assert {home.number for home in first.values()} == {1}
        assert {home.number for home in second.values()} == {2}

    def test_costs_are_larger_for_more_draws_entries_and_checks(self) -> None:
        run = made()
        small, large = AttentionLayer(width=8, seq_len=2, num_heads=1), AttentionLayer(width=8, seq_len=8, num_heads=4)
        scores = run.costs(run.items_on("scores", [small, large]))
        draws = made(profile="default").costs(run.items_on("scores", [small]))
        assert scores[small.key] < scores[large.key]
        assert scores[small.key] < draws[small.key]


class TestMerged:
    @pytest.mark.sampled
    @pytest.mark.parametrize("of", [1, 3, 8])
    @pytest.mark.parametrize("name", SUBJECTS)
    def test_record_is_that_of_the_unsharded_run(self, runs: Runs, tmp_path: Path, name: str, of: int) -> None:
        """In any order of the shards, before and after follow-up looks."""
        before = runs.whole(name)
        out, parts = tmp_path / "run.jsonl", list(runs.parts(name, of))
        random.Random(of).shuffle(parts)
        assert lacking(read_all(parts)) == []
        report = merged(read_all(parts), out)
        assert (OWED in report.failed) is (name == "slight")
        if OWED in report.failed:
            assert closing_of(out).verdict == "incomplete"
            assert OWED in closing_of(out).reasons
            with_looks_taken(read_record(out), Subject.of(SUBJECTS[name]))
        closing, own = closing_of(out), before.closing
        assert (closing.digest, closing.verdict, closing.reasons) == (own.digest, own.verdict, own.reasons)
        assert (closing.reported, closing.failed) == (own.reported, own.failed)
        assert lines_of(out) == lines_of(runs.record(name))
        manifest = msgspec.structs.replace(read_record(out).manifest, started="")
        assert manifest == msgspec.structs.replace(read_record(runs.record(name)).manifest, started="")

    def test_subjects_are_what_they_are_said_to_be(self, runs: Runs) -> None:
        """The slight subject violates a pool but no layer, after further looks."""
        results = {name: [each for each in read(runs.record(name)) if isinstance(each, Result)] for name in SUBJECTS}
        violated = {name: [each for each in found if each.verdict == "violated"] for name, found in results.items()}
        assert not violated["right"]
        assert violated["slight"]
        assert all(map(of_pool, violated["slight"]))
        assert not all(map(of_pool, violated["gross"]))

    def test_more_shards_than_cases(self, runs: Runs, tmp_path: Path) -> None:
        before, of = runs.whole("right"), 20
        parts = runs.read_parts("right", of)
        assert {part.closing.verdict for part in parts if part.closing} == {"consistent"}
        assert sum(not part.results for part in parts) == of - len(LAYERS)
        merged(parts, tmp_path / "run.jsonl")
        assert closing_of(tmp_path / "run.jsonl").digest == before.closing.digest

    def test_fewest_results_are_asked_of_the_whole(self, runs: Runs, tmp_path: Path) -> None:
        report = merged(runs.read_parts("right", 3), tmp_path / "run.jsonl", min_examined=10_000)
        assert report.conclusion is not None
        assert report.conclusion.verdict == "inconclusive"

    def test_missing_result_of_a_shard_is_missing_in_the_run(self, runs: Runs, tmp_path: Path) -> None:
        """As after a subject's failure: what the shard could not examine is missing."""
        first, *others = runs.read_parts("right", 3)
        assert first.closing is not None
        failed = msgspec.structs.replace(first.closing, verdict="incomplete", failed=["subject=it: failed"])
        short = dataclasses.replace(first, results=first.results[1:], closing=failed)
        report = merged([short, *others], tmp_path / "run.jsonl")
        assert report.conclusion is not None
        assert report.conclusion.verdict == "incomplete"
        assert report.conclusion.completeness.missing == (first.results[0].id,)
        assert closing_of(tmp_path / "run.jsonl").failed == ["subject=it: failed"]

    def test_causes_are_those_that_most_shards_found(self, runs: Runs, tmp_path: Path) -> None:
        parts = runs.read_parts("gross", 3)
        told = [["W_Q"], ["W_K", "W_Q"], ["W_K"]]
        for place, causes in enumerate(told):
            closing = parts[place].closing
            assert closing is not None
            parts[place] = dataclasses.replace(parts[place], closing=msgspec.structs.replace(closing, causes=causes))
        merged(parts, tmp_path / "run.jsonl")
        assert closing_of(tmp_path / "run.jsonl").causes == ["W_K", "W_Q"]

    def test_other_machines_are_all_named(self, runs: Runs, tmp_path: Path) -> None:
        first, *others = runs.read_parts("right", 3)
        machine = {**first.manifest.machine, "arithmetic": "another"}
        elsewhere = dataclasses.replace(first, manifest=msgspec.structs.replace(first.manifest, machine=machine))
        merged([elsewhere, *others], tmp_path / "run.jsonl")
        found = read_record(tmp_path / "run.jsonl").manifest.machine
        assert found["arithmetic"] == f"another | {first.manifest.machine['arithmetic']}"
        assert found["python"] == first.manifest.machine["python"]


class TestPart:
    def test_a_lone_shard_passes_and_its_record_is_no_pass(self, runs: Runs, tmp_path: Path) -> None:
        for number, path in enumerate(runs.parts("slight", 3), 1):
            assert closing_of(path).verdict == "consistent"
            manifest = next(read(path))
            assert isinstance(manifest, Manifest)
            assert manifest.shard == (number, 3)
            conclusion = read_record(path).conclusion
            assert conclusion.verdict == "incomplete"
            assert conclusion.reasons == (
                f"the record is of shard {number}/3, a part of a run; attncheck merge makes one record of all shards",
            )

    def test_a_violated_one_is_violated(self, runs: Runs, tmp_path: Path) -> None:
        for path in runs.parts("gross", 3):
            assert closing_of(path).verdict == read_record(path).conclusion.verdict == "violated"

    def test_one_that_lacks_a_result_is_incomplete(self, runs: Runs, tmp_path: Path) -> None:
        run = dataclasses.replace(runs.whole("right").run, shard=Shard(1, 2), record=tmp_path / "part.jsonl")
        lost = runs.whole("right").items[0].id
        run = run.settled(run.item_ids, (), [lost])
        assert run.conclude([]).verdict == "incomplete"
        assert run.settled(run.item_ids, (), []).conclude([]).verdict == "consistent"


class TestLacking:
    def text_of(self, parts: list[RunRecord]) -> str:
        (text,) = lacking(parts)
        return text

    def test_missing_shards_are_named(self, runs: Runs, tmp_path: Path) -> None:
        parts = runs.read_parts("right", 4)
        told = self.text_of(parts[1:])
        assert told.startswith("shard 1/4 is missing; run it: attncheck run --profile smoke --subject ")
        assert told.endswith(" --only scores --only independence --shard 1/4")
        assert self.text_of(parts[1:3]).startswith("shard 1/4 and 4/4 are missing; run each: attncheck run ")

    def test_of_many_missing_shards_some_are_named(self, runs: Runs, tmp_path: Path) -> None:
        (part,) = runs.read_parts("right", 1)
        of_many = msgspec.structs.replace(part.manifest, shard=(1, 10_000))
        told = self.text_of([dataclasses.replace(part, manifest=of_many)])
        assert told.startswith("shard 2/10000, 3/10000, 4/10000, ")
        assert " and 9,991 others are missing; run each: " in told

    def test_doubled_shard_is_named(self, runs: Runs, tmp_path: Path) -> None:
        paths = runs.parts("right", 3)
        again = tmp_path / "again.jsonl"
        again.write_bytes(paths[1].read_bytes())
        assert self.text_of(read_all([*paths, again])) == (
            f"shard 2/3 appears 2 times, in {paths[1]} and {again}; pass one of them"
        )

    @pytest.mark.sampled
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"seed": 3}, "seed 3, the others 0"),
            ({"subject": "another:one"}, "subject another:one, the others "),
            ({"profile": "default"}, "profile default, the others smoke"),
            ({"false_alarm": 0.5}, "false alarm 0.5, the others 1e-06"),
            ({"draws": 1000}, "draws 1000, the others None"),
            ({"versions": {"numpy": "0.1"}}, "versions {'numpy': '0.1'}, the others "),
            ({"source": "0123456789abcdef"}, "a different file of "),
            ({"planned": []}, "a different plan"),
            ({"level": 0.1}, "a different plan"),
            ({"shard": (1, 4)}, "shards 4, the others 3"),
        ],
    )
    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_foreign_shard_is_named(
        self, runs: Runs, tmp_path: Path, changes: dict[str, Any], words: str, place: int
    ) -> None:
        parts = runs.read_parts("right", 3)
        other = msgspec.structs.replace(parts[place].manifest, **changes)
        parts[place] = dataclasses.replace(parts[place], manifest=other)
        said = self.text_of(parts)
        assert said.startswith(f"{parts[place].path} belongs to another run: it has {words}")

    def test_record_of_a_whole_run_is_named(self, runs: Runs, tmp_path: Path) -> None:
        parts = runs.read_parts("right", 2)
        record = runs.record("right")
        assert self.text_of([*parts, read_record(record)]) == f"{record} is not the record of a shard; omit it"

    def test_shard_that_did_not_end_is_named(self, runs: Runs, tmp_path: Path) -> None:
        first, second = runs.parts("right", 2)
        begun = tmp_path / "part1.jsonl"
        begun.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:-1]))
        told = self.text_of(read_all([begun, second]))
        assert told.startswith(f"shard 1/2 did not finish ({begun} has no closing line); resume it: attncheck run ")
        assert told.endswith(f" --shard 1/2 --resume {begun} --record {begun}")


class TestOwed:
    def refused(self, part: RunRecord, subject: str = "right") -> str:
        before = part.path.read_bytes()
        with pytest.raises(InputError) as caught:
            with_looks_taken(part, Subject.of(SUBJECTS[subject]))
        assert part.path.read_bytes() == before
        return str(caught.value)

    def test_record_of_a_shard_is_refused(self, runs: Runs, tmp_path: Path) -> None:
        part = read_record(runs.parts("right", 2)[0])
        assert "is the record of shard 1/2 only; merge all shards with attncheck merge" in self.refused(part)

    def test_another_subject_is_refused(self, runs: Runs, tmp_path: Path) -> None:
        merged(runs.read_parts("slight", 2), tmp_path / "run.jsonl")
        said = self.refused(read_record(tmp_path / "run.jsonl"))
        assert "is of the subject" in said
        assert said.endswith("; pass --subject")

    def test_record_that_lacks_results_is_refused(self, runs: Runs, tmp_path: Path) -> None:
        merged(runs.read_parts("right", 2), tmp_path / "run.jsonl")
        part = read_record(tmp_path / "run.jsonl")
        short = dataclasses.replace(part, results=part.results[1:])
        assert f"lacks 1 results, e.g. {part.results[0].id}; complete it with --resume" in self.refused(short)

    def test_another_plan_or_version_is_refused(self, runs: Runs, tmp_path: Path) -> None:
        part = read_record(runs.parts("right", 1)[0])
        for changes, words in (
            ({"versions": {"numpy": "0.1"}}, "was made with numpy 0.1; others are installed; install these"),
            ({"level": 0.3}, "has a different plan from the one that this version makes"),
            ({"planned": part.manifest.planned[1:]}, "has a different plan from the one that this version makes"),
        ):
            other = msgspec.structs.replace(part.manifest, **changes)
            with pytest.raises(InputError, match=words):
                planned_by(other, Subject.of(right), tmp_path / "run.jsonl")

    def test_run_that_was_interrupted_at_its_pools_is_completed(self, runs: Runs, tmp_path: Path) -> None:
        record = tmp_path / "run.jsonl"
        writer = Writer(record)
        for line in read(runs.record("slight")):
            if not isinstance(line, Closing) and not (isinstance(line, Result) and of_pool(line)):
                writer.write(line)
        writer.close()
        with_looks_taken(read_record(record), Subject.of(slight))
        assert closing_of(record).digest == runs.whole("slight").closing.digest
