"""`search=[…]`: jobs are found by declared arguments through an index, on every store."""

from __future__ import annotations

import contextlib
import html
import os
import re
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote_plus, unquote_plus

import pytest

from tests.web.kit import LoopThread, Web
from winch import App, ConfigError, Keyring, Limit, Retry, Unique, chain
from winch.core.values.search import BOOK
from winch.engine.base.search_index import YOUNG, sweep
from winch.storage.kv_records import KvFilter
from winch.storage.params import ClaimParams, JobFilter, Page
from winch.web import finding, search
from winch.web.mount import build
from winch.web.site import SiteConfig


def searching(app: App) -> None:
    @app.task(name="shop.charge", queue="pay", search=["order_id"], retry=Retry.never())
    def charge(order_id: int, note: str = "") -> None:
        if note == "die":
            raise ValueError(note)

    @app.task(name="shop.ship", search=["order_id", "to"])
    def ship(order_id: int, to: str = "here") -> None: ...

    @app.task(name="shop.index", search=["doc"], unique=Unique("doc", mode="replace"))
    def index(doc: str) -> None: ...


def found(web: Web, q: str, **more: str) -> list[str]:
    answer = web.api("GET", "/jobs", params={"q": q, **more})
    assert answer.status_code == 200, answer.text
    page = answer.json()
    assert not page["is_partial"], page
    return [job["id"] for job in page["jobs"]]


def lines(app: App) -> int:
    return len(app.driver.run(app.driver.kv_list(KvFilter(book=BOOK, limit=10_000))))


@pytest.fixture
def no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that walks over jobs fails: what is found comes from the index."""

    def walked(*_: object) -> None:
        raise AssertionError("the search walked over jobs")

    monkeypatch.setattr(finding.Finder, "_by_walking", walked)


def test_declared_arguments_are_found_through_the_index(web: Web, no_walk: None) -> None:
    searching(web.app)
    charge, ship = web.app.tasks.get("shop.charge"), web.app.tasks.get("shop.ship")
    web.app.enqueue_many([charge.bind(n) for n in range(30)])
    wanted = charge.enqueue(42)
    other = ship.using(id="0190a2b4-0000-7000-8000-000000000001").enqueue(42, "there")
    assert found(web, "task:shop.charge args.order_id:42") == [wanted.id]
    assert found(web, "args.order_id:42") == [wanted.id, other.id]
    assert found(web, "args.order_id:42 args.to:there") == [other.id]
    assert found(web, "args.order_id:42 state:dead") == []
    assert found(web, "args.order_id:777") == []
    assert found(web, "args.order_id:7", queue="pay") != []


def test_an_index_goes_on_page_by_page(web: Web, no_walk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    searching(web.app)
    monkeypatch.setattr(finding, "CHUNK", 4)
    charge = web.app.tasks.get("shop.charge")
    jobs = [job.id for job in web.app.enqueue_many([charge.bind(1, str(n)) for n in range(9)])]
    seen, cursor = [], None
    while True:
        params = {"q": "args.order_id:1", "limit": "2", **({"cursor": cursor} if cursor else {})}
        page = web.api("GET", "/jobs", params=params).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == sorted(jobs, reverse=True)


def test_an_argument_that_a_task_takes_undeclared_is_looked_for_in_the_latest(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching(web.app)

    @web.app.task(name="shop.refund")
    def refund(order_id: int) -> None: ...

    monkeypatch.setattr(finding, "CHUNK", 5)
    monkeypatch.setattr(finding, "MOST_SCANNED", 10)
    oldest = refund.enqueue(9)
    web.app.enqueue_many([refund.bind(n) for n in range(20, 60)])
    page = web.api("GET", "/jobs", params={"q": "args.order_id:9"}).json()
    assert page["is_partial"]
    assert page["jobs"] == []
    assert oldest.id not in found(web, "task:shop.charge args.order_id:9")


def test_a_replaced_job_is_found_by_its_new_arguments(web: Web, no_walk: None) -> None:
    @web.app.task(name="shop.sync", search=["page"], unique=Unique(key="sync", mode="replace"))
    def sync(page: int) -> None: ...

    first = sync.using(delay="1h").enqueue(1)
    second = sync.using(delay="1h").enqueue(2)
    assert second.id == first.id
    assert found(web, "args.page:2") == [first.id]
    assert found(web, "args.page:1") == []


def test_a_replayed_job_is_found_by_its_edited_arguments(
    make_web: Callable[..., Web], no_walk: None
) -> None:
    web = make_web("sqlite")
    searching(web.app)
    job = web.app.tasks.get("shop.charge").enqueue(5, "die")
    web.app.run_worker(queues=["pay"], burst=True)
    assert job.refresh().state == "dead"
    web.app.dead.replay(ids=[job.id], args={"order_id": 6})
    assert found(web, "args.order_id:6") == [job.id]
    assert found(web, "args.order_id:5") == []


def test_members_of_flows_and_jobs_of_schedules_are_found(
    make_web: Callable[..., Web], no_walk: None
) -> None:
    web = make_web("sqlite")
    searching(web.app)
    charge, ship = web.app.tasks.get("shop.charge"), web.app.tasks.get("shop.ship")
    chain(charge.bind(81), ship.bind(82, "far")).enqueue()
    assert len(found(web, "args.order_id:81")) == len(found(web, "args.order_id:82")) == 1
    web.app.schedules.add("nightly", task="shop.charge", cron="0 2 * * *", args={"order_id": 83})
    web.app.schedules.trigger("nightly")
    assert len(found(web, "args.order_id:83")) == 1


def test_values_of_encrypted_arguments_are_found_and_not_stored(
    tmp_path: Path, runner: LoopThread, no_walk: None
) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    old, new = os.urandom(32), os.urandom(32)
    before = App(url, keys=Keyring({"k1": old}))
    before.migrate()
    searching(before)
    first = before.tasks.get("shop.ship").enqueue(1, "CANARY")
    plain = App("memory://")
    plain.migrate()
    searching(plain)
    plain.tasks.get("shop.ship").enqueue(1, "CANARY")
    terms = {_term(key) for key in _keys(plain)}
    assert not terms & {_term(key) for key in _keys(before)}, "a stored term can be made without the key"
    before.close()
    after = App(url, keys=Keyring({"k1": old, "k2": new}, current="k2"))
    searching(after)
    second = after.tasks.get("shop.ship").enqueue(2, "CANARY")
    web = Web(after, build(after, SiteConfig(auth="open", hosts=frozenset({"localhost"}))), runner)
    assert found(web, "task:shop.ship args.to:CANARY") == [second.id, first.id]
    assert b"CANARY" not in (tmp_path / "winch.db").read_bytes()
    web.close()
    plain.close()


def _keys(app: App) -> list[str]:
    return [line.key for line in app.driver.run(app.driver.kv_list(KvFilter(book=BOOK)))]


def _term(key: str) -> str:
    return key.partition(":")[0]


def test_lines_of_jobs_that_are_gone_are_struck_and_young_ones_stay(web: Web) -> None:
    searching(web.app)
    charge = web.app.tasks.get("shop.charge")
    kept, gone = charge.enqueue(1), charge.enqueue(1)
    web.app.jobs.delete(gone.id)
    now = datetime.now(UTC)
    assert web.app.client.run(sweep(web.app.driver, None, now)).struck == 0
    assert lines(web.app) == 2
    later = now + YOUNG + timedelta(minutes=1)
    assert web.app.client.run(sweep(web.app.driver, None, later)).struck == 1
    assert [key.rpartition(":")[2] for key in _keys(web.app)] == [kept.id]


def test_tasks_without_search_write_no_lines(web: Web) -> None:
    web.add.enqueue(1)
    web.app.enqueue_many([web.add.bind(n) for n in range(5)])
    assert lines(web.app) == 0


@pytest.mark.parametrize(
    "given, message",
    [
        ("order_id", "search must be a list of argument names"),
        (["order"], "has no argument 'order'"),
        ([7], "an argument in search must be a non-empty text"),
        ([f"a{n}" for n in range(9)], "search takes up to 8 arguments"),
    ],
)
def test_a_wrong_search_is_refused(given: object, message: str) -> None:
    def task(order_id: int) -> None: ...

    with pytest.raises(ConfigError, match=message):
        App("memory://").task(name="t", search=given)(task)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "took, strides",
    [
        (0.005, [1000, 2000, 4000, 8000, 10_000, 10_000]),
        (0.03, [1000] * 6),
        (0.2, [1000, 500, 500, 500, 500, 500]),
    ],
)
def test_a_walk_takes_strides_that_fit_its_time(
    took: float, strides: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is slow to look through many jobs holds no page up for longer than it looks."""
    now = 0.0
    asked: list[int | None] = []

    class Store:
        def list_jobs(self, which: JobFilter) -> str:
            asked.append(which.most)
            return "the verb"

    monkeypatch.setattr("winch.web.finding.time.monotonic", lambda: now)
    finder = finding.Finder(Store(), None, lambda job: True)  # type: ignore[arg-type]  # no more is used
    walk = finder.find(search.Search(JobFilter(queue="mail")), seconds=5.5 * took)
    cut = Page((), "0198c000-0000-7000-8000-000000000001", is_cut=True)
    ended: list[finding.Found] = []

    def through() -> Generator[object, object, None]:
        ended.append((yield from walk))

    steps = through()
    next(steps)
    while not ended:
        now += took
        with contextlib.suppress(StopIteration):
            steps.send(cut)
    assert asked == strides
    assert (ended[0].scanned, ended[0].is_partial) == (sum(strides), True)


def test_jobs_are_found_by_the_gate_at_which_they_wait(web: Web) -> None:
    @web.app.task(name="media.cut", queue="media", limit=Limit(1, key="studio"))
    def cut(studio: str) -> None: ...

    @web.app.task(name="media.call", queue="media", scope="acme api")
    def call() -> None: ...

    jobs = {studio: [cut.enqueue(studio).id for _ in range(3)] for studio in ("a", "b")}
    web.app.limits.trip("acme api", "10m")
    held = call.enqueue()
    web.serve("media", tasks=("media.cut", "media.call"))
    driver = web.app.ready()
    params = ClaimParams(
        session="00000000-0000-4000-8000-000000000001", token="0" * 32, queues=("media",), limit=9,
        tasks=("media.cut", "media.call"),
    )  # fmt: skip
    running = {claim.id for claim in driver.run(driver.claim(params))}
    waiting = {studio: set(ids) - running for studio, ids in jobs.items()}
    assert {studio: len(ids) for studio, ids in waiting.items()} == {"a": 2, "b": 2}
    assert set(found(web, "gate:limit:media.cut:studio=a")) == waiting["a"]
    assert set(found(web, "gate:limit:media.cut:studio")) == waiting["a"] | waiting["b"]
    assert found(web, "state:blocked 'gate:scope:acme api'") == [held.id]
    # The page of limits leads to them.
    page = html.unescape(web.ask("GET", "/limits", headers={"accept": "text/html"}).text)
    for gate, number in (("limit:media.cut:studio", 4), ("scope:acme api", 1)):
        [address] = re.findall(
            rf'href="/jobs\?q=([^"]*{re.escape(quote_plus(gate))}[^"]*)">{number}<', page
        )
        assert len(found(web, unquote_plus(address))) == number


def test_a_running_job_is_found_by_how_long_it_has_run(web: Web) -> None:
    job = web.add.enqueue(1)
    web.serve("default", tasks=("shop.add",))
    driver = web.app.ready()
    params = ClaimParams(
        session="00000000-0000-4000-8000-000000000001", token="0" * 32, queues=("default",), limit=1,
        tasks=("shop.add",),
    )  # fmt: skip
    assert len(driver.run(driver.claim(params))) == 1
    assert found(web, "state:running duration:<1h") == [job.id]
    assert found(web, "state:running duration:>1h") == []
