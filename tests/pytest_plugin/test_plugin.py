"""The pytest front end: options, seeds, workers, refused and incomplete runs, and users' own tests."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from attncheck.looks.profiles import ANCHORS, PROFILES
from attncheck.records.schema import Closing, Manifest, Result, of_pool, read

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

narrow.supports = lambda layer: layer.width < 16 or "only narrow layers"
"""

# Fixed smoke cases: n=16 s=4 H=2, n=8 s=4 H=2 and a single number.
WIDE, NARROW, TINY = (layer.key for layer in ANCHORS[:3])
# Two layers, or all three, where the number does not matter.
WIDER = ("-k", f"{WIDE} or {NARROW}")
TWO = ("-k", f"{NARROW} or {TINY}")
THREE = ("-k", f"{WIDE} or {NARROW} or {TINY}")
# Fewer drawn layers; for workers, which have profiles of their own.
FEW = """
import dataclasses
from attncheck.looks.profiles import PROFILES
PROFILES["smoke"] = dataclasses.replace(PROFILES["smoke"], examples={})
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
        monkeypatch.setitem(PROFILES, profile, dataclasses.replace(PROFILES[profile], examples=0))
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
    assert smoke(place, subject, "-n2", *THREE).ret == 0
    calls = (place.path / "calls").read_text("utf-8").split("\n")[:-1]
    found = digits(place)
    assert {key for key, _ in map(str.split, calls)} == {WIDE, NARROW, TINY}
    assert len({tuple(call.split()) for call in calls}) - 1 <= 3
    (place.path / "calls").unlink()
    # One by one, and the second property alone: as many calls as for the first.
    assert smoke(place, subject, *THREE).ret == 0
    assert digits(place) == found
    both = (place.path / "calls").read_text("utf-8")
    (place.path / "calls").unlink()
    smoke(place, subject, "test_it.py", *THREE)
    assert both.count("\n") == (place.path / "calls").read_text("utf-8").count("\n")


def test_a_run_of_a_subject_that_returns_nonsense_is_incomplete(place: pytest.Pytester) -> None:
    result = smoke(place, "--attncheck-subject=subjects:nans", "--tb=long", *THREE)
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
    result = smoke(place, "--attncheck-subject=subjects:crashes", "-n1", *THREE)
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
