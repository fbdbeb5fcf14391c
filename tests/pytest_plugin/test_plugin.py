"""The pytest front end: options, seeds, workers, refused and incomplete runs, and users' own tests."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from attncheck._lib.exit_codes import ExitCode
from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.records.schema import Closing, Manifest, Result, of_pool, read
from tests.recorded import results_in

pytest_plugins = ["pytester"]

PROPERTY = """
from attncheck.pytest_plugin import examines
from attncheck.strategies import layers

@examines("draws", layers(max_entries=40))
def test_draws(layer, hold):
    hold(layer)
"""

SUBJECTS = """
import os, time
import numpy as np
from attncheck import AttentionLayer
from attncheck.subject import collapsed

def right(layer, size, rng):
    return collapsed(layer, size, rng)

def nans(layer, size, rng):
    drawn = collapsed(layer, size, rng)
    if layer.width == 8:
        drawn["outputs"][0, 0, 0] = np.nan
    return drawn

def crashes(layer, size, rng):
    if layer.key == open("fatal").read():
        os._exit(3)
    return collapsed(layer, size, rng)

def hangs(layer, size, rng):
    if layer.width == 8:
        open("hanging", "w").close()
        time.sleep(600)
    return collapsed(layer, size, rng)

def noting(layer, size, rng):
    with open("calls", "a") as file:
        file.write(f"{layer.key} {os.getpid()}\\n")
    return collapsed(layer, size, rng)

def outputs_alone(layer, size, rng):
    return {"outputs": collapsed(layer, size, rng)["outputs"]}

def narrow(layer, size, rng):
    return collapsed(layer, size, rng)

def slight(layer, size, rng):
    return collapsed(layer.replace(query_std=1.012 * layer.query_std), size, rng)

slight.layers = [AttentionLayer(width=width, seq_len=2, num_heads=1) for width in range(3, 11)]
narrow.supports = lambda layer: layer.width < 16 or "only narrow layers"
"""

# Fixed smoke cases: n=16 s=4 H=2, n=8 s=4 H=2 and a single number.
WIDE, NARROW, TINY = (layer.key for layer in ANCHORS[:3])
# Two layers, where the number does not matter; three are fixed.
WIDER = ("-k", f"{WIDE} or {NARROW}")
TWO = ("-k", f"{NARROW} or {TINY}")
# Fewer layers; for workers, which have profiles of their own.
FEW = """
import dataclasses
from attncheck.looks.profiles import PROFILES
PROFILES["smoke"] = dataclasses.replace(PROFILES["smoke"], fixed_cases=3, examples={})
"""


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a folder with a property and subjects, without the user's settings."""
    # Without its cache, pytest rewrites hypothesis' assertions in every process.
    for name in ("ATTNCHECK_SUBJECT", "PYTEST_ADDOPTS", "CI", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(pytester.path)
    # Fixed cases are chosen below; no others need be drawn.
    for profile in ("smoke", "thorough"):
        monkeypatch.setitem(PROFILES, profile, dataclasses.replace(PROFILES[profile], fixed_cases=3, examples=0))
    pytester.makepyfile(test_it=PROPERTY, subjects=SUBJECTS)
    return pytester


def smoke(place: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the property at the smoke profile, in this process."""
    arguments = ["-p", "no:cacheprovider", "--attncheck-profile=smoke", "--attncheck-record=record.jsonl", *options]
    return place.runpytest_inprocess(*arguments, no_reraise_ctrlc=True)


def lines(place: pytest.Pytester, record: str = "record.jsonl") -> tuple[Manifest, list[Result], Closing]:
    manifest, *results, closing = read(place.path / record)
    assert isinstance(manifest, Manifest)
    assert isinstance(closing, Closing)
    return manifest, [line for line in results if isinstance(line, Result) and not of_pool(line)], closing


def digits(place: pytest.Pytester) -> tuple[Any, ...]:
    manifest, results, closing = lines(place)
    planned = {(planned.id, planned.item, planned.check) for planned in manifest.planned}
    found = {result.id: (result.case, result.p_values, result.effects) for result in results}
    return planned, manifest.level, found, closing.digest


def printed(result: pytest.RunResult) -> str:
    return "\n".join([*result.outlines, *result.errlines])


def test_nothing_but_the_seed_changes_a_digit(place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random seed is drawn once, printed and used by a worker.

    With it, layers and digits are the same without workers, outside CI, with hypothesis' own seed, and in another
    item order.
    """
    subject = "--attncheck-subject=subjects:right"
    place.makeconftest(FEW.format(3))
    # Hypothesis looks for CI on import, in each worker.
    monkeypatch.setenv("CI", "true")
    first = smoke(place, subject, "--attncheck-seed=random", "--hypothesis-seed=5", "-n1")
    assert first.ret == 0, printed(first)
    drawn = re.search(r"seed (\d+), profile smoke", printed(first))
    assert drawn
    found = digits(place)
    manifest, *_ = lines(place)
    assert manifest.seed == int(drawn[1])

    monkeypatch.delenv("CI")
    place.makeconftest(FEW.format(3) + "def pytest_collection_modifyitems(items): items.reverse()")
    smoke(place, subject, f"--attncheck-seed={drawn[1]}")
    assert digits(place) == found
    assert lines(place)[0].planned != manifest.planned


#: Options, and what is said: a row per option, as tests/run has all values.
UNUSABLE = [
    (["-v", "--attncheck-seed=abc"], "seed='abc': must be a whole number; pass a whole number, or random"),
    (["--attncheck-profile=smok"], "profile='smok': is not known; use one of 'smoke', 'default', 'thorough'"),
    (["--attncheck-false-alarm=nan"], "false_alarm=nan: must be finite; pass a chance such as 1e-6"),
    (["--attncheck-draws=1000"], "draws='1000': has no effect with the profile smoke; use the profile thorou"),
    (["--attncheck-record=test_it.py/record", "-n1"], "record=test_it.py/record: cannot be written"),
    (["--attncheck-only=nonsense"], "only='nonsense'"),
    (["--attncheck-checks=nowhere"], "checks=nowhere"),
    (["--attncheck-subject=nowhere:simulate"], "subject=nowhere:simulate: cannot be imported: ModuleNotFound"),
]


@pytest.mark.parametrize(("options", "message"), UNUSABLE)
def test_an_unusable_option_is_a_usage_error(place: pytest.Pytester, options: list[str], message: str) -> None:
    result = smoke(place, "-q", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, result.errlines)
    assert message in line
    assert "Traceback" not in printed(result)
    assert not (place.path / "record.jsonl").exists()


INTERRUPTED, MANIFEST = "def pytest_{}(): raise KeyboardInterrupt", '{"type":"manifest","schema":7}\n'


@pytest.mark.parametrize("hook", ["sessionstart", "collection_modifyitems", ""])
def test_a_run_that_does_not_begin_leaves_no_earlier_record_in_its_place(place: pytest.Pytester, hook: str) -> None:
    """A gate would take it for the record of this run."""
    record = place.path / "record.jsonl"
    record.write_text(MANIFEST)
    if hook:
        place.makeconftest(INTERRUPTED.format(hook))
    result = smoke(place, f"--attncheck-subject=subjects:{'right' if hook else 'typo'}")
    assert result.ret == (pytest.ExitCode.INTERRUPTED if hook else pytest.ExitCode.USAGE_ERROR)
    assert not record.exists()
    assert record.with_name("record.jsonl.earlier").read_text() == MANIFEST


def test_subject_is_named_by_option_and_environment(place: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option wins; the seed is 0 by default, and another one has other digits."""
    monkeypatch.setenv("ATTNCHECK_SUBJECT", "subjects:right")
    result = smoke(place, "-k", TINY)
    result.stdout.fnmatch_lines(["attncheck: subject subjects:right, seed 0, profile smoke, *1e-06"])
    first, _, closing = lines(place)
    smoke(place, "-k", TINY, "--attncheck-subject=attncheck.subject:collapsed", "--attncheck-seed=1")
    second, _, other = lines(place)
    assert [(line.subject, line.seed) for line in (first, second)] == [
        ("subjects:right", 0),
        ("attncheck.subject:collapsed", 1),
    ]
    assert closing.digest != other.digest
    monkeypatch.setenv("ATTNCHECK_SUBJECT", "subjects:typo")
    result = smoke(place, "-k", TINY)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "subjects has no 'typo'" in printed(result)


def test_unknown_property_is_an_error_of_collection_in_a_line(place: pytest.Pytester) -> None:
    place.makepyfile(test_it=PROPERTY.replace('"draws"', '"drawn"'))
    result = smoke(place)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "property='drawn': is not known; use one of" in printed(result)
    assert "Traceback" not in printed(result)
    assert "registry.py" not in printed(result)


UNSUPPORTED = "the subject does not support this layer: only narrow layers"
UNEXPOSED = "the subject does not expose scores"


@pytest.mark.parametrize(
    ("subject", "selection", "check", "reason", "verdict"),
    [
        ("outputs_alone", TWO, "draws.precision_scores", UNEXPOSED, "consistent"),
        ("narrow", ("-k", f"{WIDE} or {TINY}"), "draws.", UNSUPPORTED, "consistent"),
        ("narrow", ("-k", WIDE), "draws.", UNSUPPORTED, "inconclusive"),
    ],
)
def test_not_examined_is_neither_failed_nor_passed(
    place: pytest.Pytester, subject: str, selection: Sequence[str], check: str, reason: str, verdict: str
) -> None:
    """A run that examines nothing is no pass."""
    result = smoke(place, f"--attncheck-subject=subjects:{subject}", *selection)
    assert result.ret == (verdict != "consistent")
    _, results, closing = lines(place)
    assert closing.verdict == verdict
    left_out = [line for line in results if line.check.startswith(check) and (line.case["width"] != 1 or "_" in check)]
    assert {(line.verdict, line.reason) for line in left_out} == {("not examined", reason)}
    if subject == "outputs_alone":
        gain = "Return *, scores and value_gram too: up to 16 more results."
        result.stdout.fnmatch_lines(["CONSISTENT: *", gain])


def test_selection_is_the_plan(place: pytest.Pytester) -> None:
    result = smoke(place, "-k", NARROW, "--junit-xml=junit.xml")
    assert result.ret == 0
    assert "p_values" not in (place.path / "junit.xml").read_text()
    manifest, results, _ = lines(place)
    assert {planned.item for planned in manifest.planned} == {f"draws@{NARROW}"}
    assert [planned.id for planned in manifest.planned] == [result.id for result in results]


ERROR = "run on subjects:nans is incomplete, which is not a pass: subject[&#39;outputs&#39;][0, 0, 0]=nan"


@pytest.mark.parametrize(
    ("subject", "code", "heading"),
    [
        ("subjects:right", ExitCode.CONSISTENT, "behaves as the theorem says"),
        ("subjects:nans", ExitCode.UNUSABLE, ERROR),
        # A page that cannot be made hides no verdict, and is no pass.
        ("attncheck.faults:half_precision_scores", ExitCode.VIOLATED, ""),
        ("subjects:right", ExitCode.UNUSABLE, ""),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_the_page_is_rendered_at_the_end(place: pytest.Pytester, subject: str, code: int, heading: str) -> None:
    page = place.path / "out" / "page.html"
    if not heading:
        page.mkdir(parents=True)
    result = smoke(place, "-k", NARROW, f"--attncheck-report={page}", f"--attncheck-subject={subject}")
    assert result.ret == code, printed(result)
    if heading:
        assert f"Report: {page}" in result.outlines
        assert heading in page.read_text(encoding="utf-8").partition("<h2")[2].partition("</h2>")[0]
    else:
        verdict = "VIOLATED" if code == ExitCode.VIOLATED else "CONSISTENT"
        result.stdout.fnmatch_lines([f"{verdict}: {subject}*", "Report: not written, out=*"])


@pytest.mark.usefixtures("verdicts_only")
def test_a_violated_pool_is_a_failed_report(place: pytest.Pytester) -> None:
    """Of eight layers, which are right alone; as in tests/run/test_pools.py."""
    place.makepyfile(test_it=PROPERTY.replace("draws", "scores"))
    result = smoke(place, "-rf", "--junit-xml=junit.xml", "--attncheck-subject=subjects:slight")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED attncheck::pools[[]scores.scale@*", "VIOLATED: subjects:slight*"])
    assert "pools[scores.scale@" in (place.path / "junit.xml").read_text()
    bad = {result.id: result for result in results_in(place.path / "record.jsonl") if result.verdict == "violated"}
    assert "scores.scale@all" in bad
    assert all(map(of_pool, bad.values()))


@pytest.mark.parametrize("options", [["--collect-only"], ["-k", "nothing_of_that_name"], ["-k", "("]])
def test_without_a_run_the_last_record_stays(place: pytest.Pytester, options: Sequence[str]) -> None:
    record = place.path / "record.jsonl"
    record.write_text("the last one")
    result = smoke(place, *options)
    assert record.read_text() == "the last one"
    assert "attncheck ===" not in printed(result)


def test_items_of_a_case_go_to_one_worker_which_draws_once(place: pytest.Pytester) -> None:
    place.makepyfile(test_more=PROPERTY.replace("draws", "non_gaussianity"))
    place.makeconftest(FEW.format(0))
    subject = "--attncheck-subject=subjects:noting"
    assert smoke(place, subject, "-n2").ret == 0
    calls = (place.path / "calls").read_text("utf-8").split("\n")[:-1]
    found = digits(place)
    assert {key for key, _ in map(str.split, calls)} == {WIDE, NARROW, TINY}
    assert len({tuple(call.split()) for call in calls}) - 1 <= 3
    (place.path / "calls").unlink()
    # One by one, and the second property alone: as many calls as for the first.
    assert smoke(place, subject).ret == 0
    assert digits(place) == found
    both = (place.path / "calls").read_text("utf-8")
    (place.path / "calls").unlink()
    smoke(place, subject, "test_it.py")
    assert both.count("\n") == (place.path / "calls").read_text("utf-8").count("\n")


def test_a_run_of_a_subject_that_returns_nonsense_is_incomplete(place: pytest.Pytester) -> None:
    result = smoke(place, "--attncheck-subject=subjects:nans", "--tb=long")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    errors = [line for line in result.outlines if line.startswith("subject['outputs'][0, 0, 0]=nan: is not finite")]
    assert [line.partition("; ")[2] for line in errors] == ["mend the simulator (subject subjects:nans on n=8 s=4 H=2)"]
    assert "Traceback" not in printed(result)
    _, results, closing = lines(place)
    assert closing.verdict == "incomplete"
    assert all(result.case["width"] != 8 for result in results)
    assert len(results) >= 15
    assert "planned results are missing: draws.calls, " in closing.reasons[0]


@pytest.mark.parametrize("fate", ["pytest.skip('not today')", "raise RuntimeError"])
def test_a_run_with_a_skipped_or_failed_item_is_incomplete(place: pytest.Pytester, fate: str) -> None:
    place.makeconftest(f"""
        import pytest

        @pytest.fixture(autouse=True)
        def sometimes(request):
            if "{NARROW}" in request.node.name:
                {fate}
    """)
    result = smoke(place, *TWO)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    _, results, closing = lines(place)
    assert closing.verdict == "incomplete"
    assert results


def test_a_run_with_a_worker_that_crashes_is_incomplete(place: pytest.Pytester) -> None:
    place.makeconftest(FEW.format(0))
    (place.path / "fatal").write_text(NARROW)
    result = smoke(place, "--attncheck-subject=subjects:crashes", "-n1")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    manifest, results, closing = lines(place)
    assert closing.verdict == "incomplete"
    lost = {planned.item for planned in manifest.planned} - {result.item for result in results}
    assert lost == {f"draws@{NARROW}"}


@pytest.mark.usefixtures("interruptible")
def test_a_run_interrupted_while_a_worker_hangs_is_incomplete(
    place: pytest.Pytester, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    record = place.path / "record.jsonl"
    place.makeconftest(FEW.format(0))
    command = [sys.executable, "-m", "pytest", "-n1", "--attncheck-profile=smoke"]
    command += ["--attncheck-record=record.jsonl", "--attncheck-subject=subjects:hangs", "-p", "no:cacheprovider"]
    with subprocess.Popen([*command, *WIDER], cwd=place.path, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for((place.path / "hanging").exists)
            wait_for(lambda: record.exists() and record.read_bytes().count(b"\n") > 1)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()  # a hung one would be waited for
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    _, results, closing = lines(place)
    assert closing.verdict == "incomplete"
    assert results
    assert "INCOMPLETE: subjects:hangs" in said


def test_plugin_is_light_and_silent(place: pytest.Pytester) -> None:
    place.makepyfile(
        test_it="""
        import sys
        import pytest

        @pytest.mark.parametrize("address", ["somebody@example.org", "scores@0123456789ab"])
        def test_modules(address):
            ours = {name for name in sys.modules if name.partition(".")[0] == "attncheck"}
            options = ("attncheck.runs", "attncheck.runs.options")
            light = ("assertions", "cases", "marks", "reporter", "sharing", "payload", "statements")
            ours -= {f"attncheck.pytest_plugin.{name}" for name in light}
            own = {"attncheck", "attncheck._lib", "attncheck._lib.version", "attncheck.pytest_plugin"}
            assert ours <= own.union(options)
            assert not {"numpy", "scipy", "rich", "msgspec"} & set(sys.modules)

        @pytest.mark.parametrize("layer", [1])
        def test_layer(layer):
            pass
        """
    )
    for workers in ("0", "1"):
        result = place.runpytest_subprocess("-n", workers, "-p", "no:hypothesispytest", "-p", "no:cov")
        assert result.ret == 0, printed(result)
        body = [line for line in result.outlines if not line.startswith("plugins:")]
        assert not any("attncheck" in line for line in body)
        assert sorted(path.name for path in place.path.glob("*.jsonl")) == []
        assert not (place.path / "reports").exists()


# The fixture `evidence`: one budget for a session, in any order and with any number of workers ----


TESTS = """
import pytest
import scipy

def normal(rng, size):
    return rng.standard_normal(size)

@pytest.mark.parametrize("std", [1.0, 1.2])
def test_scale(evidence, std):
    evidence.assert_law(normal, scipy.stats.norm(), effect=0.1)
    evidence.assert_scale(normal, std=std, effect=0.1)

def test_shares(evidence):
    assert round(evidence.alpha * 4, 12) == ALPHA

def test_pairs(evidence):
    evidence.assert_independent(lambda rng, size: (rng.random(size), rng.random(size)), effect=0.2)

def test_without():
    pass
"""
SUMMARY = "evidence: 5 assertions, violated in *test_scale?1.2? (chance of any false alarm at most 1e-06)"


def messages(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("E ")]


def test_the_budget_is_shared_by_the_tests_that_use_it_and_a_selected_or_replayed_one_draws_the_same(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(TESTS.replace("ALPHA", "1e-6"))
    whole = pytester.runpytest_inprocess("-p", "no:xdist")
    whole.assert_outcomes(passed=4, failed=1)
    whole.stdout.fnmatch_lines(["*violated: standard deviation *expected 1.2 *at most 4.2e-08)", SUMMARY])
    both = pytester.runpytest_inprocess("-n", "2")
    both.assert_outcomes(passed=4, failed=1)
    both.stdout.fnmatch_lines([SUMMARY])
    assert messages(whole.outlines) == messages(both.outlines)
    selected = pytester.runpytest_inprocess("-p", "no:xdist", "-k", "1.2")
    assert messages(selected.outlines) == messages(whole.outlines)
    found = re.search(r"repeat with pytest '(.+)' --attncheck-seed=0 (--evidence-alpha=\S+)", whole.stdout.str())
    assert found is not None
    assert found[1] == f"{path.name}::test_scale[1.2]"
    replayed = pytester.runpytest_inprocess("-p", "no:xdist", found[1], found[2])
    assert messages(replayed.outlines) == messages(whole.outlines)


def test_the_budget_is_an_option_and_an_ini_value(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nevidence_alpha = 0.001\n")
    pytester.makepyfile(TESTS.replace("ALPHA", "0.001"))
    pytester.runpytest_inprocess("-k", "shares").assert_outcomes(passed=1, deselected=4)
    pytester.makepyfile(TESTS.replace("ALPHA", "0.01"))
    pytester.runpytest_inprocess("-k", "shares", "--evidence-alpha=0.01").assert_outcomes(passed=1, deselected=4)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("def test_one(evidence): evidence.alpha", ["--evidence-alpha=0"], "*evidence_alpha=0.0: must be greater*"),
        ("def test_one(evidence): pass", ["--evidence-alpha=2"], "*evidence_alpha=2.0: must be less than 1*"),
        ("def test_one(evidence): pass", ["-o", "evidence_alpha=abc"], "*evidence_alpha=abc: is not a number*"),
        (
            "def test_one(request): request.getfixturevalue('evidence')",  # a test that is not counted
            [],
            "*name the fixture evidence among the test's arguments*",
        ),
    ],
)
def test_refused(pytester: pytest.Pytester, source: str, options: list[str], message: str) -> None:
    pytester.makepyfile(source)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
    assert fnmatch.fnmatch(result.stdout.str() + result.stderr.str(), f"*{message}*")
    assert result.ret != 0
