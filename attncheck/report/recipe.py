"""Recipes: TOML files that choose the contents and templates of a report."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from attncheck._lib.errors import InputError, check_whole, refuse
from attncheck._lib.version import PACKAGE

_TITLES = {
    "verdict": "Verdict",
    "failures": "What failed",
    "claims": "Claims",
    "together": "All together",
    "statements": "Statements of the paper",
    "rates": "Rates in the width",
    "uniformity": "First-look p-values",
    "theory": "Theory",
    "power": "Power",
    "space": "Visited",
    "comparison": "Compared with the baseline",
    "provenance": "How it was made",
}
_KEYS = ("title", "template", "sections", "titles", "pictures", "failures")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The contents of a report.

    ``template`` is the page's file name, ``sections`` name templates ``sections/NAME.html.j2`` in reading order with
    headings ``titles``, ``plots`` bounds the plots per claim, ``failures`` the checks shown in full, and ``folders``
    is the template search path.
    """

    name: str
    title: str
    template: str
    sections: tuple[str, ...]
    titles: dict[str, str]
    pictures: int
    failures: int
    folders: tuple[Path, ...]

    def heading(self, section: str) -> str:
        """Return the heading of a section."""
        return self.titles.get(section) or _TITLES.get(section) or section.replace("_", " ").capitalize()


def shipped() -> Path:
    """Return the folder of bundled recipes, in the package or a clone."""
    package = PACKAGE
    inside = package / "_reports"
    return inside if inside.is_dir() else package.parent / "reports"


def load(recipe: str | Path) -> Recipe:
    """Return a recipe by name or path; raise `InputError` if unusable."""
    path = _find(recipe)
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"recipe={path}: cannot be read ({error}); write a TOML file as in reports/README.md"
        ) from None
    unknown = sorted(set(fields) - set(_KEYS))
    if unknown:
        refuse(f"{path}: {unknown[0]}", fields[unknown[0]], "is not a field of a recipe", "use " + ", ".join(_KEYS))
    folders = [path.parent / "templates", path.parent, shipped() / "templates"]
    return Recipe(
        name=path.stem,
        title=_text(path, fields, "title", "Attention simulator against the infinite-width theorem"),
        template=_text(path, fields, "template", "report.html.j2"),
        sections=_sections(path, fields, folders),
        titles={str(key): str(value) for key, value in _table(path, fields).items()},
        pictures=check_whole(f"{path}: pictures", fields.get("pictures", 4), 0, "pass a number, e.g. 4"),
        failures=check_whole(f"{path}: failures", fields.get("failures", 40), 1, "pass a number, e.g. 40"),
        folders=tuple(dict.fromkeys(folders)),
    )


def _find(recipe: str | Path) -> Path:
    """Return the path of a recipe file or of a bundled recipe."""
    path = Path(recipe)
    if path.suffix == ".toml" or path.parent != Path():
        if not path.is_file():
            refuse("recipe", str(path), "is not a file", "pass the path of a TOML file, or a name")
        return path
    names = sorted(each.stem for each in shipped().glob("*.toml"))
    if path.name not in names:
        refuse(
            "recipe", str(recipe), "does not exist", "use one of " + ", ".join(names) + ", or the path of a TOML file"
        )
    return shipped() / f"{path.name}.toml"


def _text(path: Path, fields: dict[str, Any], key: str, default: str) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str) or not value:
        refuse(f"{path}: {key}", value, "must be a string", f'write {key} = "…"')
    return value


def _table(path: Path, fields: dict[str, Any]) -> dict[str, Any]:
    value = fields.get("titles", {})
    if not isinstance(value, dict):
        refuse(f"{path}: titles", value, "must be a table", 'write [titles] and lines of section = "heading"')
    return value


def _sections(path: Path, fields: dict[str, Any], folders: list[Path]) -> tuple[str, ...]:
    """Return the section names, each of which must have a template."""
    names = fields.get("sections")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        refuse(f"{path}: sections", names, "must be a list of names", 'write e.g. sections = ["verdict", "claims"]')
    known = sorted({file.name.removesuffix(".html.j2") for each in folders for file in each.glob("sections/*.html.j2")})
    for name in names:
        if name not in known:
            remedy = f"use some of {', '.join(known)}, or add templates/sections/{name}.html.j2 beside the recipe"
            refuse(f"{path}: sections", name, "has no template", remedy)
    return tuple(dict.fromkeys(names))
