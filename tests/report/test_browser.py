"""The page in a browser: no requests, no errors, and accessible on any screen."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attncheck.report.page import render_report
from tests.recorded import make_result, write_record

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
axe_module = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Otherwise browsers in closed networks look for Google's hosts at every start.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PAGES = ("clean", "faulty", "hostile", "killed")
SCREENS = {"phone": (360, 740), "tablet": (820, 1180), "desktop": (1280, 800), "wide": (1600, 900)}


def browser_path() -> str | None:
    """Return the installed browser; ATTNCHECK_BROWSER requires the one it names."""
    return os.environ.get("ATTNCHECK_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


pytestmark = pytest.mark.skipif(
    browser_path() is None, reason=f"no browser: install one of {', '.join(NAMES)}, e.g. apt-get install chromium"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(
    tmp_path_factory: pytest.TempPathFactory, clean_record: Path, faulty_record: Path, hostile_record: Path
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    killed = write_record(folder / "killed.jsonl", [make_result()], close=False)
    made = {"clean": clean_record, "faulty": faulty_record, "hostile": hostile_record, "killed": killed}
    return {name: render_report(record, folder / f"{name}.html") for name, record in made.items()}


class Opened:
    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        width, height = SCREENS["desktop"]
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri(), wait_until="load")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.sampled
@pytest.mark.parametrize("name", PAGES)
def test_page_is_sound(browser: Any, pages: dict[str, Path], name: str) -> None:
    """It asks for nothing, complains of nothing, fits the screen, leads somewhere, and has landmarks and pictures."""
    with Opened(browser, pages[name]) as opened:
        for screen, (width, height) in SCREENS.items():
            opened.page.set_viewport_size({"width": width, "height": height})
            assert opened.page.evaluate("innerWidth") == width
            overflow = opened.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert overflow <= 0, screen
        dead = opened.page.evaluate(
            "[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))"
            ".filter(h => !document.getElementById(h.slice(1)))"
        )
        assert dead == []
        decoded = "i.decode().then(() => [i.alt, i.naturalWidth], () => [i.alt, 0])"
        images = opened.page.evaluate(f"Promise.all([...document.images].map(i => {decoded}))")
        assert len(images) >= (0 if name == "killed" else 3)
        assert all(len(alt) > 80 and width > 0 for alt, width in images)
        levels = opened.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
        assert [opened.page.locator(f"body > {tag}").count() for tag in ("header", "nav", "main", "footer")] == [1] * 4
        assert opened.page.locator("table:not(:has(caption))").count() == 0
        asked = [url for url in opened.requests if not url.startswith("data:")]
        assert asked == [pages[name].as_uri()]
        assert opened.complaints == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("faulty", ["#verdict h2", ".first figure", ".first dd.code", ".first pre"]),
        ("clean", ["#verdict h2", ".first ul", ".first .map"]),
    ],
)
def test_first_screen_holds_all_that_is_wanted(
    browser: Any, pages: dict[str, Path], name: str, wanted: list[str]
) -> None:
    with Opened(browser, pages[name]) as opened:
        for selector in wanted:
            box = opened.page.locator(selector).first.bounding_box()
            assert box["y"] + box["height"] <= SCREENS["desktop"][1], selector


@pytest.mark.sampled
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(browser: Any, pages: dict[str, Path], name: str) -> None:
    with Opened(browser, pages[name], color_scheme="light", bypass_csp=True) as opened:
        for scheme in ("light", "dark"):
            opened.page.emulate_media(color_scheme=scheme)
            assert opened.page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
            found = axe_module.Axe().run(opened.page, options={"resultTypes": ["violations"]}).response["violations"]
            bad = [each for each in found if each["impact"] in ("serious", "critical")]
            assert bad == [], [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in bad]


def test_reads_by_keyboard_without_scripts_and_on_paper(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["faulty"], java_script_enabled=False) as opened:
        assert "departs from the theorem" in opened.page.inner_text("main")
        assert opened.page.locator("figure img").first.is_visible()
    with Opened(browser, pages["faulty"], color_scheme="dark") as opened:
        opened.page.keyboard.press("Tab")
        assert opened.page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
        opened.page.keyboard.press("Enter")
        assert opened.page.evaluate("document.activeElement.id") == "content"
        opened.page.emulate_media(media="print")
        assert not opened.page.locator("nav").is_visible()
        assert opened.page.locator("details ul").first.is_visible()
        assert opened.page.pdf().startswith(b"%PDF")
