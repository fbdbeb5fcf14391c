"""The collection of public models, on three of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import models, zoo_models


def test_a_statement_that_nobody_examined_is_listed_as_such() -> None:
    assert models.judged("transformers: new", "scores times 7")[0] == "not examined"
    assert models.judged("transformers: granite_speech", "scores times 1, not")[0] == "setting of a release"


def test_models_are_found_by_name() -> None:
    assert "transformers: bert" in zoo_models.names()
    assert zoo_models.named("transformers: bert").name == "transformers: bert"
