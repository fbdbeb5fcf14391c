"""Subjects: lookup, calls, results, and one-line errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attncheck._lib.errors import InputError
from attncheck.checks.check import Setting
from attncheck.checks.returned import FIELDS
from attncheck.checks.sample import Sample
from attncheck.layers.attention import AttentionLayer
from attncheck.layers.draws import Draws
from attncheck.looks.examine import run_item
from attncheck.looks.item import Item
from attncheck.looks.plan import Cost
from attncheck.looks.profiles import PROFILES
from attncheck.methods import simulate
from attncheck.runs.options import RunOptions
from attncheck.runs.run import Run
from attncheck.simulators.collapsed import attend, draw_inputs
from attncheck.simulators.weights import WeightLaws
from attncheck.subject import Subject, collapsed, direct, matrix_free

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


def refused(simulator: Any, layer: AttentionLayer = LAYER) -> str:
    """Return the one-line error for a simulator."""
    with pytest.raises(InputError) as caught:
        probe(simulator, layer)
    message = str(caught.value)
    assert "\n" not in message
    assert layer.describe() in message
    return message


class TestFound:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            (
                "nowhere:f",
                "subject=nowhere:f: cannot be imported: ModuleNotFoundError: No module named 'nowhere'; check",
            ),
            (
                "broken:f",
                "subject=broken:f: cannot be imported: SyntaxError: invalid syntax (broken.py, line 1); check",
            ),
            ("dividing:f", "cannot be imported: ZeroDivisionError: division by zero (dividing.py:2); check"),
            ("good:g", "subject='good:g': good has no 'g'; name a function of that module"),
            ("good:number", "subject='good:number': is not callable; pass a function (layer, size, rng) or (layer, "),
            ("good", "subject='good': is not of the form module:callable; write e.g."),
            ("good:", "subject='good:': is not of the form module:callable"),
            (":f", "subject=':f': is not of the form module:callable"),
            (
                "good:other",
                "subject='good:other': takes (layer, n, rng); make it (layer, size, rng) or (layer, inputs, ",
            ),
            ("good:two", "subject='good:two': takes (layer, size); make it"),
            ("good:four", "subject='good:four': takes (layer, size, rng, device); make it"),
            ("good:keywords", "subject='good:keywords': takes (layer, size, rng, *, device); make it"),
            ("good:named", "subject='good:named': takes (layer, size, *, rng); make it (layer, size, rng) or"),
            ("good:named", "with these names, all positional (no * before them)"),
            ("leaving:f", "subject=leaving:f: cannot be imported: Stop: now (leaving.py:2); check the module"),
            ("good:supported", "good:supported.supports='all': is not callable; make it a function of the layer"),
            ("good:weighted", "good:weighted.weights='cauchy': is not known; use one of 'gaussian'"),
        ],
    )
    def test_unusable_name_is_refused_in_a_line(
        self, name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "broken.py").write_text("def f(:\n")
        (tmp_path / "dividing.py").write_text("def f(layer, size, rng): ...\n1 / 0\n")
        (tmp_path / "leaving.py").write_text("class Stop(BaseException): ...\nraise Stop('now')\n")
        (tmp_path / "good.py").write_text(
            "number = 3\n"
            "def other(layer, n, rng): ...\n"
            "def two(layer, size): ...\n"
            "def four(layer, size, rng, device): ...\n"
            "def keywords(layer, size, rng, *, device): ...\n"
            "def named(layer: int, size: int = 3, *, rng): ...\n"
            "def supported(layer, size, rng): ...\n"
            "supported.supports = 'all'\n"
            "def weighted(layer, size, rng): ...\n"
            "weighted.weights = 'cauchy'\n"
        )
        with pytest.raises(InputError) as caught:
            Subject.of(name)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("simulator", [direct, matrix_free, collapsed])
    def test_own_readings_are_subjects(self, simulator: Simulator) -> None:
        subject = Subject.of(f"attncheck.subject:{simulator.__name__}")
        assert (subject.call, subject.form) == (simulator, "size")
        assert Subject.of(subject) is subject

    def test_further_parameters_may_have_defaults(self) -> None:
        def on_device(layer: Any, inputs: Any, rng: Any, device: str = "cpu", **options: Any) -> Arrays:
            return given(layer, inputs, rng)

        def configured(layer: Any, size: Any, rng: Any, *, device: str) -> Arrays:
            return right(layer, size, rng)

        assert Subject.of(on_device).form == "inputs"
        assert Subject.of(functools.partial(configured, device="cpu")).form == "size"

    def test_object_with_call_is_a_subject(self) -> None:
        class Simulation:
            def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
                return right(layer, size, rng)

        subject = Subject.of(Simulation())
        assert subject.name.endswith("Simulation")
        assert subject.draw(LAYER, 3, np.random.default_rng(0)).exposed >= set(FIELDS)


class TestReturned:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda d: None, "subject='NoneType': must return a mapping of arrays"),
            (lambda d: [1.0], "subject='list': must return a mapping of arrays; return {'outputs': ...}"),
            (lambda d: Draws(d["outputs"], d["scores"], d["inputs"]), "mapping of arrays; return its as_dict()"),
            (lambda d: {}, "returned no outputs; return {'outputs': array of (N, s, k)}"),
            (lambda d: {"scores": d["scores"]}, "returned no outputs"),
            (lambda d: d | {"output": d["outputs"]}, "subject['output']='...': is not a known field; return some of"),
            (
                lambda d: {"outputs": d["outputs"][:, 0]},
                "subject['outputs'].shape=(4, 2): must be (4, 3, k) with k >= 1",
            ),
            (lambda d: {"outputs": d["outputs"][:3]}, "subject['outputs'].shape=(3, 3, 2): must be (4, 3, 2)"),
            (lambda d: {"outputs": d["outputs"][:, :, :0]}, "must be (4, 3, k) with k >= 1"),
            (lambda d: {"outputs": np.tile(d["outputs"], 5)}, "more than the width 8; return fewer neurons"),
            (lambda d: d | {"scores": d["scores"][:, 0]}, "subject['scores'].shape=(4, 3, 3): must be (4, 2, 3, 3)"),
            (lambda d: d | {"inputs": d["inputs"][:, :, :1]}, "subject['inputs'].shape=(4, 3, 1): must be (4, 3, 2)"),
            (lambda d: d | {"key_gram": d["input_gram"]}, "subject['key_gram'].shape=(4, 3, 3): must be (4, 2, 3, 3)"),
            (lambda d: d | {"outputs": d["outputs"] * np.nan}, "subject['outputs'][0, 0, 0]=nan: is not finite; mend"),
            (lambda d: d | {"input_gram": d["input_gram"] / 0.0}, "=inf: is not finite; mend the simulator"),
            (
                lambda d: {"outputs": d["outputs"].astype(int)},
                "subject['outputs'].dtype='int64': must be floating-point",
            ),
            (lambda d: {"outputs": d["outputs"] > 0}, "subject['outputs'].dtype='bool': must be floating-point"),
            (lambda d: {"outputs": d["outputs"] + 0j}, "subject['outputs'].dtype='complex128': must be"),
            (lambda d: {"outputs": [[1.0], [1.0, 2.0]]}, "subject['outputs']: is not an array"),
            (lambda d: {"outputs": "text"}, "subject['outputs'].dtype='<U4': must be floating-point numbers"),
            (lambda d: {"outputs": None}, "subject=[]: returned no outputs; return {'outputs'"),
            (
                lambda d: d | {"outputs": np.ma.masked_less(d["outputs"], 0.0)},
                "subject['outputs']='...': is an array with masked entries; return a plain array",
            ),
            (lambda d: d | {"outputs": d["outputs"] * 1e120}, "is beyond 1e+100; mend the simulator"),
            (lambda d: d | {"key_gram": -d["key_gram"]}, "is a negative number on the diagonal of a Gram matrix; mend"),
            (lambda d: d | {"input_gram": np.triu(d["input_gram"])}, "subject['input_gram'][0, 0, 1]="),
            (lambda d: d | {"value_gram": np.tril(d["value_gram"])}, "differs from its mirror image in the Gram"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
    def test_what_cannot_be_used_is_refused_in_a_line(self, change: Callable[[Arrays], Any], words: str) -> None:
        assert words in refused(returning(change))

    def test_single_precision_lists_and_none_are_accepted(self) -> None:
        single = probe(returning(lambda d: {k: v.astype(np.float32) for k, v in d.items()}))
        assert single.exposed >= set(FIELDS)
        plain = probe(returning(lambda d: {"outputs": d["outputs"].tolist(), "scores": None}))
        assert (plain.exposed, plain.coordinates) == (frozenset({"outputs"}), 2)

    def test_minus_infinity_is_accepted_where_the_mask_hides(self) -> None:
        hidden = ~np.tri(LAYER.seq_len, dtype=bool)

        def masked(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
            drawn = right(layer, size, rng)
            drawn["scores"][..., hidden] = -np.inf
            return drawn

        assert "masked scores" not in probe(masked, CAUSAL).exposed
        assert "scores" in probe(masked, CAUSAL).exposed
        cost = Cost(2000, 1e-3, 0.9)
        results = run_item(Item("conditional", CAUSAL), Subject.of(masked), 0, cost)
        assert {result.verdict for result in results} == {"consistent", "not examined"}

    def test_ctrl_c_is_no_fault_of_the_subject(self) -> None:
        def interrupted(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            probe(interrupted)


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


SAME = "two different generators gave the same outputs; draw all random numbers from"
#: Simulators, layers, and parts of the message.
REFUSED: list[tuple[Any, AttentionLayer, str]] = [
    (lambda layer, size, rng: {"outputs": Tensor()}, LAYER, "subject['outputs']: is not an array (Can't call numpy()"),
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
    *(
        (
            returning(lambda d, filling=filling: d | {"scores": np.where(HIDDEN, filling, d["scores"])}),  # type: ignore[misc]
            layer,
            f"subject['scores'][0, 0, 0, 1]={filling}: is not finite",
        )
        for layer, filling in ((LAYER, -np.inf), (CAUSAL, np.inf))
    ),
]


@pytest.mark.parametrize(("simulator", "layer", "message"), REFUSED)
def test_subjects_that_cannot_be_used_are_refused(simulator: Any, layer: AttentionLayer, message: str) -> None:
    text = refused(simulator, layer)
    assert message in text
    assert "; " in text
    assert len(text) < 500


class TestGenerator:
    def test_sums_may_be_taken_in_any_order(self) -> None:
        noise = np.random.default_rng(0)

        def wobbles(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
            drawn = right(layer, size, rng)
            drawn["outputs"] *= 1 + 1e-6 * noise.standard_normal()
            return drawn

        assert probe(wobbles).coordinates == 2

    @pytest.mark.parametrize("form", ["size", "inputs"])
    def test_inputs_that_are_all_clipped_are_no_evidence(self, form: str) -> None:
        layer = AttentionLayer(width=1, seq_len=1, num_heads=1, clip=1e-9)
        simulator: Any = right if form == "size" else lambda layer, inputs, rng: attend(layer, inputs, 1, rng).as_dict()
        if form == "size":
            simulator = returning(lambda d: {k: v[..., :1] if k in ("outputs", "inputs") else v for k, v in d.items()})
        for seed in range(60):
            Subject.of(simulator).probe(layer, np.random.default_rng(seed))

    def test_same_generator_same_digits(self) -> None:
        for simulator in (right, given):
            one, two = (Subject.of(simulator).draw(LAYER, 50, np.random.default_rng(3)) for _ in range(2))
            for name in FIELDS:
                np.testing.assert_array_equal(one.need(name), two.need(name))


class TestCalls:
    def test_neurons_must_not_change_from_call_to_call(self) -> None:
        def varying(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
            return {"outputs": right(layer, size, rng)["outputs"][:, :, : 1 if size > 4 else 2]}

        setting = probe(varying)
        with pytest.raises(InputError, match="returned 2 neurons in one call and 1 in another; return"):
            Subject.of(varying).draw_as(setting, 5, np.random.default_rng(0))

    def test_fields_must_not_vanish_from_call_to_call(self) -> None:
        def forgets(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
            drawn = right(layer, size, rng)
            return drawn if size <= 4 else {name: drawn[name] for name in ("outputs", "inputs")}

        with pytest.raises(
            InputError, match="returned input_gram, key_gram, scores, value_gram in one call and not in"
        ):
            run_item(Item("scores", LAYER), Subject.of(forgets), 0, Cost(1000, 1e-3, 0.9))

    def test_inputs_are_handed_out_in_pieces_and_kept_from_the_subject(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("attncheck.subject.layers._INPUT_ENTRIES", 10 * LAYER.seq_len * LAYER.width)
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

    def test_pieces_that_expose_different_fields_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("attncheck.subject.layers._INPUT_ENTRIES", 10 * LAYER.seq_len * LAYER.width)

        def forgets(layer: AttentionLayer, inputs: NDArray[np.float64], rng: np.random.Generator) -> Arrays:
            drawn = given(layer, inputs, rng)
            return drawn if len(inputs) == 10 else {"outputs": drawn["outputs"]}

        with pytest.raises(InputError, match="returned key_gram, scores, value_gram in one call and not in another"):
            Subject.of(forgets).draw(LAYER, 25, np.random.default_rng(0))

    def test_both_forms_come_to_the_same_law(self) -> None:
        cost = Cost(4000, 1e-3, 0.9)
        for simulator in (right, given):
            for name in ("scores", "conditional", "outputs"):
                results = run_item(Item(name, LAYER), Subject.of(simulator), 0, cost)
                assert not [result.id for result in results if result.verdict == "violated"]
                assert any(result.verdict == "consistent" for result in results)


class TestDeclared:
    def test_support_is_honoured(self) -> None:
        def narrow(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
            assert layer.width < 16
            return right(layer, size, rng)

        # mypy knows no attributes of functions.
        narrow.supports = lambda layer: layer.width < 16 or "too wide"  # type: ignore[attr-defined]
        subject = Subject.of(narrow)
        wide = run_item(Item("draws", LAYER.replace(width=16)), subject, 0, Cost(1000, 1e-3, 0.9))
        reason = "the subject does not support this layer: too wide"
        assert {(result.verdict, result.reason) for result in wide} == {("not examined", reason)}
        assert subject.reason_unsupported(LAYER) == ""

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (False, "the subject does not support this layer"),
            (np.False_, "the subject does not support this layer"),
            ("", "the subject does not support this layer"),
            ("no", "no"),
            (True, ""),
            (np.True_, ""),
        ],
    )
    def test_answers(self, answer: Any, reason: str) -> None:
        subject = Subject("subject", right, "size", supports=lambda layer: answer)
        assert subject.reason_unsupported(LAYER) == reason

    @pytest.mark.parametrize("answer", [None, 1, [], LAYER])
    def test_other_answers_are_refused(self, answer: Any) -> None:
        subject = Subject("mine", right, "size", supports=lambda layer: answer)
        with pytest.raises(InputError, match=r"mine\.supports=.*returned for n=8 s=3 H=2; make it a function"):
            subject.reason_unsupported(LAYER)

    def test_failing_declaration_is_refused(self) -> None:
        subject = Subject("mine", right, "size", supports=lambda layer: layer.wide)  # type: ignore[attr-defined]
        with pytest.raises(InputError, match="mine: raised AttributeError"):
            subject.reason_unsupported(LAYER)

    def test_laws_of_single_matrices_are_declared(self) -> None:
        def mixed(layer: AttentionLayer, inputs: np.ndarray, rng: np.random.Generator) -> Arrays:
            raise NotImplementedError

        # mypy knows no attributes of functions.
        mixed.weights = {"query": "uniform"}  # type: ignore[attr-defined]
        assert Subject.of(mixed).weights == WeightLaws(query="uniform")
        mixed.weights = "uniform"  # type: ignore[attr-defined]
        assert Subject.of(mixed).weights == WeightLaws("uniform", "uniform", "uniform", "uniform")

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            ({"queries": "uniform"}, "matrix='queries': is not known; use one of 'query', 'key'"),
            ({"query": "cauchy"}, r"weights\['query'\]='cauchy': is not known"),
            ({"inputs": "uniform"}, "concerns inputs that attncheck draws; omit it"),
            (1.0, "is neither a name nor a mapping of matrices to names"),
        ],
    )
    def test_laws_that_are_none_are_refused(self, declared: object, message: str) -> None:
        def mixed(layer: AttentionLayer, inputs: np.ndarray, rng: np.random.Generator) -> Arrays:
            raise NotImplementedError

        mixed.weights = declared  # type: ignore[attr-defined]
        with pytest.raises(InputError, match=message):
            Subject.of(mixed)


def test_probe_costs_a_few_draws() -> None:
    asked = []

    def counts(layer: AttentionLayer, size: int, rng: np.random.Generator) -> Arrays:
        asked.append(size)
        return right(layer, size, rng)

    probe(counts)
    assert sum(asked) <= 16 <= min(profile.most_draws for profile in PROFILES.values())


def test_sample_is_what_the_subject_returned() -> None:
    expected = Sample.from_mapping(LAYER, right(LAYER, 20, np.random.default_rng(5)), 20)
    drawn = Subject.of(right).draw(LAYER, 20, np.random.default_rng(5))
    for name in FIELDS:
        np.testing.assert_array_equal(drawn.need(name), expected.need(name))


class OneLayer:
    """A one-layer simulator that enlarges one score in a hundred."""

    def __init__(self, *layers: Any) -> None:
        if layers:
            self.layers = list(layers)

    def __call__(self, layer: AttentionLayer, size: int, rng: np.random.Generator) -> dict[str, Any]:
        return collapsed(layer.replace(query_std=1.3 * layer.query_std), size, rng)


def test_a_subject_that_names_its_layers_is_examined_on_these_alone() -> None:
    mine = AttentionLayer(width=16, seq_len=4, num_heads=2, query_std=0.7)
    run = Run.of(RunOptions(subject=OneLayer(mine, mine), seed=0, profile="smoke", false_alarm=1e-6, record=None))
    assert [item.case for item in run.items("scores")] == [mine]
