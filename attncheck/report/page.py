"""Rendering: read records, compare, fill the recipe's templates, write one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from attncheck._lib import text
from attncheck._lib.errors import InputError, refuse
from attncheck._lib.files import write_whole
from attncheck.diagnosis.causes import sharpest
from attncheck.evidence.text import allowed, expected
from attncheck.layers.names import layer_name
from attncheck.records.run_record import read_record
from attncheck.records.text import interval, reads, telling
from attncheck.report.compare import compare
from attncheck.report.power import read_power
from attncheck.report.recipe import Recipe, load
from attncheck.report.view import RunView, looks, visits


def render(run: Path, baseline: Path | None, recipe: str | Path, out: Path, power: Path | None, paper: Any) -> Path:
    """Render a record; see `attncheck.report.render_report`."""
    chosen = load(recipe)
    found = read_record(Path(run))
    comparison = None if baseline is None else compare(found, read_record(Path(baseline), "baseline"))
    view = RunView(
        found,
        chosen,
        comparison,
        None if power is None else read_power(Path(power)),
        paper,
    )
    return write_whole(Path(out), encoded(page(view)))


def page(view: RunView) -> str:
    """Return the page of a view."""
    return fill(view.recipe, view=view, run=view.run)


def fill(recipe: Recipe, **seen: Any) -> str:
    """Return a recipe's template filled with the given values."""
    try:
        template = _environment(recipe).get_template(recipe.template)
        return template.render(recipe=recipe, **seen)
    except jinja2.TemplateSyntaxError as error:
        where = f"{error.filename or error.name}, line {error.lineno}"
        raise InputError(f"template={where}: {error.message}; fix the template") from None
    except jinja2.TemplateNotFound as error:
        where = f"recipe={recipe.name}: template"
        refuse(where, error.name, "does not exist", "add it to templates/ beside the recipe")
    except jinja2.TemplateError as error:
        raise InputError(f"recipe={recipe.name}: a template fails ({error.message}); fix the template") from None


def encoded(text: str) -> bytes:
    """Encode a page; lone surrogates, possible in names, become question marks."""
    return text.encode("utf-8", errors="replace")


def _environment(recipe: Recipe) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(folder) for folder in recipe.folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= _FILTERS
    return environment


_FILTERS: dict[str, Any] = {
    "number": text.number,
    "chance": text.chance,
    "counted": text.counted,
    "span": text.span,
    "layer": layer_name,
    "allowed": allowed,
    "expected": expected,
    "interval": interval,
    "reads": reads,
    "printable": text.printable,
    "looks": looks,
    "sharpest": sharpest,
    "capitalized": lambda text: text[:1].upper() + text[1:],
    "reason": lambda tally: telling(tally.reasons),
    "visits": visits,
}
