"""What pages look like on a bad day, and the pages that ask, preview and refuse: in each theme, wide and
as a phone, without a serious complaint of axe; and every page without JavaScript. Slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import winch
from tests.web.kit import Web
from tests.web.prepared import prepare, tasks_of
from tests.web.server import serving
from tests.web.test_browser import browser
from tests.web.test_pages import pages, seeded

__all__ = ["browser"]

pytestmark = pytest.mark.slow
LOOKS = [("light", 1440), ("dark", 390), ("contrast", 1440), ("light", 360)]
REFUSED = "status of 422"


def bad_day(web: Web) -> dict[str, str]:
    """The shop of `prepared`, and some of everything else that pages show."""
    tasks = tasks_of(web.app)
    ids = prepare(web.app)
    web.app.queues.pause("reports", reason="the warehouse is moving")
    web.app.limits.set("limit:media.transcode", 9)
    web.app.limits.trip("stripe", "10m", reason="provider outage")
    web.app.schedules.add("hourly", task="search.reindex", every="1h", args={"sku": 1})
    tasks["search"].using(unique="sku:7", delay="1h").enqueue(7)
    made = winch.flow("publish")
    first = made.add(tasks["search"].bind(1))
    made.add(tasks["reports"].bind("2026-11-01"), after=[first])
    ids["flow"] = str(made.enqueue().id)
    charged = [one for one in web.app.dead.groups() if one.task == "billing.charge"]
    ids["group"] = charged[0].fingerprint
    return ids


class Reader:
    """Looks at the page that is open: is it whole, and what does axe report?"""

    def __init__(self, page: Any, look: str) -> None:
        self.page, self.look = page, look
        self.wrong: list[str] = []

    def see(self, what: str) -> None:
        from axe_playwright_python.sync_playwright import Axe

        where = f"{self.look} {what}"
        if self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            self.wrong.append(f"{where}: wider than the window")
        if self.page.locator("main h1").count() != 1:
            self.wrong.append(f"{where}: no heading, or several")
        self.wrong += [
            f"{where}: {one['id']} {one['nodes'][0]['target']}"
            for one in Axe().run(self.page).response["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def press(self, name: str, what: str) -> None:
        with self.page.expect_navigation():
            self.page.locator("main").get_by_role("button", name=name, exact=True).first.click()
        self.see(what)


@pytest.mark.parametrize("theme, width", LOOKS)
def test_a_bad_day_in_every_look(
    theme: str, width: int, make_web: Callable[..., Web], browser: Any
) -> None:
    web = make_web("sqlite")
    ids = bad_day(web)
    with serving(web.app, environment="production", instances=(("staging", "https://x.example"),)) as at:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
        )
        if theme == "contrast":
            context.add_cookies([{"name": "winch-theme", "value": theme, "url": at}])
        page = context.new_page()
        page.set_default_timeout(20_000)
        reader = Reader(page, f"{theme} {width}")
        page.on("pageerror", lambda error: reader.wrong.append(f"{page.url}: {error}"))
        for path in (
            "/", "/?group=worker&findings=all", "/queues", "/queues/payments", "/queues/media-gpu",
            "/queues/reports", "/workers?queue=payments", "/tenants", "/schedules", "/flows", "/audit",
            f"/flows/{ids['flow']}", f"/jobs/{ids['retrying']}", f"/jobs/{ids['running']}", "/dead",
            "/jobs?q=task:billing.charge+state:dead", "/jobs?q=nothing-of-this-kind", "/nowhere",
        ):  # fmt: skip
            page.goto(at + path)
            reader.see(path)
        # Pages that answer a form: previews, questions, refusals.
        page.goto(f"{at}/dead/{ids['group']}")
        page.fill("#patch", '{"amount": 12.5}')
        reader.press("Preview", "the preview of a replay")
        page.fill("#patch", "[1]")
        reader.press("Count again", "a refused replay")
        page.goto(f"{at}/dead/{ids['group']}")
        reader.press("Discard 24…", "the question before a discard")
        page.goto(f"{at}/queues/payments")
        reader.press("Purge…", "the question before a purge")
        page.goto(f"{at}/limits?key=sku")
        reader.see("limits with a key")
        page.locator("tr", has_text="media.transcode").locator("input[name=value]").fill("5")
        reader.press("Preview", "the preview of a limit")
        page.goto(f"{at}/schedules/hourly")
        page.fill("#fill-start", "2026-01-01T00:00")
        page.fill("#fill-end", "2026-01-01T03:00")
        reader.press("Preview", "the preview of a backfill")
        page.goto(f"{at}/jobs/{ids['dead']}")
        page.locator("#edit > summary").click()
        page.fill("#new-args", '{"order_id": 1, "amount": 2}')
        reader.press("Show the changes", "the changes of an edit")
        page.goto(f"{at}/jobs?q=queue:mail")
        page.locator("#all-rows").click()
        reader.see("a list with all chosen")
        with page.expect_navigation():
            page.locator("#bulk button[value=cancel]").click()
        reader.see("the counts before a bulk action")
        page.goto(f"{at}/settings")
        reader.see("the settings")
        page.locator("main summary", has_text="New token").click()
        reader.see("the form of a token")
        page.fill("#token-name", "ci")
        page.locator("input[name=role][value=read]").check()
        reader.press("Make the token", "the new token")
        for summary in page.locator("main details.panel > summary").all():
            summary.click()
        reader.see("the settings with all that they fold")
        page.goto(f"{at}/jobs/new?task=billing.charge")
        page.fill("#new-args", "[")
        reader.press("Enqueue", "a refused job")
        context.close()
    assert reader.wrong == []


def test_a_phone_has_the_forms_of_the_wide_page(make_web: Callable[..., Web], browser: Any) -> None:
    """A row that becomes a card loses columns, but no action."""
    web = make_web("sqlite")
    bad_day(web)
    wrong: list[str] = []
    with serving(web.app) as at:
        page = browser.new_context(viewport={"width": 390, "height": 900}).new_page()
        for path, least in (("/limits", 4), ("/tenants", 5), ("/schedules", 4), ("/queues/payments", 5)):
            page.goto(at + path)
            forms = page.locator("main form:not(details form)").all()
            seen = [one for one in forms if one.locator("button").first.is_visible()]
            if len(seen) < min(least, len(forms)) or len(seen) < len(forms):
                wrong.append(f"{path}: {len(seen)} of {len(forms)} forms have a button that is seen")
    assert wrong == []


def test_every_page_reads_without_a_script(make_web: Callable[..., Web], browser: Any) -> None:
    """The words, the figures and the forms are there; what needs a script is not seen."""
    web = make_web("sqlite")
    ids = seeded(web)
    paths = [path for path in pages(web, ids) if "?q=" not in path]
    shop = bad_day(web)
    paths += ["/queues/payments", "/queues/payments?range=6h", f"/dead/{shop['group']}",
              f"/flows/{shop['flow']}", f"/jobs/{shop['retrying']}", "/?group=worker",
              "/workers?queue=payments", "/limits?key=sku", "/schedules/hourly",
              "/jobs?q=task:billing.charge", "/audit?action=pause+queue"]  # fmt: skip
    wrong: list[str] = []
    with serving(web.app) as at:
        page = browser.new_context(
            java_script_enabled=False, viewport={"width": 1440, "height": 900}
        ).new_page()
        for path in dict.fromkeys(paths):
            assert page.goto(at + path).status == 200, path
            if not page.locator("main h1").first.is_visible():
                wrong.append(f"{path}: no heading")
            wrong += [
                f"{path}: seen without a script: {one.inner_text()!r}"
                for one in page.locator(".needs-script").all()
                if one.is_visible()
            ]
            for form in page.locator("main form").all():
                hidden = form.evaluate("(one) => one.closest('details:not([open])') !== null")
                buttons = form.locator("button:not([type=button])")
                if not hidden and not any(one.is_visible() for one in buttons.all()):
                    wrong.append(f"{path}: a form without a button: {form.get_attribute('action')}")
            for chart in page.locator("figure[data-chart]").all():
                if not (chart.locator("svg").first.is_visible() or chart.locator(".plot-empty").count()):
                    wrong.append(f"{path}: no picture in a chart")
                if chart.locator(".numbers").count() != 1:
                    wrong.append(f"{path}: no figures under a chart")
            # A menu opens without a script, and its items are seen.
            for menu in page.locator("main details.menu").all()[:3]:
                menu.locator("summary").click()
                if not menu.locator(".pop").is_visible():
                    wrong.append(f"{path}: a menu that does not open")
                menu.locator("summary").click()
    assert wrong == []


def test_brackets_go_through_the_list_and_a_brush_zooms_a_queue(
    make_web: Callable[..., Web], browser: Any
) -> None:
    web = make_web("sqlite")
    bad_day(web)
    with serving(web.app) as at:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(15_000)
        page.goto(f"{at}/jobs?q=queue:mail")
        listed = page.locator("tbody[data-rows] tr").evaluate_all(
            "(rows) => rows.map((r) => r.dataset.href)"
        )
        page.locator("tbody[data-rows] a.row-link").nth(1).click()
        page.wait_for_url(f"**{listed[1]}")
        page.keyboard.press("]")
        page.wait_for_url(f"**{listed[2]}")
        page.keyboard.press("[")
        page.wait_for_url(f"**{listed[1]}")
        page.goto(f"{at}/queues/payments")
        over = page.locator(".u-over").first
        over.wait_for()
        box = over.bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.5, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=8)
        page.mouse.up()
        page.wait_for_url("**/queues/payments?from=*")
        assert page.locator("a[title='Back to the last hour']").is_visible()
