"""A real browser walks every page in both themes, wide and narrow: no error, no violation, nothing
hidden from who cannot see. Slow; `make test-all` installs the browser where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.kit import Web
from tests.web.server import serving
from tests.web.test_pages import XSS, pages, seeded

pytestmark = pytest.mark.slow


def chromium() -> str:
    """Where the browser is: $WINCH_TEST_CHROMIUM or one on the PATH."""
    for name in (os.environ.get("WINCH_TEST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found
    raise AssertionError("no Chromium here: `make test-all` installs it, or set WINCH_TEST_CHROMIUM")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


def _listen(page: Any, wrong: list[str]) -> None:
    """Note what no page may do: complain, violate its own policy, open a dialog."""
    page.on(
        "console",
        lambda said: wrong.append(f"{page.url}: {said.text}") if said.type == "error" else None,
    )
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on("dialog", lambda _: wrong.append(f"{page.url}: a dialog opened"))


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_every_page_in_a_browser(store: str, make_web: Any, browser: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    web: Web = make_web(store)
    ids = seeded(web)
    web.app.schedules.add(XSS[0], task="shop.add", every="1h", args={"a": 1})
    web.app.limits.set("limit:shop.add", 5)
    paths = [path for path in pages(web, ids) if "range=" not in path]
    wrong: list[str] = []
    with serving(web.app) as address:
        for theme in ("light", "dark"):
            for width in (1280, 360):
                context = browser.new_context(
                    viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=False
                )
                page = context.new_page()
                _listen(page, wrong)
                for path in paths:
                    answer = page.goto(address + path)
                    where = f"{store} {theme} {width} {path}"
                    assert answer.status == 200, where
                    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        wrong.append(f"{where}: wider than the window")
                    if page.locator("main h1").count() != 1:
                        wrong.append(f"{where}: no heading, or several")
                    if path.startswith("/jobs?") and path != "/jobs?state=ready":
                        continue  # the same page as the last one
                    # axe is injected by the test's own hand, which the content policy does not stop.
                    found = Axe().run(page).response["violations"]
                    wrong += [
                        f"{where}: {one['id']} {one['nodes'][0]['target']}"
                        for one in found
                        if one["impact"] in ("serious", "critical")
                    ]
                context.close()
    assert wrong == []


def test_keys_live_updates_and_ticks(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    web.app.enqueue_many([web.add.bind(n) for n in range(3)])
    with serving(web.app) as address:
        page = browser.new_context().new_page()
        page.goto(f"{address}/jobs")
        page.keyboard.press("j")
        page.keyboard.press("x")
        assert page.locator("td.tick input:checked").count() == 1
        assert page.locator("#ticked").text_content() == "(1)"
        page.locator("button[value=cancel]").click()
        page.wait_for_url("**/operations/*")
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.wait_for_url("**/jobs")
        assert page.locator(".state-cancelled").count() >= 2
        before = page.locator("table.rows tbody tr").count()
        web.add.enqueue(9)
        page.locator("table.rows tbody tr").nth(before).wait_for(timeout=15_000)
        page.keyboard.press("t")
        assert page.locator("html").get_attribute("data-theme") == "light"
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+k")
        assert page.locator("#palette").is_visible()
        page.keyboard.type("flo")
        page.keyboard.press("Enter")
        page.wait_for_url("**/flows")


def test_it_reads_without_a_script(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    job = web.add.enqueue(1)
    with serving(web.app) as address:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(f"{address}/jobs/{job.id}")
        page.locator("text=Cancel").first.click()
        page.wait_for_url("**did=cancelled")
        assert page.locator(".state-cancelled").count() >= 1
