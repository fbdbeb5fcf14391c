"""Make the pictures of README.md: a red report, and the figure of the paper beside the computed difference.

Run it with ``python docs/pictures.py``. It needs a browser and takes about a minute.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import sync_playwright

from attncheck.paper.figures import panels_of
from attncheck.paper.results import gather
from attncheck.paper.run import manifest_of, perform_all
from attncheck.report.svg import METADATA, style

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
# Pixels of the page that the screenshot shows: the verdict, its first plot and the cause.
WIDTH, HEIGHT = 1100, 745
COLORS = 64
# The block of README.md with the simulator, without the lines that check it.
SIMULATOR = re.compile(r"^import numpy.*?(?=^print)", re.DOTALL | re.MULTILINE)


def attncheck(*arguments: str, folder: Path) -> None:
    """Run a command in a folder; a wrong simulator may be violated."""
    done = subprocess.run([sys.executable, "-m", "attncheck", *arguments], cwd=folder, check=False)
    if done.returncode > 1:
        raise SystemExit(done.returncode)


def red_report(folder: Path) -> Path:
    """Return the report of the wrong simulator in README.md."""
    found = SIMULATOR.search((HERE.parent / "README.md").read_text(encoding="utf-8"))
    assert found
    text = f"import attncheck as ac\n{found[0]}\n"
    (folder / "simulator.py").write_text(text, encoding="utf-8")
    subject = ("--subject", "simulator:simulate", "--profile", "smoke")
    attncheck("run", *subject, "--record", "run.jsonl", "--report", "red.html", folder=folder)
    return folder / "red.html"


def screenshot(page: Path, path: Path) -> None:
    """Write the top of a page as a PNG of few colours."""
    browser = os.environ.get("ATTNCHECK_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)))
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=browser, args=list(FLAGS))
        window = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        window.goto(page.as_uri())
        image = Image.open(io.BytesIO(window.screenshot()))
        opened.close()
    image.convert("RGB").quantize(COLORS).save(path, optimize=True)


def densities(path: Path) -> None:
    """Write the first figure of the paper: densities, and n times their computed difference from the limit."""
    manifest = manifest_of(seed=0, scale=1.0)
    figure_1 = gather("fig1", perform_all(["fig1"], manifest), manifest)
    with style():
        figure = Figure(figsize=(11.0, 4.0), layout="constrained")
        FigureCanvasSVG(figure)
        panels = panels_of(figure_1)
        for axes, panel in zip(figure.subplots(1, 2), panels, strict=False):
            panel.paint(axes)
        figure.savefig(path, metadata=METADATA)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        screenshot(red_report(Path(scratch)), HERE / "red-report.png")
        densities(HERE / "densities.svg")
