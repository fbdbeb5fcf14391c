"""Run history: drifts are found, noise is not, and files stay intact."""

from __future__ import annotations

import dataclasses
import functools
import json
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from attncheck._lib.commits import commit_key, keyed_seed, seed_typed
from attncheck._lib.errors import InputError
from attncheck._lib.exit_codes import ExitCode
from attncheck.commands.cli import main
from attncheck.commands.history_table import by_claim
from attncheck.evidence.detector import ALARM, BIAS, CLIP, begin, course
from attncheck.gate import gate, with_history
from attncheck.gate.history import (
    FEATURES,
    Acceptance,
    History,
    HistoryHead,
    PlannedChecks,
    RunEntry,
    accept,
    add,
    entry_of,
    write,
)
from attncheck.looks.pools import POOLS
from attncheck.records.schema import Manifest, Result, of_pool, read
from attncheck.runs.options import RunOptions
from attncheck.runs.reporting import RunReport
from attncheck.runs.run import Run
from attncheck.subject import collapsed

FloatArray = NDArray[np.float64]


def lives(count: int, runs: int, streams: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((count, runs, streams))


class TestDetector:
    @pytest.mark.parametrize("bias", [0.0, BIAS, -BIAS])
    def test_evidence_is_at_most_the_number_of_runs_in_expectation(self, bias: float) -> None:
        """The basis of the bound. One-sided scores that are too small only lower it."""
        z = lives(20_000, 6, 3) + bias
        one_sided = np.array([False, False, True])
        # For drifts up to 1, whose factors have a variance that a sample shows.
        small = np.clip(z, -1.5, 1.5)
        total = course(small, one_sided).total
        error = total.std(axis=0) / len(z) ** 0.5
        assert (total.mean(axis=0) - 4.0 * error < np.arange(1, 7)).all()
        assert (total.mean(axis=0) > 0.3).all()

    def test_no_drift_is_quiet(self) -> None:
        """200 histories of 500 runs have an alarm with a chance of at most a tenth; there is none."""
        assert not (course(lives(200, 500, 12), np.zeros(12, bool)).total >= ALARM).any()

    @pytest.mark.parametrize(("drift", "most"), [(1.5, 25), (0.9, 60)])
    def test_a_drift_is_found_in_time(self, drift: float, most: int) -> None:
        z = lives(200, 3 * most, 92)
        z[:, :, 40] += drift
        reached = course(z, np.zeros(92, bool)).total >= ALARM
        delays = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, 3 * most)
        assert np.median(delays) <= most

    def test_what_only_large_scores_speak_against_has_no_drift_downwards(self) -> None:
        z = lives(1, 300, 2)[0]
        z[:, 0] -= 2.0
        assert course(z, np.array([True, False])).alarm is None
        assert course(z, np.array([False, False])).alarm is not None

    def test_one_score_says_no_more_than_its_limit(self) -> None:
        z = np.zeros((3, 1))
        z[1] = 40.0
        clipped = z.copy()
        clipped[1] = CLIP
        np.testing.assert_array_equal(course(z, np.array([False])).total, course(clipped, np.array([False])).total)

    def test_the_begin_of_a_drift_is_found(self) -> None:
        """To within two runs in the median, for drifts in both directions."""
        for sign in (1.0, -1.0):
            z = sign * (lives(200, 100, 1)[..., 0] + 1.5 * (np.arange(100) >= 60))
            assert abs(np.median([begin(each, one_sided=False) for each in z]) - 60) <= 2
        assert begin(np.full(9, -1.0), one_sided=True) == 8
        assert begin(np.full(9, -1.0), one_sided=False) == 0

    def test_a_run_without_a_score_changes_nothing(self) -> None:
        z = lives(1, 30, 1)[0] + 1.0
        longer = np.insert(z, 15, np.nan, axis=0)
        one = np.zeros(1, bool)
        assert course(longer, one).total[-1] == course(z, one).total[-1]


PLAN = PlannedChecks("plan", ["a", "b"])
PLANS = {"plan": PLAN}


def entry(number: int, z: dict[str, float], key: str = "") -> RunEntry:
    name = key or f"commit{number:03d}"
    return RunEntry(name, number, f"2030-01-01T00:{number // 60:02d}:{number % 60:02d}", PLAN.plan, z)


def history(count: int, drift: float = 0.0, seed: int = 0) -> History:
    scores = lives(1, count, 2, seed)[0]
    entries = tuple(
        entry(k, {"a@all": float(scores[k, 0] + drift), "b@all": float(scores[k, 1])}) for k in range(count)
    )
    return History("mine:simulate", "smoke", entries, plans=PLANS)


class TestHistory:
    def test_what_moves_most_is_named(self) -> None:
        shown = history(40, drift=2.0)
        first = shown.moved()[0]
        assert first.stream == "a@all"
        assert 1.0 < first.mean < 3.5
        assert shown.sentence().startswith("ALARM: 40 runs of mine:simulate with the profile smoke; ")
        assert "; a@all moves most, by +" in shown.sentence()
        quiet = history(40)
        assert quiet.sentence().startswith("QUIET: 40 runs")
        assert quiet.course.alarm is None

    def test_a_drift_is_told_from_the_run_with_which_it_began(self) -> None:
        """The mean over all runs would dilute it."""
        entries = tuple(entry(k, {"a@all": -1.5 * (k >= 100), "b@all": 0.0}) for k in range(140))
        shown = History("mine:simulate", "smoke", entries, plans=PLANS)
        first = shown.moved()[0]
        assert shown.course.alarm is not None
        assert (first.stream, first.since, first.mean, first.last) == ("a@all", "commit100", -1.5, -1.5)
        assert first.runs == shown.course.alarm - 99
        assert shown.sentence().endswith("a@all moves most, by -1.50 standard deviations per run since commit100")

    def test_an_alarm_stays_until_it_is_accepted(self, tmp_path: Path) -> None:
        path = tmp_path / "state.jsonl"
        long = history(60, drift=2.0)
        calm = tuple(entry(60 + k, {"a@all": -2.0, "b@all": 0.0}) for k in range(30))
        write(dataclasses.replace(long, entries=long.entries + calm), path)
        assert History.read([path]).sentence().startswith("ALARM")
        before = path.read_bytes()
        assert accept(path).sentence().startswith("QUIET: 0 runs")
        assert path.read_bytes().startswith(before)

    def test_no_data_decide_on_a_share(self) -> None:
        """Half of the first plan's checks, with or without pools."""
        later = PlannedChecks("later", ["a", "c"])
        entries = (
            entry(0, {"a@all": 0.0}),
            entry(1, {"a@causal": 0.0, "b@all": 0.0}),
            msgspec.structs.replace(entry(2, {"c@all": 0.0}), plan="later"),
        )
        shown = History("s", "p", entries, plans={**PLANS, "later": later})
        shares = dict(zip(shown.streams, shown.shares, strict=True))
        assert shares == {"a@all": 1 / 8, "a@causal": 1 / 8 / FEATURES, "b@all": 1 / 8, "c@all": 1 / 8}

    def test_the_order_of_files_is_no_matter(self, tmp_path: Path) -> None:
        whole = history(30, drift=0.5)
        odd, even = (dataclasses.replace(whole, entries=whole.entries[start::2]) for start in (1, 0))
        paths = [write(each, tmp_path / f"{name}.jsonl") for name, each in (("odd", odd), ("even", even))]
        both = History.read(paths)
        assert both == History.read(paths[::-1]) == whole
        np.testing.assert_array_equal(both.course.total, whole.course.total)

    def test_of_two_runs_of_a_commit_the_first_counts(self, tmp_path: Path) -> None:
        """As after a merge of two branches: numbers are equal, up to rounding."""
        first = history(5)
        again = [msgspec.structs.replace(each, started=f"2031{each.started[4:]}") for each in first.entries]
        paths = [write(first, tmp_path / "first.jsonl")]
        paths.append(write(dataclasses.replace(first, entries=tuple(again)), tmp_path / "again.jsonl"))
        assert History.read(paths) == History.read(paths[::-1]) == first

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                {"subject": "other:one"},
                "is about the subject other:one, but .* about mine:simulate; keep a separate history for each subject",
            ),
            ({"profile": "default"}, "is about the profile default, but .* about smoke"),
            ({"entries": (entry(3, {"a@all": 9.0}),)}, "disagrees with the others on commit003"),
            (
                {"entries": (entry(3, {}, key="else"),)},
                "seed=3: is the seed of commit003 and of else in .*: the same draws",
            ),
            (
                {"entries": tuple(entry(100 + k, {"a@all": 3.0}) for k in range(20))},
                "has an alarm, which runs of another branch could hide; inspect it first with attncheck history",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
        one = write(history(5), tmp_path / "one.jsonl")
        other = write(dataclasses.replace(history(5), **changes), tmp_path / "other.jsonl")
        with pytest.raises(InputError, match=said):
            History.read([one, other])

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", "is not a history of this version"),
            (b"{}\n", "line 1 cannot be read"),
            (b'{"type":"history","format":9,"subject":"s","profile":"p"}\n', "is not a history of this version"),
            (msgspec.json.encode(Acceptance("x")) + b"\n", "is not a history of this version"),
            (msgspec.json.encode(HistoryHead(1, "s", "p")) + b"\nnonsense\n", "line 2 cannot be read"),
            (
                msgspec.json.encode(HistoryHead(1, "s", "p")) + b"\n" + msgspec.json.encode(entry(1, {})) + b"\n",
                "lacks the",
            ),
            (
                b"".join(
                    msgspec.json.encode(line) + b"\n"
                    for line in (HistoryHead(1, "s", "p"), PLAN, entry(1, {"c@all": 1.0}))
                ),
                "has scores of c, which commit001 did not plan",
            ),
        ],
    )
    def test_another_file_is_refused(self, tmp_path: Path, content: bytes, said: str) -> None:
        path = tmp_path / "state.jsonl"
        path.write_bytes(content)
        with pytest.raises(InputError, match=said):
            History.read([path])

    def test_a_last_line_without_its_end_is_gone_on_with(self, tmp_path: Path) -> None:
        path = write(history(3), tmp_path / "state.jsonl")
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
        assert accept(path).since == ()
        assert len(History.read([path]).entries) == 3

    def test_two_histories_in_one_file_are_told_apart(self, tmp_path: Path) -> None:
        one, other = history(3), dataclasses.replace(history(2, seed=1), subject="other:one")
        path = tmp_path / "both.jsonl"
        path.write_bytes(write(one, path).read_bytes() + write(other, tmp_path / "other.jsonl").read_bytes())
        with pytest.raises(InputError, match="has lines of another history"):
            History.read([path])
        again = [msgspec.structs.replace(each, key=f"again {each.key}") for each in one.entries]
        write(dataclasses.replace(one, entries=(*one.entries, *again)), path)
        with pytest.raises(InputError, match="seed=0: is the seed of commit000 and of again commit"):
            History.read([path])

    def test_what_one_branch_accepts_hides_nothing_of_the_other(self, tmp_path: Path) -> None:
        whole = history(20)
        ours = write(dataclasses.replace(whole, entries=whole.entries[:12]), tmp_path / "ours.jsonl")
        theirs = write(
            dataclasses.replace(whole, entries=(*whole.entries[:4], *whole.entries[12:])), tmp_path / "t.jsonl"
        )
        accept(theirs)
        for paths in ([ours, theirs], [theirs, ours]):
            both = History.read(paths)
            # Common runs are accepted with the others; only ours are open.
            assert [each.key for each in both.since] == [each.key for each in whole.entries[4:12]]
            out = write(both, tmp_path / "both.jsonl")
            assert History.read([out]) == both

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to try")
    def test_what_is_no_file_is_refused(self) -> None:
        with pytest.raises(InputError, match="history='/dev/full': is not a file"):
            History.read([Path("/dev/full")])

    def test_a_full_disk_leaves_what_there_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(history(3), tmp_path / "state.jsonl")
        before = path.read_bytes()
        monkeypatch.setattr("attncheck.gate.history._encoded", lambda line: b"x" * 40_000)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20_000, limit[1]))
            with pytest.raises(InputError, match="cannot be written"):
                accept(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, kept)
        assert path.read_bytes() == before

    def test_a_line_that_was_cut_is_named(self, tmp_path: Path) -> None:
        path = write(history(3), tmp_path / "state.jsonl")
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(InputError, match=r"line 5 cannot be read .*delete this incomplete line"):
            History.read([path])


@functools.cache
def _record(folder: Path, seed: int) -> Path:
    path = folder / f"{seed}.jsonl"
    run = Run.of(
        RunOptions(subject=collapsed, seed=seed, profile="smoke", false_alarm=1e-6, record=path, only=("scores",))
    )
    from attncheck.looks.domains import domain_of

    items = run.items("scores", domain_of("scores").strategy("scores"))[:4]
    report = RunReport(run.settled([item.id for item in items]))
    for item in items:
        report.take(report.run.examine([item]))
    report.take(report.pool()[0])
    assert report.finish()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("histories")


class TestRuns:
    def test_scores_are_those_of_the_pools(self, folder: Path) -> None:
        record = _record(folder, 1)
        _, plan, left = entry_of(record, "commit")
        pools = {line.key: line for line in read(record) if isinstance(line, Result) and of_pool(line)}
        assert left.z
        assert set(left.z) <= set(pools)
        assert {name.rpartition("@")[0] for name in left.z} <= set(plan.checks)
        for name, z in left.z.items():
            pool = pools[name]
            two = 1.0 if name in left.one_sided else 2.0
            chance = special.ndtr(-z if name in left.one_sided else -abs(z)) * two
            assert pool.kind == "exact"
            assert chance == pytest.approx(pool.p_values[0], rel=2e-3)
            if name not in left.one_sided and pool.null_effect is not None:
                assert (z > 0) == (pool.effects[0] > pool.null_effect)

    def test_runs_are_added_once_and_with_draws_of_their_own(self, folder: Path, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "state.jsonl"
        added, note = add(path, _record(folder, 1), "first")
        assert (len(added.entries), note) == (1, "run 1 of the history")
        before = path.read_bytes()
        _, note = add(path, _record(folder, 2), "first")
        assert note == "first is already in the history: its first run counts"
        assert path.read_bytes() == before
        with pytest.raises(
            InputError, match=r"seed=1: is also the seed of first: the same draws add no evidence; run with"
        ):
            add(path, _record(folder, 1), "second")
        with pytest.raises(
            InputError, match=r"seed=0: is also the seed of every run by default.*run with --seed keyed"
        ):
            add(path, _record(folder, 0), "second")
        longer, _ = add(path, _record(folder, 2), "second")
        assert path.read_bytes().startswith(before)
        assert History.read([path]) == longer
        assert len(longer.since) == 2

    def test_a_run_that_is_added_late_hides_nothing(self, folder: Path, tmp_path: Path) -> None:
        path = write(history(40, drift=2.0), tmp_path / "state.jsonl")
        before = History.read([path])
        manifest, *_ = read(_record(folder, 2))
        assert isinstance(manifest, Manifest)
        early = dataclasses.replace(before, subject=manifest.subject, profile=manifest.profile)
        late = [msgspec.structs.replace(each, started="9999", seed=100 + each.seed) for each in early.entries]
        write(dataclasses.replace(early, entries=tuple(late)), path)
        longer, _ = add(path, _record(folder, 2), "late")
        assert longer.entries[-1].key == "late"
        assert longer.entries[-1].started < longer.entries[0].started
        assert History.read([path]) == longer
        assert longer.course.alarm == before.course.alarm is not None

    def test_a_run_of_another_version_is_refused(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("attncheck.gate.history.__version__", "99.0")
        with pytest.raises(InputError, match=r"was made by attncheck .*, and this is 99.0, whose checks may differ"):
            add(tmp_path / "state.jsonl", _record(folder, 1), "first")

    def test_pools_by_feature_have_room_for_new_ones(self) -> None:
        assert len(POOLS) < FEATURES

    def test_a_run_is_known_by_the_commit_of_its_record(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not by the commit checked out when it is judged."""
        record = _record(folder, 1)
        manifest = next(read(record))
        assert isinstance(manifest, Manifest)
        monkeypatch.setenv("GITHUB_SHA", "another")
        judged = gate(record, tmp_path / "baseline.jsonl", write=True)
        with_history(judged, tmp_path / "one.jsonl")
        named = manifest.commit or "another"
        assert [each.key for each in History.read([tmp_path / "one.jsonl"]).entries] == [named]
        head = msgspec.structs.replace(judged.run.manifest, commit="begun here")
        begun = dataclasses.replace(judged, run=dataclasses.replace(judged.run, manifest=head))
        with_history(begun, tmp_path / "two.jsonl")
        assert [each.key for each in History.read([tmp_path / "two.jsonl"]).entries] == ["begun here"]

    def test_without_a_commit_a_run_is_known_by_its_time(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GITHUB_SHA", raising=False)
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        monkeypatch.chdir(tmp_path)
        judged = gate(_record(folder, 1), tmp_path / "baseline.jsonl", write=True)
        head = msgspec.structs.replace(judged.run.manifest, commit="")
        judged = dataclasses.replace(judged, run=dataclasses.replace(judged.run, manifest=head))
        with_history(judged, Path("state.jsonl"))
        assert [each.key for each in History.read([Path("state.jsonl")]).entries] == [head.started]

    def test_what_cannot_be_written_adds_nothing(self, folder: Path, tmp_path: Path) -> None:
        state, baseline = tmp_path / "state.jsonl", tmp_path / "baseline.jsonl"
        record = str(_record(folder, 1))
        assert main(["gate", record, "--baseline", str(baseline), "--write-baseline"]) == ExitCode.CONSISTENT
        options = ["--history", str(state), "--key", "abc", "--badge", str(tmp_path)]
        assert main(["gate", record, "--baseline", str(baseline), *options]) == ExitCode.UNUSABLE
        assert not state.exists()

    def test_gate_adds_what_it_accepts(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state, baseline, junit = (tmp_path / name for name in ("state.jsonl", "baseline.jsonl.xz", "junit.xml"))
        record, options = str(_record(folder, 1)), ["--history", str(state), "--key", "abc"]
        assert main(["gate", record, "--baseline", str(baseline), *options]) == ExitCode.INCOMPLETE
        assert "the run is not added to the history because there is no baseline yet" in capsys.readouterr().out
        assert not state.exists()
        assert main(["gate", record, "--baseline", str(baseline), "--write-baseline"]) == ExitCode.CONSISTENT
        capsys.readouterr()
        assert main(["gate", str(_record(folder, 2)), "--baseline", str(baseline), *options]) == ExitCode.CONSISTENT
        assert "note: run 1 of the history, QUIET: 1 run of " in capsys.readouterr().out
        (plan,) = History.read([state]).plans
        loud = [msgspec.structs.replace(entry(k, {"scores.size@all": 3.0}), plan=plan) for k in range(100, 140)]
        with state.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in loud))
        later = ["--history", str(state), "--key", "def", "--junit", str(junit)]
        assert main(["gate", str(_record(folder, 3)), "--baseline", str(baseline), *later]) == ExitCode.VIOLATED
        told = capsys.readouterr().out
        assert "history: ALARM: 42 runs of" in told
        assert f"inspect it with attncheck history {state}; --accept restarts it" in told
        assert "history: no drift over runs" in junit.read_text(encoding="utf-8")

    def test_each_claim_has_its_course(self) -> None:
        """Including checks with a later revision, or of a future version."""
        names = ("scores.scale@all", "scores.law#2@causal", "draws.calls@all", "later.check@all")
        plan = PlannedChecks("plan", sorted({name.rpartition("@")[0] for name in names}))
        entries = [entry(k, dict(zip(names, (2.0, 0.1, 0.9, 0.1), strict=True))) for k in range(4)]
        shown = History("s", "p", tuple(entries), plans={"plan": plan})
        found = by_claim(shown)
        assert list(found) == ["scores", "draws", "of another version"]
        np.testing.assert_allclose(sum(found.values()), shown.course.total)
        np.testing.assert_allclose(found["draws"], shown.course.evidence[:, shown.streams.index("draws.calls@all")])

    def test_history_is_shown(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = write(history(40, drift=2.0), tmp_path / "state.jsonl")
        plot, out = tmp_path / "course.svg", tmp_path / "all.jsonl"
        code = main(["history", str(path), "--plot", str(plot), "--out", str(out)])
        told = capsys.readouterr().out
        assert code == ExitCode.VIOLATED
        assert told.startswith("ALARM: ")
        assert "| a@all " in told
        assert "| claim " in told
        drawn = plot.read_text(encoding="utf-8")
        assert "ALARM: 40 runs of mine:simulate" in drawn
        assert all(f">{text}</text>" in drawn for text in ("alarm", "all claims", "a@all", "three standard deviations"))
        assert History.read([out]) == History.read([path])
        assert main(["history", str(path), "--accept"]) == ExitCode.CONSISTENT
        assert main(["history", str(path)]) == ExitCode.CONSISTENT

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ((), "names no file"),
            (("none.jsonl",), "history=none.jsonl: cannot be read"),
            (("one.jsonl", "--plot", "course.gif"), "ends in neither .svg nor .png"),
            (("one.jsonl", "two.jsonl", "--accept"), "changes one file"),
        ],
    )
    def test_what_cannot_be_shown_is_said(
        self,
        arguments: tuple[str, ...],
        said: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("one", "two"):
            write(history(3), Path(f"{name}.jsonl"))
        assert main(["history", *arguments]) == ExitCode.UNUSABLE
        assert said in capsys.readouterr().err


class TestKeys:
    def test_the_commit_is_named_by_what_there_is(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("GITHUB_SHA", "cafe")
        assert commit_key() == "cafe"
        assert commit_key("beef") == "beef"
        monkeypatch.delenv("GITHUB_SHA")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        with pytest.raises(InputError, match="no commit found in GITHUB_SHA or git; pass --key"):
            commit_key()
        with pytest.raises(InputError, match="is not one line of text"):
            commit_key("two\nlines")

    def test_a_key_without_a_history_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["gate", "run.jsonl", "--baseline", "b.xz", "--key", "abc"]) == ExitCode.UNUSABLE
        assert "key='abc': has no effect without --history" in capsys.readouterr().err

    def test_each_commit_has_a_seed_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_SHA", "cafe")
        assert seed_typed("keyed") == str(keyed_seed("cafe"))
        assert keyed_seed("cafe") != keyed_seed("beef")
        assert seed_typed("7") == "7"
        assert seed_typed("random").isdecimal()
        assert json.loads(seed_typed("keyed")) < 2**48
