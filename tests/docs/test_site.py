"""A real browser opens every page of the built site: light, dark and on a phone. Slow.

No page may ask another host for anything, write an error to the console, or have what axe calls serious.
Pictures of all pages are kept in build/site-look for a person to look at.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import winch
from tests.web.test_browser import chromium

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"
PICTURES = ROOT / "build/site-look"
VIEWS = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (390, "light")}


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The built site, served on loopback."""
    if not (SITE / winch.__version__ / "index.html").exists():
        subprocess.run([sys.executable, "scripts/site.py"], cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def paths() -> list[str]:
    home = SITE / winch.__version__
    return sorted(str(page.parent.relative_to(home)) for page in home.rglob("index.html"))


@contextmanager
def opened(view: str) -> Iterator[Any]:
    """A page of a browser with the width and the colours of this view."""
    from playwright.sync_api import sync_playwright

    width, scheme = VIEWS[view]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        yield context.new_page()
        browser.close()


@pytest.mark.parametrize("view", VIEWS)
def test_every_page_opens(address: str, view: str) -> None:
    shutil.rmtree(PICTURES / view, ignore_errors=True)
    (PICTURES / view).mkdir(parents=True)
    wrong: list[str] = []
    with opened(view) as page:
        page.on("request", partial(_elsewhere, address, wrong))
        page.on("console", partial(_complains, page, wrong))
        page.on("pageerror", partial(_fails, page, wrong))
        for path in paths():
            answer = page.goto(f"{address}/{winch.__version__}/{path}/")
            assert answer.status == 200, path
            name = "home" if path == "." else path.replace("/", "-")
            page.screenshot(path=PICTURES / view / f"{name}.png")
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wrong.append(f"{path}: wider than the window")
    assert wrong == [], "\n".join(wrong)
    assert len(list((PICTURES / view).iterdir())) == len(paths()) > 80


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(address: str, view: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    wrong: list[str] = []
    with opened(view) as page:
        for path in paths():
            page.goto(f"{address}/{winch.__version__}/{path}/")
            found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
            wrong += [
                f"{path}: {one['id']} {one['nodes'][0]['target']}"
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
    assert wrong == [], "\n".join(wrong)


def test_a_console_block_copies_its_commands(address: str) -> None:
    with opened("light") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(f"{address}/{winch.__version__}/")
        for block, commands in [
            (0, "pip install winch-jobs"),
            (1, "python shop.py\nwinch worker -A shop:app -Q mail --burst"),
        ]:
            page.locator(".language-console .md-code__button").nth(block).click()
            page.wait_for_timeout(300)
            assert page.evaluate("navigator.clipboard.readText()") == commands


def test_the_keyboard_scrolls_a_wide_table(address: str) -> None:
    with opened("phone") as page:
        page.goto(f"{address}/{winch.__version__}/comparison/")
        frame = page.locator(".md-typeset__scrollwrap[tabindex]").first
        frame.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(300)
        assert frame.evaluate("frame => frame.scrollLeft") > 0


def _elsewhere(address: str, wrong: list[str], request: Any) -> None:
    if not request.url.startswith((address, "data:", "blob:")):
        wrong.append(f"asks {request.url}")


def _complains(page: Any, wrong: list[str], line: Any) -> None:
    if line.type == "error":
        wrong.append(f"{page.url}: {line.text}")


def _fails(page: Any, wrong: list[str], error: Any) -> None:
    wrong.append(f"{page.url}: {error}")


def test_the_root_leads_to_the_newest_version(address: str) -> None:
    assert f"url={winch.__version__}/" in (SITE / "index.html").read_text()
    for name in ("llms.txt", "llms-full.txt"):
        assert (SITE / winch.__version__ / name).stat().st_size > 1000
