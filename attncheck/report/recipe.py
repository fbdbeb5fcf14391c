"""Recipes: TOML files that choose the contents and templates of a report."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from attncheck._lib.errors import InputError, refuse
from attncheck._lib.version import PACKAGE

_TITLES = {
    "verdict": "Verdict",
    "failures": "What failed",
    "claims": "Claims",
    "together": "All together",
    "statements": "Statements of the paper",
    "rates": "Rates in the width",
    "uniformity": "First-look p-values",
    "power": "Power",
    "space": "Visited",
    "comparison": "Compared with the baseline",
    "provenance": "How it was made",
}
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class RecipeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a recipe file.

    ``template`` is the page's file name, ``sections`` name templates ``sections/NAME.html.j2`` in reading order with
    headings ``titles``, ``pictures`` bounds the plots per claim, ``failures`` the checks shown in full.
    """

    sections: Annotated[list[str], msgspec.Meta(min_length=1)]
    title: _Text = "Attention simulator against the infinite-width theorem"
    template: _Text = "report.html.j2"
    titles: dict[str, str] = {}
    pictures: Annotated[int, msgspec.Meta(ge=0)] = 4
    failures: Annotated[int, msgspec.Meta(ge=1)] = 40


class Recipe(RecipeFile, frozen=True, kw_only=True):
    """The contents of a report; ``folders`` is the template search path."""

    name: str
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
        given = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), RecipeFile)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise InputError(
            f"recipe={path}: cannot be read ({error}); write a TOML file as in reports/README.md"
        ) from None
    folders = tuple(dict.fromkeys([path.parent / "templates", path.parent, shipped() / "templates"]))
    known = sorted({file.name.removesuffix(".html.j2") for each in folders for file in each.glob("sections/*.html.j2")})
    for name in given.sections:
        if name not in known:
            remedy = f"use some of {', '.join(known)}, or add templates/sections/{name}.html.j2 beside the recipe"
            refuse(f"{path}: sections", name, "has no template", remedy)
    fields = msgspec.structs.asdict(given) | {"sections": list(dict.fromkeys(given.sections))}
    return Recipe(name=path.stem, folders=folders, **fields)


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
