"""A nightly report: the pages are made two at a time, then one job binds them; the batch reports
failures."""

from __future__ import annotations

from winch import App, batch, flow
from winch.types import FlowHandle

app = App()
pager: list[str] = []


@app.task(name="report.page")
def page(number: int) -> str:
    return f"page {number}"


@app.task(name="report.bind")
def bind(first: list[str]) -> str:
    return " | ".join(first)


@app.task(name="report.check")
def check(part: str) -> None:
    if part == "totals":
        raise ValueError("the totals do not add up")


@app.task(name="report.alarm")
def alarm(what: str) -> None:
    pager.append(what)


def make(pages: int) -> FlowHandle:
    made = flow("nightly report")
    parts = made.add_many([page.bind(number) for number in range(pages)], parallel=2)
    made.add(bind.partial(), after=[parts])
    return made.enqueue()


def audit() -> None:
    with batch(
        "audit", on_death=alarm.bind("audit failed"), on_success=alarm.bind("all is well")
    ) as jobs:
        jobs.enqueue(*[check.bind(part) for part in ("orders", "totals")])
