"""Sample files and attention weights in place of scores: input, errors, and verdicts on right and wrong ones."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attncheck as ac
from attncheck._lib.arrays import FloatArray
from attncheck.checks.sample import Sample
from attncheck.records.schema import Result, read
from attncheck.runs.samples.command import check_files
from attncheck.runs.samples.examine import examine_samples
from attncheck.runs.samples.files import read_samples
from attncheck.simulators.literal import LiteralSimulator
from attncheck.simulators.weights import draw_with_weights
from tests.recorded import closing_of, results_in
from tests.refusals import refused
from tests.results import results_of

LAYER = ac.AttentionLayer(width=16)
SIZE = 9_000


@pytest.fixture(scope="module")
def draws() -> ac.Draws:
    return ac.simulate(LAYER, SIZE, seed=11, method="direct")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, draws: ac.Draws) -> Path:
    place = tmp_path_factory.mktemp("samples")
    (place / "layer.toml").write_text(LAYER.to_toml())
    # mypy takes the arrays for `allow_pickle` too, which is a bool: no array has that name.
    np.savez(place / "full.npz", **draws.as_dict())  # type: ignore[arg-type]
    np.savez(place / "scores.npz", outputs=draws.outputs[:, :, 0], scores=draws.scores)
    np.save(place / "outputs.npy", draws.outputs[:, :, 0])
    np.savetxt(place / "named.csv", draws.outputs[:, ::-1, 0], delimiter=",", header="y4,y3,y2,y1", comments="")
    np.savetxt(place / "plain.csv", draws.outputs[:2000, :, 0], delimiter=",")
    return place


@functools.cache
def verdict_of(folder: Path, name: str) -> tuple[int, str, tuple[Result, ...]]:
    """Return exit code, text and the record's results, one per file."""
    record = folder / f"{name}.jsonl"
    code, text = check_files([folder / "layer.toml"], [folder / name], record)
    return code, text, tuple(results_in(record))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["full.npz", "scores.npz", "outputs.npy", "named.csv"])
def test_samples_of_the_direct_reading_are_consistent(folder: Path, name: str) -> None:
    # False-alarm level 1e-6 per file, as budgeted.
    code, text, results = verdict_of(folder, name)
    first_line = "CONSISTENT: " if name.endswith("npz") else "CONSISTENT, OUTPUTS ONLY: "
    assert (code, text[: len(first_line)]) == (0, first_line), text
    manifest, *_ = read(folder / f"{name}.jsonl")
    assert {planned.id for planned in manifest.planned} == {result.id for result in results}
    assert closing_of(folder / f"{name}.jsonl").verdict == "consistent"


DAMAGES: dict[str, Callable[[ac.Draws], dict[str, Any]]] = {
    "wrong scale": lambda d: {"outputs": 1.2 * d.outputs},
    "scores halved": lambda d: {**d.as_dict(), "scores": 0.5 * d.scores},
    "shifted": lambda d: {**d.as_dict(), "outputs": d.outputs + 0.1},
    "columns swapped": lambda d: {**d.as_dict(), "scores": d.scores.swapaxes(-1, -2)},
    "heads swapped": lambda d: {**d.as_dict(), "value_gram": d.as_dict()["value_gram"][:, ::-1]},
    "rows shuffled": lambda d: {**d.as_dict(), "scores": np.roll(d.scores, 1, axis=0)},
    "half precision": lambda d: {"outputs": d.outputs.astype(np.float16)},
    "repeated block": lambda d: {"outputs": np.tile(d.outputs[:600], (30, 1, 1))},
    "gaussian": lambda d: {"outputs": np.random.default_rng(5).standard_normal(d.outputs.shape) * d.outputs.std()},
    "sorted": lambda d: {"outputs": d.outputs[np.argsort((d.outputs**2).sum(axis=(1, 2)))]},
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_samples_are_violated(tmp_path: Path, draws: ac.Draws, damage: str) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **DAMAGES[damage](draws))
    results, _ = examine_samples([read_samples(path, LAYER)])
    assert any(result.verdict == "violated" for result in results)


@pytest.mark.sampled
@pytest.mark.parametrize(("weights", "code"), [("uniform", 0), ("gaussian", 1), ("query=uniform", 1)])
def test_files_of_other_weights_are_held_to_them(tmp_path: Path, weights: str, code: int) -> None:
    layer = ac.AttentionLayer(width=2, seq_len=2, num_heads=1)
    (tmp_path / "layer.toml").write_text(layer.to_toml())
    drawn = draw_with_weights(layer, 6_000, 2, np.random.default_rng(3), "uniform")
    np.savez(tmp_path / "samples.npz", **drawn.as_dict())  # type: ignore[arg-type]
    found, text = check_files([tmp_path / "layer.toml"], [tmp_path / "samples.npz"], weights=weights)
    assert found == code, text
    assert ("the draws fit weights='uniform'" in text) == bool(code)


def test_a_violation_is_told_in_numbers(tmp_path: Path, draws: ac.Draws, folder: Path) -> None:
    np.save(tmp_path / "samples.npy", 1.2 * draws.outputs[:3_000][:, :, 0])
    code, text = check_files([folder / "layer.toml"], [tmp_path / "samples.npy"])
    assert code == 1
    assert "observed: output variance 0." in text
    assert "\n  cause:    W_V, W_O or the scaling of the heads: " in text


def test_too_few_draws_are_inconclusive_and_say_how_many_it_takes(tmp_path: Path, folder: Path) -> None:
    np.save(tmp_path / "few.npy", ac.simulate(LAYER, 60, seed=1).outputs[:, :, 0])
    code, text = check_files([folder / "layer.toml"], [tmp_path / "few.npy"])
    assert code == 3
    assert "draws; the file has 60" in text


def with_nan(*shape: int) -> FloatArray:
    """Return zeros but for one entry in the second draw: of the third position, or head if there are so many."""
    array = np.zeros(shape)
    array[(1, 2 % shape[1], *(0,) * (len(shape) - 2))] = np.nan
    return array


class Executed:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickling runs code",)


HEADER, ZEROS = "y1,y2,y3,y4\n", np.zeros((5, 4))
#: Names, contents (None: there is no file) and messages.
UNUSABLE: list[tuple[str, str | dict[str, Any] | None, str]] = [
    ("missing.npy", None, ""),
    ("file.txt", "1", ""),
    ("cut.npz", "PK\x03\x04", ""),
    ("pickled.npz", {"outputs": np.array([Executed()], dtype=object)}, ""),
    ("words.csv", f"{HEADER}1,2,x,4\n", ""),
    ("columns.csv", "y1,y2,y3,z\n1,2,3,4\n", ": columns=['y1', 'y2', 'y3', 'z']: are not each output once"),
    ("outside.csv", "y1,y2,y3,y4,y5\n1,2,3,4,5\n", "are not each output once; name them y1 to y4"),
    ("rows.csv", HEADER, "has no rows below its header; write one row per draw"),
    ("comment.csv", f"{HEADER}\n# none\n", "has no rows below its header; write one row per draw"),
    ("names.csv", "y1,y2,y3\n1,2,3,4\n", "has 3 names in its header, but 4 columns; name every column once"),
    ("nan.csv", f"{HEADER}1,2,3,4\n1,2,nan,4\n", ": outputs[1, 2, 0]=nan: is not finite; mend the"),
    ("large.csv", "1,2,3,4\n1,2,3,-1e200\n", ": outputs[1, 3, 0]=-1e+200: is beyond 1e+100"),
    ("empty.npz", {"outputs": ZEROS[:0]}, "outputs.shape=(0, 4): holds no draws; write one row per draw"),
    ("nan.npz", {"outputs": with_nan(5, 4)}, "outputs[1, 2, 0]=nan: is not finite; mend the"),
    ("inputs.npz", {"outputs": ZEROS, "inputs": with_nan(5, 4)}, "inputs[1, 2, 0]=nan"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "content", "message"), UNUSABLE)
def test_unusable_files_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)  # messages cut long paths
    if isinstance(content, str):
        Path(name).write_text(content)
    elif content is not None:
        np.savez(name, **content)
    assert name in refused(lambda: read_samples(Path(name), LAYER), re.escape(message or name))


# Several files ------------------------------------------------------------------------------------

LAYERS = tuple(ac.AttentionLayer(width=width, seq_len=2, num_heads=1) for width in (4, 5, 6, 7, 8, 9, 10, 12))


def written(folder: Path, factor: float) -> tuple[list[Path], list[Path]]:
    """Write a file per layer, with W_Q `factor` times too large."""
    layers, samples = [], []
    for layer in LAYERS:
        drawn = ac.simulate(layer.replace(query_std=factor), 9_000, seed=layer.width)
        layers.append(folder / f"{layer.width}.toml")
        samples.append(folder / f"{layer.width}.npz")
        layers[-1].write_text(layer.to_toml())
        grams = {name: getattr(drawn, name) for name in ("input_gram", "key_gram")}  # what scores are compared with
        np.savez(samples[-1], outputs=drawn.outputs, scores=drawn.scores, **grams)
    return layers, samples


@pytest.mark.usefixtures("no_causes")
def test_a_slight_departure_shows_in_all_files_together(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    code, text = check_files(*written(tmp_path, 1.016), record)
    results = results_in(record)
    assert text.startswith("VIOLATED: 4.npz, 5.npz, 6.npz, 7.npz, ")
    assert "\n12.npz: 9,000 draws of n=12 s=2 H=1\n" in text
    assert "scores.scale@all" in {result.id for result in results if result.verdict == "violated"}
    pool = next(result for result in results if result.id == "scores.scale@all")
    assert (code, len(pool.p_values)) == (1, 3)  # block with block
    assert all(max(one.p_values) > pool.level for one in results if "pool" not in one.case and one.p_values)


def test_files_of_one_layer_and_unknown_weights_are_refused(folder: Path) -> None:
    layer, samples = folder / "layer.toml", folder / "outputs.npy"
    for weights in ("cauchy", "queries=uniform", "query=cauchy"):
        refused(functools.partial(check_files, [layer], [samples], weights=weights), "is not known; use one of")
    for files, message in ((1, "pass one --layer per --samples"), (2, "put draws of one layer into one file")):
        refused(functools.partial(check_files, [layer, layer], [samples] * files), message)


CAUSAL = ac.AttentionLayer(width=16, seq_len=4, num_heads=2, mask="causal")


def subject_of(literal: LiteralSimulator, *fields: str) -> Any:
    class Shown:
        def __call__(self, layer: ac.AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, FloatArray]:
            drawn = literal(layer, size, rng)
            drawn["attention"] = literal.weigh(layer, drawn["scores"])
            return {name: drawn[name] for name in ("outputs", "attention", *fields)}

    return Shown()


@pytest.mark.parametrize("attention_map", ["linear", "sigmoid"])
def test_weights_of_some_maps_are_scores(attention_map: Any) -> None:
    layer = CAUSAL.replace(attention_map=attention_map)
    arrays = ac.simulate(layer, 10, seed=0).as_dict()
    scores = arrays.pop("scores")
    arrays["attention"] = layer.attention_weights(scores)
    sample = Sample.from_mapping(layer, arrays, 10)
    assert sample.attention is None
    assert np.allclose(sample.need("scores")[..., layer.visible], scores[..., layer.visible])
    assert np.isneginf(sample.need("scores")[..., ~layer.visible]).all()


@pytest.mark.parametrize("attention_map", ["softmax", "relu"])
def test_the_same_is_made_of_weights_as_of_scores(attention_map: Any) -> None:
    layer = CAUSAL.replace(attention_map=attention_map)
    arrays = ac.simulate(layer, 50, seed=0, coordinates=2).as_dict()
    whole = Sample.from_mapping(layer, arrays, 50)
    weights = layer.attention_weights(arrays["scores"])
    assert Sample.from_mapping(layer, {**arrays, "attention": weights}, 50).attention is None  # it adds nothing
    del arrays["scores"]
    shown = Sample.from_mapping(layer, {**arrays, "attention": weights}, 50)
    assert "scores" not in shown.exposed
    assert np.array_equal(shown.output_residual.values, whole.output_residual.values)
    assert np.array_equal(shown.variance_weights, whole.variance_weights)


def test_what_is_no_attention_is_refused() -> None:
    arrays = ac.simulate(CAUSAL, 10, seed=0).as_dict()
    twice_the_scores, weights = (CAUSAL.attention_weights(factor * arrays["scores"]) for factor in (2.0, 1.0))
    for attention, shown, message in (
        (weights + 0.01, ["outputs"], "behind the mask"),
        (0.9 * weights, ["outputs"], "row sums"),
        (-weights, ["outputs"], "below 0"),
        (twice_the_scores, ["outputs", "scores"], "computed from the given scores"),
    ):
        fields = {name: arrays[name] for name in shown} | {"attention": attention}
        refused(functools.partial(Sample.from_mapping, CAUSAL, fields, 10), rf"attention.*{message}")


GRAMS = ("input_gram", "value_gram", "inputs")


def test_a_right_subject_is_consistent() -> None:
    layers = [CAUSAL, CAUSAL.replace(attention_map="relu", mask="none")]
    report = ac.check(subject_of(LiteralSimulator(), *GRAMS), layers, profile="smoke", seed=0)
    assert report.verdict == "consistent"
    for layer in layers:
        examined = {result.check for result in report.results if result.p_values and result.item.endswith(layer.key)}
        assert {"conditional.law", "outputs.given_scores", "exactness.output_given_scores"} <= examined
        assert ("exactness.row_entropy" in examined) == (layer.attention_map == "softmax")
        assert not {name for name in examined if name.startswith("scores.") and "key" not in name}


HOTTER = LiteralSimulator(weigh=lambda layer, scores: layer.attention_weights(1.5 * scores))
LARGER = LiteralSimulator(finish=lambda *arguments: 1.2 * LiteralSimulator().finish(*arguments))


@pytest.mark.usefixtures("verdicts_only")
@pytest.mark.parametrize(("literal", "name"), [(HOTTER, "exactness"), (LARGER, "conditional")])
def test_wrong_ones_are_violated(literal: LiteralSimulator, name: str) -> None:
    report = ac.check(subject_of(literal, *GRAMS), CAUSAL, properties=[name], profile="smoke")
    assert report.verdict == "violated"


def test_weights_of_another_law_are_compared_with_literal_draws() -> None:
    subject = subject_of(LiteralSimulator(), *GRAMS)
    subject.weights = "uniform"  # a lie
    (result,) = results_of(subject, CAUSAL.replace(width=2), "conditional", only="conditional.scale")
    assert result.p_values
