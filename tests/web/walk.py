"""What the walks in Chromium share: a page, its buttons, and the audit after each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.web.kit import Web
from tests.web.test_actions import Operator
from tests.web.test_browser import _listen


class Walk:
    """An operator with a mouse: goes to pages, presses buttons by their names, reads the audit."""

    def __init__(self, web: Web, browser: Any, address: str) -> None:
        self.web, self.app, self.op = web, web.app, Operator(web)
        self.address = address
        self.wrong: list[str] = []
        self.audited: list[str] = []
        self.page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        self.page.set_default_timeout(15_000)
        _listen(self.page, self.wrong)

    def go(self, path: str) -> None:
        assert self.page.goto(self.address + path).status == 200

    def press(self, name: str, within: str = "main") -> None:
        with self.page.expect_navigation():
            self.page.locator(within).get_by_role("button", name=name, exact=True).first.click()

    def open(self, name: str) -> None:
        """Open a menu of the page."""
        self.page.locator("main summary", has_text=name).first.click()

    def done(self, action: str) -> None:
        """The audit has a line of this action since the last look."""
        found = [line["action"] for line in self.op.lines()]
        self.audited.extend(found)
        assert action in found, (action, found, self.page.url, self.page.locator("main").inner_text())

    def nothing_done(self) -> None:
        assert self.op.lines() == [], "a question or a look leaves no line"

    def download(self, link: str) -> str:
        with self.page.expect_download() as found:
            self.page.get_by_role("link", name=link, exact=True).click()
        return Path(found.value.path()).read_text(encoding="utf-8")
