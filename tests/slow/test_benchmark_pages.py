"""The state of the benchmarks' pages: which commit they are of, what makes them stale, and rows kept meanwhile."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import all as every
from benchmarks import rows

ROOT = Path(__file__).resolve().parents[2]


def test_pages_know_the_commit_that_they_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "project"
    for name in ("benchmarks", "attncheck"):
        (root / name).mkdir(parents=True)
    page, code = root / "benchmarks" / "one.md", root / "attncheck" / "code.py"
    write = 'pathlib.Path(__file__).with_suffix(".md").write_text(TEXT)'
    script = f'import pathlib, sys\nif "--write" in sys.argv:\n    {write}'
    text = "# One\n\nMeasured.\n"
    page.with_suffix(".py").write_text(f"TEXT = {text!r}\n{script}\n", encoding="utf-8")
    page.write_text(text, encoding="utf-8")

    def commit(content: str) -> None:
        code.write_text(content, encoding="utf-8")
        rows.git(root, "add", "-A")
        rows.git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "change")

    rows.git(root, "init")
    commit("1")
    read = every.Page.read
    assert read(page).changed(root) == "of an unknown commit"
    assert every.main(["--make"], root) == 0
    assert read(page).changed(root) == ""
    assert page.read_text(encoding="utf-8").count("Made at commit") == 1
    commit('"""A docstring."""\n1  # and a comment')
    assert read(page).changed(root) == ""
    # Code that some pages alone run.
    zoo, widths = (dataclasses.replace(read(page), path=page.with_stem(name)) for name in ("zoo", "widths"))
    for each in (zoo, widths):
        each.path.with_suffix(".py").write_text("", encoding="utf-8")
    for room, stale in (("scaling", [widths]), ("models", [zoo, widths])):
        (root / "attncheck" / room).mkdir()
        (root / "attncheck" / room / "table.py").write_text("2", encoding="utf-8")
        commit("1")
        assert [each for each in (read(page), zoo, widths) if each.changed(root)] == stale
    commit("2")
    assert read(page).changed(root).endswith(", before a change")
    assert every.main(["--make", "one"], root) == 0
    assert read(page).changed(root) == ""
    assert page.read_text(encoding="utf-8").startswith(text)
    assert page.read_text(encoding="utf-8").count("Made at commit") == 1
    code.write_text("3", encoding="utf-8")
    with pytest.raises(SystemExit):
        every.main(["--make"], root)
    commit("4")
    capsys.readouterr()
    page.with_suffix(".py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    commit("5")
    assert every.main(["--make"], root) == 1
    assert re.search(r"^one: failed: exit code 3; 0 left, about 0 min$", capsys.readouterr().out, re.MULTILINE)
    (root / "benchmarks" / "requirements.txt").write_text("no-such-package==1  # one\nnumpy  # one\n", encoding="utf-8")
    assert every.Page.read(page).needs == ("no-such-package",)
    assert every.main(["--make"], root) == 0
    assert read(page).changed(root)


def test_a_page_depends_on_the_scripts_that_its_script_imports(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks" / "one.md"
    page.parent.mkdir()
    page.write_text("# One\n", encoding="utf-8")
    script = "from benchmarks.parts import a\nfrom benchmarks import b, c\n"
    page.with_suffix(".py").write_text(script, encoding="utf-8")
    assert list(every.Page.read(page).scripts) == [
        f"benchmarks/{name}{end}" for name in ("one", "parts", "b", "c") for end in (".py", "/")
    ]


def test_every_page_is_made_by_a_script() -> None:
    found = list(every.pages(ROOT))
    assert len(found) > 15
    for page in found:
        assert '"--write"' in page.script
        assert f"`python benchmarks/{page.path.stem}.py --write` makes this page" in page.script


def test_rows_are_kept_for_one_state_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows" / "one.jsonl"
    assert rows.Rows(path).get("a", tuple[int, ...], lambda: (1, 2)) == (1, 2)
    with path.open("ab") as file:
        file.write(b'{"key":"b","row')
    again = rows.Rows(path)
    assert again.get("a", tuple[int, ...], lambda: (3,)) == (1, 2)
    assert "b" not in again
    again.keep("b", np.array([0.5]))
    assert rows.Rows(path).get("b", NDArray[np.float64], lambda: np.empty(0)).tolist() == [0.5]
    monkeypatch.setattr(rows, "state", lambda: "another")
    assert rows.Rows(path).get("a", tuple[int, ...], lambda: (3,)) == (3,)
    assert "b" not in rows.Rows(path)
