"""The collection of public models, on three of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import models, zoo_models


def test_right_models_and_a_mistake() -> None:
    page = "\n".join(models.zoo(models.Scale(("gpt2", "bert", "mobilevit"), workers=0)))
    assert "3 of 3 models inspected" in page
    assert "2 have nothing wrong. Statements that something is wrong: 1 (1 mistake in a release)" in page
    assert "scales of BatchNorm2d are drawn around 0" in page
    assert "in a fresh MobileViT is 0.0" in page


def test_a_statement_that_nobody_examined_is_listed_as_such() -> None:
    assert models.judged("transformers: new", "scores times 7")[0] == "not examined"
    assert models.judged("transformers: granite_speech", "scores times 1, not")[0] == "setting of a release"


def test_models_are_found_by_name() -> None:
    assert "transformers: bert" in zoo_models.names()
    assert zoo_models.named("transformers: bert").name == "transformers: bert"
