"""A real browser walks every page in both themes, wide and narrow: no error, no violation, nothing
hidden from screen readers. Slow; `make test-all` installs the browser where there is none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.kit import Web
from tests.web.prepared import prepare, tasks_of
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
        lambda message: wrong.append(f"{page.url}: {message.text}") if message.type == "error" else None,
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
        for theme in ("light", "dark", "contrast"):
            for width in (1280, 360):
                context = browser.new_context(
                    viewport={"width": width, "height": 800},
                    color_scheme="dark" if theme == "dark" else "light",
                )
                if theme == "contrast":
                    context.add_cookies([{"name": "winch-theme", "value": theme, "url": address}])
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
    wrong: list[str] = []
    with serving(web.app) as address:
        page = browser.new_context().new_page()
        _listen(page, wrong)
        page.goto(f"{address}/jobs")
        assert not page.locator("#bulk").is_visible(), "nothing is chosen yet"
        page.keyboard.press("j")
        page.keyboard.press("x")
        assert page.locator("td.c-tick input:checked").count() == 1
        assert page.locator("#ticked").text_content() == "1"
        page.locator("#bulk button[value=cancel]").click()
        page.locator("text=Cancel 1 job").click()
        page.wait_for_url("**/operations/*")
        page.keyboard.press("g")
        page.keyboard.press("j")
        page.wait_for_url("**/jobs")
        assert page.locator("tbody .state-cancelled").count() == 1
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
    assert wrong == []


def test_new_rows_wait_and_nothing_moves_under_the_pointer(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    job = web.add.enqueue(1)
    web.app.enqueue_many([web.add.bind(n) for n in range(5)])
    with serving(web.app) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{address}/jobs")
        row = page.locator(f"tr[data-key='{job.id}']")
        before = row.bounding_box()
        row.hover()
        page.locator(f"tr[data-key='{job.id}'] td.c-tick input").check()
        web.app.jobs.cancel(job.id)
        web.app.enqueue_many([web.add.bind(n) for n in range(4)])
        page.locator("#new-rows:not([hidden])").wait_for(timeout=20_000)
        assert page.locator("#new-rows").text_content() == "4 new, show"
        row.locator(".state-cancelled").wait_for(timeout=20_000)  # changed in its place
        assert row.bounding_box() == before
        assert page.locator("td.c-tick input:checked").count() == 1, "the tick stays"
        assert page.locator("tbody[data-rows] tr").count() == 6
        page.locator("#new-rows").click()
        assert page.locator("tbody[data-rows] tr").count() == 10
        assert page.locator("td.c-tick input:checked").count() == 1
        assert not page.locator("#new-rows").is_visible()
        page.keyboard.press("r")
        assert page.locator("#live-word").text_content() == "Paused"
        page.locator("#live-age:not([hidden])").wait_for(timeout=20_000)
        assert "old" in (page.locator("#live-age").text_content() or "")


def test_the_search_box_suggests_and_its_words_are_chips(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    web.app.enqueue_many([web.add.bind(n) for n in range(3)])
    web.mail.enqueue("ada")
    with serving(web.app) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{address}/jobs")
        page.keyboard.press("/")
        page.keyboard.type("que")
        page.locator("#suggest [role=option]").first.wait_for()
        assert "queue:" in (page.locator("#suggest [role=option]").first.text_content() or "")
        page.keyboard.press("Tab")
        page.keyboard.type("ma")
        page.locator("#suggest [role=option]:has-text('mail')").wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs?q=queue*mail")
        assert page.locator("tbody[data-rows] tr").count() == 1
        assert page.locator(".token").text_content() == "queue:mail"
        assert page.locator("#filter-q").input_value() == "", "the word is a chip"
        page.locator(".facets a:has-text('Ready')").click()
        page.wait_for_url("**state*ready")
        assert page.locator(".token").count() == 2
        page.locator(".token a").first.click()
        page.wait_for_url("**/jobs?q=state*ready")
        assert page.locator("tbody[data-rows] tr").count() == 4


def test_a_brush_over_a_chart_zooms_the_page(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    prepare(web.app)
    wrong: list[str] = []
    with serving(web.app) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        _listen(page, wrong)
        page.goto(f"{address}/")
        over = page.locator(".u-over").first
        over.wait_for()
        box = over.bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.5, middle)
        tip = page.locator(".tip:not([hidden])")
        tip.wait_for()
        assert tip.count() == 1, "one tooltip"
        assert "completed" in (tip.text_content() or "")
        assert page.locator(".u-cursor-x:not(.u-off)").count() == 4, "one cross-hair on all charts"
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=8)
        page.mouse.up()
        page.wait_for_url("**from=*")
        assert "to=" in page.url
        assert page.locator("a[title='Back to the last hour']").is_visible()
        # The same figures as a table.
        page.locator("figure .numbers summary").first.click()
        assert page.locator("figure .numbers table tbody tr").count() > 10
    assert wrong == [], "no error, and no complaint of the content policy"


def test_a_tooltip_shows_what_the_table_shows(make_web: Any, browser: Any) -> None:
    """Lengths of time and counts have one form, whether the script or the server writes them."""
    web: Web = make_web("sqlite")
    prepare(web.app)
    compared: set[str] = set()
    with serving(web.app) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{address}/")
        page.locator(".u-over").nth(1).wait_for()
        for chart in page.locator("figure[data-chart]").all()[:2]:
            rows = {
                row[0]: row[1:]
                for row in chart.locator("tbody tr").evaluate_all(
                    "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
                )
            }
            box = chart.locator(".u-over").bounding_box()
            for share in (0.1, 0.55, 0.7, 0.8, 0.9, 0.95):
                page.mouse.move(box["x"] + box["width"] * share, box["y"] + 20)
                tip = chart.locator(".tip:not([hidden])")
                tip.wait_for()
                values = tip.locator("em").all_text_contents()
                assert values == rows[tip.locator("b").text_content()]
                compared |= {value.rpartition(" ")[2] for value in values}
    assert {"ms", "s"} <= compared, compared


# Findings, their words and their remedies that a reader does not see: above, below or under something.
UNSEEN = """() => [...document.querySelectorAll("#health li, #health li b, a.do")].filter((part) => {
  const box = part.getBoundingClientRect();
  const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return box.height === 0 || box.top < 0 || box.bottom > innerHeight || box.right > innerWidth
    || !part.closest("li").contains(top);
}).map((part) => part.textContent)"""


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_the_overview_shows_three_problems_and_their_remedies_at_once(
    store: str, make_web: Any, browser: Any
) -> None:
    web: Web = make_web(store)
    tasks_of(web.app)
    prepare(web.app)
    with serving(web.app) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{address}/")
        found = page.locator("#health li")
        assert found.count() == 3
        words = [found.nth(n).inner_text() for n in range(3)]
        assert "billing.charge died" in words[0]
        assert "CardDeclined: issuer did not answer within 10 s" in words[0]
        assert "No worker serves media-gpu: 14 jobs wait" in words[1]
        assert "start one with winch worker -Q media-gpu" in words[1]
        assert "payments is late" in words[2]
        assert "all 24 slots of its workers are busy" in words[2]
        assert page.evaluate(UNSEEN) == []
        assert page.evaluate("scrollY") == 0
        # Each remedy leads to where it is carried out.
        remedies = [found.nth(n).locator("a.do") for n in range(3)]
        targets = [(one.inner_text(), one.get_attribute("href")) for one in remedies]
        assert [word for word, _ in targets] == ["Review the group", "See the queue", "Add workers"]
        for (_, target), there in zip(
            targets,
            (
                "Replay 24 jobs",
                "-Q media-gpu",
                "Start another worker: winch worker -A module:app -Q payments",
            ),
            strict=True,
        ):
            assert page.goto(address + target).status == 200, target
            text = re.sub(r"\s+", " ", page.locator("main").inner_text())
            assert there in text, (target, text)
        # The look itself can fail: in a low window the findings lie below its end.
        page.set_viewport_size({"width": 1440, "height": 120})
        page.goto(f"{address}/")
        assert len(page.evaluate(UNSEEN)) >= 3


def test_thirty_rows_of_jobs_at_900_pixels(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    web.app.enqueue_many([web.add.bind(n) for n in range(60)])
    with serving(web.app) as address:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{address}/jobs")
        whole = page.evaluate(
            "[...document.querySelectorAll('tbody[data-rows] tr')]"
            ".filter((row) => row.getBoundingClientRect().bottom <= innerHeight).length"
        )
        assert whole >= 30


def test_it_reads_without_a_script(make_web: Any, browser: Any) -> None:
    web: Web = make_web("sqlite")
    job = web.add.enqueue(1)
    other = web.add.enqueue(2)
    with serving(web.app) as address:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(f"{address}/jobs/{job.id}")
        page.locator("text=Cancel").first.click()
        page.wait_for_url("**did=cancelled")
        assert page.locator(".state-cancelled").count() >= 1
        page.goto(f"{address}/")
        assert page.locator("figure svg.chart").first.is_visible()
        page.goto(f"{address}/jobs?q=queue:default+state:ready")
        assert page.locator("tbody[data-rows] tr").count() == 1
        page.locator(f"input[value='{other.id}']").check()
        page.locator("#bulk button[value=cancel]").click()
        page.locator("text=Cancel 1 job").click()
        page.wait_for_url("**/operations/*")
        page.locator(".menu:has([aria-label^=Theme]) > summary").click()
        page.locator("text=High contrast").click()
        assert page.locator("html").get_attribute("data-theme") == "contrast"
