"""Subjects: lookup, calls, results, and one-line errors; misbehaving ones are judged, excused or refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attncheck import AttentionLayer, Draws, InputError, simulate
from attncheck.checks.check import Setting
from attncheck.checks.registry import PROPERTIES, checks_of
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.looks.plan import Cost
from attncheck.records.schema import Result
from attncheck.simulators.collapsed import attend, draw_inputs
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject, collapsed
from tests.refusals import refused
from tests.results import results_of

Arrays = dict[str, Any]
Simulator = Callable[[AttentionLayer, int, np.random.Generator], Any]

LAYER = AttentionLayer(width=8, seq_len=3, num_heads=2)
CAUSAL = LAYER.replace(mask="causal")


def right(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
    return dict(collapsed(layer, size, rng))


def given(layer: AttentionLayer, inputs: NDArray[np.float64], rng: np.random.Generator) -> Arrays:
    return attend(layer, inputs, 2, rng).as_dict()


def returning(change: Callable[[Arrays], Any]) -> Simulator:
    """Return a right simulator whose mapping is changed before it is returned."""

    def simulator(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Any:
        return change(right(layer, size, rng))

    return simulator


def probe(simulator: Any, layer: AttentionLayer = LAYER) -> Setting:
    return Subject.of(simulator).probe(layer, np.random.default_rng(1))


TAKES = (
    "make it (layer, size, rng) or (layer, inputs, rng), or (program, width, size, rng) for programs, with these names"
)
NO_MODULE = "cannot be imported: ModuleNotFoundError: No module named 'nowhere'; check"
#: Names of subjects, and what is said of them.
NAMES = [
    ("nowhere:f", f"subject=nowhere:f: {NO_MODULE}"),
    ("broken:f", "subject=broken:f: cannot be imported: SyntaxError: invalid syntax (broken.py, line 1); check"),
    ("dividing:f", "cannot be imported: ZeroDivisionError: division by zero (dividing.py:2); check"),
    ("leaving:f", "subject=leaving:f: cannot be imported: Stop: now (leaving.py:2); check the module"),
    ("good:g", "subject='good:g': good has no 'g'; name a function of that module"),
    ("good:number", "subject='good:number': is not callable; pass a function (layer, size, rng) or (layer, "),
    ("good", "subject='good': is not of the form module:callable; write e.g."),
    ("good:other", f"subject='good:other': takes (layer, n, rng); {TAKES}"),
    ("good:named", f"subject='good:named': takes (layer, size, *, rng); {TAKES}, all positional (no * before them)"),
    ("good:supported", "good:supported.supports='all': is not callable; make it a function of the layer"),
    ("good:weighted", "good:weighted.weights='cauchy': is not known; use one of 'gaussian'"),
]
MODULES = {
    "broken": "def f(:\n",
    "dividing": "def f(layer, size, rng): ...\n1 / 0\n",
    "leaving": "class Stop(BaseException): ...\nraise Stop('now')\n",
    "good": """
number = 3
def other(layer, n, rng): ...
def named(layer: int, size: int = 3, *, rng): ...
def supported(layer, size, rng): ...
supported.supports = 'all'
def weighted(layer, size, rng): ...
weighted.weights = 'cauchy'
""",
}


@pytest.mark.parametrize(("name", "message"), NAMES)
def test_unusable_name_is_refused_in_a_line(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for module, source in MODULES.items():
        (tmp_path / f"{module}.py").write_text(source)
    refused(lambda: Subject.of(name), re.escape(message))


def test_further_parameters_may_have_defaults() -> None:
    def on_device(layer: Any, inputs: Any, rng: Any, device: str = "cpu", **options: Any) -> Arrays:
        return given(layer, inputs, rng)

    def configured(layer: Any, size: Any, rng: Any, *, device: str) -> Arrays:
        return right(layer, size, rng)

    assert Subject.of(on_device).form == "inputs"
    assert Subject.of(functools.partial(configured, device="cpu")).form == "size"


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError


class Stop(BaseException): ...


class Tensor:
    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.\nUse detach().")


OTHER = np.random.default_rng(0)
HIDDEN = ~np.tri(LAYER.seq_len, dtype=bool)


def raising(error: BaseException) -> Simulator:
    def simulator(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
        raise error

    return simulator


def unseeded(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
    """Use the seed of the generator, and not its state."""
    return right(layer, size, np.random.default_rng(rng.bit_generator.seed_seq.generate_state(4)))


def filled(value: float) -> Simulator:
    return returning(lambda d: d | {"scores": np.where(HIDDEN, value, d["scores"])})


SAME = "two different generators gave the same outputs; draw all random numbers from"
NOT_FINITE = "subject['outputs'][0, 0, 0]=nan: is not finite; mend"
MASKED = "subject['outputs']='...': is an array with masked entries; return a plain array"
#: Changes of what a right simulator returns, and what is said of them.
RETURNED: list[tuple[Callable[[Arrays], Any], str]] = [
    (lambda d: None, "subject='NoneType': must return a mapping of arrays"),
    (lambda d: [1.0], "subject='list': must return a mapping of arrays; return {'outputs': ...}"),
    (lambda d: Draws(d["outputs"], d["scores"], d["inputs"]), "mapping of arrays; return its as_dict()"),
    (lambda d: {}, "returned no outputs; return {'outputs': array of (N, s, k)}"),
    (lambda d: d | {"output": d["outputs"]}, "subject['output']='...': is not a known field; return some of"),
    (lambda d: {"outputs": d["outputs"][:, 0]}, "subject['outputs'].shape=(4, 2): must be (4, 3, k) with k >= 1"),
    (lambda d: {"outputs": d["outputs"][:3]}, "subject['outputs'].shape=(3, 3, 2): must be (4, 3, 2)"),
    (lambda d: {"outputs": d["outputs"][:, :, :0]}, "must be (4, 3, k) with k >= 1"),
    (lambda d: {"outputs": np.tile(d["outputs"], 5)}, "more than the width 8; return fewer neurons"),
    (lambda d: d | {"scores": d["scores"][:, 0]}, "subject['scores'].shape=(4, 3, 3): must be (4, 2, 3, 3)"),
    (lambda d: d | {"inputs": d["inputs"][:, :, :1]}, "subject['inputs'].shape=(4, 3, 1): must be (4, 3, 2)"),
    (lambda d: d | {"key_gram": d["input_gram"]}, "subject['key_gram'].shape=(4, 3, 3): must be (4, 2, 3, 3)"),
    (lambda d: d | {"outputs": d["outputs"] * np.nan}, NOT_FINITE),
    (lambda d: d | {"input_gram": d["input_gram"] / 0.0}, "=inf: is not finite; mend the simulator"),
    (lambda d: d | {"scores": np.full_like(d["scores"], -np.inf)}, "or declare the layer's mask, e.g. mask='causal'"),
    (lambda d: {"outputs": d["outputs"].astype(int)}, "subject['outputs'].dtype='int64': must be floating-point"),
    (lambda d: {"outputs": d["outputs"] + 0j}, "subject['outputs'].dtype='complex128': must be"),
    (lambda d: {"outputs": [[1.0], [1.0, 2.0]]}, "subject['outputs']: is not an array"),
    (lambda d: {"outputs": None}, "subject=[]: returned no outputs; return {'outputs'"),
    (lambda d: {"outputs": Tensor()}, "subject['outputs']: is not an array (Can't call numpy()"),
    (lambda d: d | {"outputs": np.ma.masked_less(d["outputs"], 0.0)}, MASKED),
    (lambda d: d | {"outputs": d["outputs"] * 1e120}, "is beyond 1e+100; mend the simulator"),
    (lambda d: d | {"key_gram": -d["key_gram"]}, "is a negative number on the diagonal of a Gram matrix; mend"),
    (lambda d: d | {"input_gram": np.triu(d["input_gram"])}, "differs from its mirror image in the Gram"),
]
#: Simulators, layers, and parts of the message.
REFUSED: list[tuple[Any, AttentionLayer, str]] = [
    *((returning(change), LAYER, message) for change, message in RETURNED),
    (raising(Silent()), LAYER, "raised Silent: (its message cannot be shown)"),
    (raising(Stop("early")), LAYER, "simulator: raised Stop: early (test_subject.py:"),
    (raising(ValueError("shapes\n  do not match " + "x" * 500)), LAYER, "ValueError: shapes do not match xx"),
    (lambda layer, size, rng: simulate(layer, size, 0, coordinates=99).as_dict(), LAYER, "InputError: coordinates=99"),
    (unseeded, LAYER, "two consecutive calls with one generator gave the same outputs; draw all random numbers from"),
    (lambda layer, size, rng: right(layer, size, np.random.default_rng(0)), LAYER, SAME),
    (lambda layer, inputs, rng: given(layer, inputs, np.random.default_rng(0)), LAYER, SAME),
    (
        lambda layer, size, rng: given(layer, draw_inputs(layer, size, np.random.default_rng(0)), rng),
        LAYER,
        "two different generators gave the same inputs",
    ),
    (lambda layer, size, rng: right(layer, size, OTHER), LAYER, "equal generators gave different outputs"),
    (filled(-np.inf), LAYER, "subject['scores'][0, 0, 0, 1]=-inf: is not finite"),
    (filled(np.inf), CAUSAL, "subject['scores'][0, 0, 0, 1]=inf: is not finite"),
]


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
@pytest.mark.parametrize(("simulator", "layer", "message"), REFUSED)
def test_subjects_that_cannot_be_used_are_refused_in_a_line(
    simulator: Any, layer: AttentionLayer, message: str
) -> None:
    text = refused(lambda: probe(simulator, layer), re.escape(message))
    assert layer.describe() in text
    assert len(text) < 500


def test_single_precision_lists_and_none_are_accepted() -> None:
    single = probe(returning(lambda d: {k: v.astype(np.float32) for k, v in d.items()}))
    assert single.exposed >= set(FIELDS)
    plain = probe(returning(lambda d: {"outputs": d["outputs"].tolist(), "scores": None}))
    assert (plain.exposed, plain.coordinates) == (frozenset({"outputs"}), 2)


def test_ctrl_c_is_no_fault_of_the_subject() -> None:
    def interrupted(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe(interrupted)


@pytest.mark.parametrize("form", ["size", "inputs"])
def test_inputs_that_are_all_clipped_are_no_evidence(form: str) -> None:
    layer = AttentionLayer(width=1, seq_len=1, num_heads=1, clip=1e-9)
    simulator: Any = right if form == "size" else lambda layer, inputs, rng: attend(layer, inputs, 1, rng).as_dict()
    for seed in range(60):
        Subject.of(simulator).probe(layer, np.random.default_rng(seed))


#: Subjects that change from call to call, a property, and what is said of them.
VARYING: list[tuple[Any, str, str]] = [
    (
        lambda layer, size, rng: {"outputs": right(layer, size, rng)["outputs"][..., : 1 if size > 4 else 2]},
        "draws",
        "returned 2 neurons in one call and 1 in another; return",
    ),
    (
        lambda layer, size, rng: {
            name: array for name, array in right(layer, size, rng).items() if size <= 4 or name in ("outputs", "inputs")
        },
        "scores",
        "returned input_gram, key_gram, scores, value_gram in one call and not in another",
    ),
]


@pytest.mark.parametrize(("simulator", "name", "message"), VARYING)
def test_what_is_returned_must_not_change(simulator: Any, name: str, message: str) -> None:
    refused(lambda: results(simulator, name), message)


def test_inputs_are_handed_out_in_pieces_and_kept_from_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attncheck.subject.callers._INPUT_ENTRIES", 10 * LAYER.seq_len * LAYER.width)
    sizes = []

    def spoils(layer: AttentionLayer, inputs: NDArray[np.float64], rng: np.random.Generator) -> Arrays:
        sizes.append(len(inputs))
        outputs = given(layer, inputs, rng)["outputs"]
        inputs[:] = 0.0
        return {"outputs": outputs, "inputs": np.ones_like(outputs)}

    sample = Subject.of(spoils).draw(LAYER, 25, np.random.default_rng(0))
    assert sizes == [10, 10, 5]
    assert len(sample) == 25
    expected = draw_inputs(LAYER, 10, np.random.default_rng(0))
    np.testing.assert_array_equal(sample.need("inputs")[:10], expected[:, :, :2])
    np.testing.assert_allclose(sample.need("input_gram")[:10], expected @ expected.swapaxes(1, 2) / LAYER.width)


UNSUPPORTED = "the subject does not support this layer"
OTHER_ANSWERS: tuple[Any, ...] = (None, 1, [], LAYER)
WRONG_ANSWER = r"mine\.supports=.*returned for n=8 s=3 H=2; make it a function"


def answering(answer: Any) -> Callable[[AttentionLayer], Any]:
    return lambda layer: answer


@pytest.mark.parametrize(
    ("supports", "reason", "refusal"),
    [
        *((answering(no), UNSUPPORTED, "") for no in (False, np.False_, "")),
        (answering("no"), "no", ""),
        *((answering(yes), "", "") for yes in (True, np.True_)),
        *((answering(other), "", WRONG_ANSWER) for other in OTHER_ANSWERS),
        (lambda layer: layer.wide, "", "mine: raised AttributeError"),
    ],
)
def test_support_is_honoured(supports: Any, reason: str, refusal: str) -> None:
    subject = Subject("mine", right, "size", supports=supports)
    if refusal:
        refused(lambda: subject.reason_unsupported(LAYER), refusal)
    elif reason:
        found = results(subject, "draws")
        assert {result.verdict for result in found} == {"not examined"}
        assert all(result.reason.endswith(reason) for result in found)
    assert refusal or subject.reason_unsupported(LAYER) == reason


def test_laws_of_matrices() -> None:
    """tests/checks/test_literal.py has what is refused of any laws."""

    def mixed(layer: AttentionLayer, inputs: NDArray[np.float64], rng: np.random.Generator) -> Arrays:
        raise NotImplementedError

    for declared, laws in (
        ({"query": "uniform"}, WeightLaws(query="uniform")),
        ("uniform", WeightLaws("uniform", "uniform", "uniform", "uniform")),
    ):
        vars(mixed)["weights"] = declared
        assert Subject.of(mixed).weights == laws
    vars(mixed)["weights"] = {"inputs": "uniform"}
    refused(lambda: Subject.of(mixed), "concerns inputs that attncheck draws; omit it")


# Subjects that misbehave --------------------------------------------------------------------------

SMALL = AttentionLayer(width=4, seq_len=2, num_heads=2)
# The fields that properties read.
READ = sorted(
    {(name, field) for name in PROPERTIES for check in checks_of(name) for field in check.needs & set(FIELDS)}
)
COST = Cost(1500, 1e-5, 0.9)
LOWEST = float(np.finfo(np.float64).min)


def results(simulator: Any, name: str, layer: AttentionLayer = LAYER, cost: Cost = COST) -> list[Result]:
    return results_of(simulator, layer, name, cost=cost)


@pytest.mark.parametrize("layer", [CAUSAL, CAUSAL.replace(attention_map="linear")], ids=["softmax", "linear"])
@pytest.mark.parametrize("filling", [-1e9, LOWEST, -7.5, 0.0])
def test_a_filling_is_no_score(filling: float, layer: AttentionLayer) -> None:
    """The sample is the same as with minus infinity, and the array of the subject stays as it is."""
    for size in (4, 600, COST.affordable):
        drawn = right(layer, size, np.random.default_rng(size))
        scores = [np.where(layer.visible, drawn["scores"], behind) for behind in (filling, -np.inf)]
        one, other = (Sample.from_mapping(layer, drawn | {"scores": each}, size) for each in scores)
        assert (scores[0][..., ~layer.visible] == filling).all()
        np.testing.assert_array_equal(one.need("scores"), other.need("scores"))
        assert one.exposed == other.exposed
        assert "masked scores" not in one.exposed
        assert "scores" in one.exposed


@pytest.mark.parametrize("added", [-1e9, -1e4])
def test_scores_plus_a_mask_are_none_either(added: float) -> None:
    layer = CAUSAL.replace(query_std=5.0)
    behind = np.where(layer.visible, 0.0, added)
    simulator = returning(lambda d: d | {"scores": d["scores"] + behind})
    assert not [r.check for r in results(simulator, "scores", layer) if r.verdict == "violated"]
    setting = Subject.of(simulator).probe(layer, np.random.default_rng(0))
    assert "scores" in setting.exposed
    assert "masked scores" not in setting.exposed


@pytest.mark.parametrize(
    "layer",
    [
        CAUSAL,
        CAUSAL.replace(query_std=1e5, key_std=1e5),
        CAUSAL.replace(width=1, seq_len=2, num_heads=1, input_correlation=1.0),
        CAUSAL.replace(width=1, seq_len=2, num_heads=1, activation="relu"),
        CAUSAL.replace(num_heads=1, input_correlation=1.0),
    ],
    ids=lambda layer: layer.describe(),
)
def test_scores_from_before_the_mask_stay(layer: AttentionLayer) -> None:
    for seed in range(50):
        size = 1 + seed % 4
        drawn = right(layer, size, np.random.default_rng(seed))
        sample = Sample.from_mapping(layer, drawn, size)
        np.testing.assert_array_equal(sample.need("scores"), drawn["scores"])


def rounded(drawn: Arrays) -> Arrays:
    noise = np.random.default_rng(0)
    grams = {name: drawn[name] for name in ("input_gram", "key_gram", "value_gram")}
    return drawn | {name: gram * (1 + 1e-6 * noise.standard_normal(gram.shape)) for name, gram in grams.items()}


@pytest.mark.parametrize(
    "simulator",
    [
        returning(lambda d: {"outputs": np.ma.asarray(d["outputs"])}),  # without masked entries
        returning(rounded),
        # Sums may be taken in any order.
        returning(lambda d: d | {"outputs": d["outputs"] * (1.0 + 1e-6 * OTHER.standard_normal())}),
        lambda layer, size, rng: right(layer, size, rng.spawn(1)[0]),
    ],
    ids=["masked array", "rounded", "other rounding in each call", "spawned"],
)
def test_accepted(simulator: Simulator) -> None:
    assert results(simulator, "draws")


# Valid at the boundary, but unusable in statistics.


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
@pytest.mark.parametrize(("name", "field"), [*READ, *((name, "") for name in PROPERTIES)])
def test_zeros_are_judged(name: str, field: str) -> None:
    """In one field, or in all."""
    simulator = returning(
        lambda d: {each: np.zeros_like(array) if field in ("", each) else array for each, array in d.items()}
    )
    assert results(simulator, name, SMALL)


@pytest.mark.sampled
@pytest.mark.parametrize(("name", "field"), READ)
def test_huge_numbers_are_judged_or_refused_with_names(name: str, field: str) -> None:
    simulator = returning(lambda d: d | {field: d[field] * 1e95})
    message = f"check={name}."
    with np.errstate(all="ignore"):
        try:
            assert results(simulator, name, SMALL)
        except InputError as error:
            message = str(error)
    assert message.startswith(f"check={name}.")
    assert message.count("\n") == 0


def test_one_draw_is_enough_for_gram_matrices() -> None:
    wide = AttentionLayer(width=10**5)
    examined = [r.check for r in results(collapsed, "scores", wide, Cost(1, 1e-5, 0.9)) if r.p_values]
    assert examined == ["scores.key_scale", "scores.key_each_head"]


@pytest.mark.parametrize("std", [1e-6, 1e6])
def test_layers_at_the_ends_of_the_range(std: float) -> None:
    names = ("query_std", "key_std", "value_std", "output_std", "input_std")
    layer = SMALL.replace(activation="identity", attention_map="linear", **dict.fromkeys(names, std))
    for name in PROPERTIES:
        found = results(collapsed, name, layer, Cost(600, 1e-5, 0.9))
        assert not [result.check for result in found if result.verdict == "violated"]
