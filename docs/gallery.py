"""Runs the commands of gallery.md while the documentation is built, and shows the pages that they write."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.errors import ExtensionError

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_HERE = Path(__file__).resolve().parent
_FOLDER = "gallery-pages"
_FRAME = "width:100%;height:40rem;border:1px solid"
# A wrong simulator is violated.
_ENDED = (0, 1)


def run(app: Sphinx) -> None:
    """Run every command, in order, in the folder of the pages."""
    if app.builder.format != "html":
        return
    folder = Path(app.outdir) / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join(filter(None, (str(_HERE), os.environ.get("PYTHONPATH", ""))))
    for line in re.findall(r"^attncheck .*$", (_HERE / "gallery.md").read_text(encoding="utf-8"), re.MULTILINE):
        command = [sys.executable, "-m", *shlex.split(line)]
        if "inspect" in command and importlib.util.find_spec("torch") is None:
            continue
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
        )
        if done.returncode not in _ENDED:
            raise ExtensionError(f"{line}: ended with {done.returncode}\n{done.stdout}{done.stderr}")


class Page(Directive):
    """A page in a frame, with a link to it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the frame, or a word on what the page takes."""
        (name,) = self.arguments
        environment = self.state.document.settings.env
        if not (Path(environment.app.outdir) / _FOLDER / name).is_file():
            return [nodes.paragraph(text="This build made no such page: it takes torch, or a build as HTML.")]
        where = escape(f"{_FOLDER}/{name}")
        frame = f'<iframe src="{where}" title="{where}" loading="lazy" style="{_FRAME}"></iframe>'
        return [nodes.raw("", f'{frame}<p><a href="{where}">The whole page</a></p>', format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive and the run."""
    app.connect("builder-inited", run)
    app.add_directive("page", Page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
