"""The dashboard as a product: health, figures, the search of jobs, one job, and how pages look."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.web.kit import Web
from tests.web.prepared import TRACEBACK, prepare
from tests.web.test_pages import HTML, form_token
from winch import JobState
from winch.core.policy.alerting import AlertRules
from winch.engine.observe.throughput import HOUR, MINUTE, Series
from winch.storage.params import DeadGroup, QueueInfo, SessionInfo
from winch.web import search
from winch.web.draw.diff import changes
from winch.web.draw.frames import blocks
from winch.web.draw.icons import STATE_ICON, icon
from winch.web.draw.pieces import Health
from winch.web.pages import facets, figures
from winch.web.pages.health import health_of
from winch.web.pages.job import restored

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def text_of(page: str) -> str:
    return " ".join(re.sub("<[^>]+>", " ", page).split())


def link(path: str, **query: str) -> str:
    return path + "".join(f"?{name}={value}" for name, value in query.items())


def queue(name: str, ready: int = 0, oldest: float = 0, sessions: int = 1, **more: object) -> QueueInfo:
    return QueueInfo(
        name=name,
        counts={JobState.READY: ready},
        oldest_ready_at=NOW - timedelta(seconds=oldest) if ready else None,
        sessions=sessions,
        **more,  # type: ignore[arg-type]
    )


def session(
    worker: str, *queues: str, slots: int = 2, running: int = 0, lease: float = 60
) -> SessionInfo:
    return SessionInfo(
        id=worker, worker=worker, host="h", pid=1, release="1", queues=queues, tasks=(), slots=slots,
        started_at=NOW, lease_until=NOW + timedelta(seconds=lease), beats=1, running=running,
    )  # fmt: skip


def group(task: str, count: int, ago: float = 60) -> DeadGroup:
    at = NOW - timedelta(seconds=ago)
    return DeadGroup(
        fingerprint=f"f-{task}", task=task, error_type="a.b.Boom", message="no", count=count,
        first_at=at, last_at=at, sample_id="x",
    )  # fmt: skip


def health(
    *queues: QueueInfo,
    sessions: tuple[SessionInfo, ...] = (),
    groups: tuple[DeadGroup, ...] = (),
    shows_all: bool = False,
) -> Health:
    return health_of(
        queues=queues, sessions=sessions, groups=groups, recent=Series(MINUTE, 0, [{}]), alerts=(),
        rules=AlertRules(), now=NOW, link=link, shows_all=shows_all,
    )  # fmt: skip


# -- health ------------------------------------------------------------------------------------------


def test_a_store_without_a_problem_is_shown_as_healthy() -> None:
    found = health(queue("mail", 3, 1), queue("low"))
    assert (found.verdict, found.note, found.look) == ("All is well", "all 2 queues are on time", "good")
    assert health().note == "no queue yet"


def test_three_findings_are_three_kinds_and_each_has_its_remedy() -> None:
    found = health(
        queue("gpu", 14, 300, sessions=0),
        queue("pay", 90, 252),
        sessions=(session("p", "pay", slots=4, running=4),),
        groups=(group("a.charge", 71), group("a.mail", 30), group("a.old", 5, ago=90_000)),
    )
    assert [one.what for one in found.findings] == [
        "71 jobs of a.charge died since 11:59",
        "No worker serves gpu: 14 jobs wait",
        "pay is late: 4 m 12 s, objective 1 m",
    ]
    assert [one.remedy for one in found.findings] == ["Review the group", "See the queue", "Add workers"]
    assert [one.href for one in found.findings] == [
        "/dead/f-a.charge",
        "/queues/gpu",
        "/workers?queue=pay",
    ]
    assert found.findings[0].why == "Boom: no", "the last part of the error's name"
    assert "all 4 slots" in found.findings[2].why
    assert (found.verdict, found.note, found.more) == ("4 problems", "0 of 2 queues on time", 1)
    assert found.more_href == "/?findings=all"


def test_a_paused_queue_and_a_lost_worker_are_found() -> None:
    found = health(
        queue("mail", 2, 5, paused_at=NOW, pause_reason="the warehouse is moving"),
        sessions=(session("w", "mail", running=1, lease=-30),),
        shows_all=True,
    )
    assert [one.what for one in found.findings] == [
        "Worker w is lost: no sign of it for 30 s",
        "mail is paused: 2 jobs wait",
    ]
    assert found.findings[1].why == "the warehouse is moving, since 12:00"


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_the_overview_of_a_prepared_store(store: str, make_web: Callable[..., Web]) -> None:
    web = make_web(store)
    prepare(web.app)
    page = web.ask("GET", "/", headers=HTML)
    assert page.status_code == 200
    found = re.findall(r'<a class="do" href="([^"]+)">([^<]+)</a>', page.text)
    assert [word for _, word in found] == ["Review the group", "See the queue", "Add workers"] or [
        word for _, word in found
    ] == ["Review the group", "See the queue", "See the queue"]
    for path, _ in found:
        assert web.ask("GET", path, headers=HTML).status_code == 200
    everything = web.ask("GET", "/?findings=all", headers=HTML).text
    assert everything.count('class="do"') > 3
    for query in (
        "range=24h&group=tenant",
        "range=7d&group=queue",
        "range=6h&group=task",
        "group=nothing",
    ):
        assert web.ask("GET", f"/?{query}", headers=HTML).status_code == 200, query
    now = int(time.time())
    zoomed = web.ask("GET", f"/?from={now - 1800}&to={now - 600}", headers=HTML).text
    assert "Back to the last hour" in zoomed
    assert "CardDeclined" in page.text[page.text.index("What fails") :]
    assert "No group of dead jobs reaches into this time." in zoomed, "they died after it"
    assert web.ask("GET", "/?from=x&to=1", headers=HTML).status_code == 422


def test_a_range_from_a_time_to_a_time() -> None:
    now = 1_800_000_000
    short = figures.window_of("1h", now - 1500, now - 300, now)
    assert (short.name, short.span, short.count, short.fold) == ("", MINUTE, 20, 1)
    assert short.times[-1] == (now - 300) // 60 * 60
    week = figures.window_of("1h", now - 7 * 86_400, now, now)
    assert (week.span, week.count % week.fold) == (HOUR, 0)
    assert week.moments <= figures.MOST_MOMENTS
    for start, end in ((5, 3), (0, 0), (now, now + 10**9), (1, now)):
        assert figures.window_of("6h", start, end, now).name == "6h"
    assert figures.window_of("x", 0, 0, now).name == "1h"
    young = figures.window_of("1h", 0, 0, now).trimmed(now - 1200)
    assert young.moments == 21
    assert figures.window_of("1h", 0, 0, now).trimmed(now).moments == 12


# -- the search of jobs ------------------------------------------------------------------------------


def test_a_search_is_taken_apart_and_put_together() -> None:
    q = "queue:mail 'error:no answer' -state:completed free"
    assert [token.text for token in facets.tokens(q)] == [
        "queue:mail", "error:no answer", "-state:completed", "free",
    ]  # fmt: skip
    assert facets.tokens(q)[0].q == "'error:no answer' -state:completed free"
    assert facets.with_value("queue:mail x", "queue", "low") == "x queue:low"
    assert facets.with_value("queue:mail x", "queue", "mail") == "x", "a second click takes it out"
    assert facets.split(facets.joined(["it's", 'a "b"', "c\\d"])) == ["it's", 'a "b"', "c\\d"]
    assert facets.search_of({"state": "dead", "q": "x", "queue": ""}) == "state:dead x"
    assert facets.tokens("open 'quote")[0].text == "open 'quote"


def test_a_word_with_a_minus_excludes() -> None:
    wanted = search.parse("-state:completed,dead")
    assert JobState.DEAD not in wanted.which.states
    assert len(wanted.which.states) == len(JobState) - 2
    with pytest.raises(Exception, match="no search word"):
        search.parse("-nothing:x")


def test_jobs_without_a_queue_are_found(web: Web) -> None:
    web.add.enqueue(1)
    web.mail.enqueue("ada")
    page = web.ask("GET", "/jobs?q=-queue:mail", headers=HTML).text
    assert "shop.add" in page
    assert page.count("<tr data-href") == 1


def test_suggestions_are_fields_then_values_with_counts(web: Web) -> None:
    web.app.enqueue_many([web.mail.bind("a"), web.mail.bind("b"), web.add.bind(1)])

    def ask(typed: str) -> list[tuple[str, str, str]]:
        found = web.ask("GET", "/jobs/suggest", params={"q": typed}).json()["groups"]
        return [(one["title"], item["insert"], item["count"]) for one in found for item in one["items"]]

    assert ask("que")[0] == ("Fields", "queue:", "")
    assert ("Values", "queue:mail ", "2") in ask("queue:")
    assert ("Values", "state:ready ", "3") in ask("state:re")
    assert ("Values", "-queue:mail ", "2") in ask("-queue:ma")
    assert ("Values", "task:shop.mail ", "") in ask("mail")
    assert ask("zzz") == [("Text", "zzz ", "")]
    goals = web.ask("GET", "/goals", params={"q": "mail"}).json()["goals"]
    assert {"name": "mail", "kind": "queue", "path": "/queues/mail"} in goals


def test_a_narrowed_caller_gets_no_values_of_others(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    web.add.enqueue(1)
    web.mail.enqueue("a")
    token = web.token("read", queues=("mail",))
    for path in ("/jobs/suggest?q=queue:", "/jobs/suggest?q=d", "/goals?q=default", "/goals?q=shop"):
        answer = web.ask("GET", path, token=token)
        assert answer.status_code == 200
        assert "default" not in answer.text.replace("/default", ""), path
        assert "shop.add" not in answer.text, path
    page = web.ask("GET", "/jobs", token=token, headers=HTML).text
    assert "shop.add" not in page


def test_facets_write_into_the_search_and_columns_are_remembered(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    web.app.enqueue_many([web.add.bind(n) for n in range(3)])
    page = web.ask("GET", "/jobs?state=ready", headers=HTML).text
    assert 'href="/jobs?q=state%3Aready+queue%3Adefault"' in page
    assert '<b id="total">3 jobs</b>' in page
    assert 'class="c-tags"' not in page
    chosen = web.ask("GET", "/jobs?columns=state.task.tags.id&density=roomy", headers=HTML)
    assert 'class="c-tags"' in chosen.text
    assert "winch-columns=state.task.tags.id" in str(chosen.headers.get_list("set-cookie"))
    again = web.ask("GET", "/jobs", headers=HTML).text
    assert 'class="c-tags"' in again
    assert 'data-density="roomy"' in again
    assert 'class="c-when' not in again
    assert "Without state:dead" in web.ask("GET", "/jobs?q=state:dead", headers=HTML).text


def test_a_view_is_saved_and_removed(web: Web) -> None:
    web.add.enqueue(1)
    token = form_token(web.ask("GET", "/jobs?q=state:ready", headers=HTML).text)

    def send(**given: str) -> int:
        data = {"form_token": token, **given}
        return web.ask("POST", "/jobs/views", data=data, headers=HTML).status_code

    assert send(name="late ones", q="state:ready wait:>1m") == 303
    assert "late ones" in web.ask("GET", "/jobs", headers=HTML).text
    assert send(name="", q="x") == 422
    assert send(name="x", q="nothing:x") in (400, 422)
    assert send(remove="late ones") == 303
    assert "late ones" not in web.ask("GET", "/jobs", headers=HTML).text
    assert [line["action"] for line in web.api("GET", "/audit").json()["lines"]] == ["save view"] * 2


def test_a_bulk_action_shows_what_will_happen_first(web: Web) -> None:
    ready = [web.add.enqueue(n) for n in range(3)]
    web.app.jobs.cancel(ready[0].id)
    token = form_token(web.ask("GET", "/jobs", headers=HTML).text)
    form = {"form_token": token, "action": "cancel", "id": [job.id for job in ready]}
    page = web.ask("POST", "/jobs", data=form, headers=HTML)
    words = text_of(page.text)
    assert "2 are ready: will be cancelled" in words
    assert "1 is cancelled: left out, it has ended" in words
    assert "Cancel 2 jobs" in words
    assert [job.refresh().state for job in ready].count(JobState.READY) == 2, "nothing is done yet"
    done = web.ask("POST", "/jobs", data={**form, "sure": "yes"}, headers=HTML)
    assert done.status_code == 303
    assert {job.refresh().state for job in ready} == {JobState.CANCELLED}
    assert [line["action"] for line in web.api("GET", "/audit").json()["lines"]] == ["bulk", "cancel"], (
        "a preview leaves no line"
    )


# -- one job -----------------------------------------------------------------------------------------


def test_a_traceback_is_folded_to_the_readers_code() -> None:
    found = blocks(TRACEBACK)
    assert [block.kind for block in found] == [
        "folded", "frames", "folded", "cause", "between", "frames", "cause",
    ]  # fmt: skip
    assert found[2].names == "httpx, httpcore"
    assert len(found[2].frames) == 3
    assert found[1].frames[0].short == "billing/tasks.py"
    hits = [frame.line for block in found for frame in block.frames if frame.is_last]
    assert hits == ["118", "131"]
    assert [block.kind for block in blocks("no traceback at all")] == ["cause"]
    assert blocks("") == []


def test_an_edit_keeps_what_is_masked() -> None:
    real = {"to": "ada", "password": "hunter2", "list": [{"token": "t"}, 1]}
    masked = {"to": "ada", "password": "***", "list": [{"token": "***"}, 1]}
    assert restored({**masked, "to": "grace"}, masked, real) == {**real, "to": "grace"}
    assert restored({**masked, "password": "new"}, masked, real)["password"] == "new"
    assert "password" not in restored({"to": "x"}, masked, real)
    lines = changes(masked, {**masked, "to": "grace"})
    assert [(line.sign, line.text) for line in lines if line.sign] == [
        ("−", '  "to": "ada",'), ("+", '  "to": "grace",'),
    ]  # fmt: skip
    assert not any("hunter2" in line.text for line in lines)


def dead_mail(web: Web) -> str:
    web.serve("default", "mail", tasks=("shop.mail", "shop.add"))
    job = web.mail.enqueue("ada", password="hunter2")
    [claim] = web.claim("mail")
    error = {"type": "shop.errors.NoSuchAddress", "message": "no", "traceback": TRACEBACK}
    web.api("POST", f"/jobs/{job.id}/fail", {"token": claim["token"], "is_final": True, "error": error})
    return str(job.id)


def test_a_job_is_edited_with_a_diff_before_it_is_replayed(web: Web) -> None:
    job_id = dead_mail(web)
    page = web.ask("GET", f"/jobs/{job_id}", headers=HTML).text
    assert "3 library frames folded: httpx, httpcore" in text_of(page)
    assert "hunter2" not in page
    form = {"form_token": form_token(page), "args": '{"to": "grace", "password": "***"}'}
    seen = web.ask("POST", f"/jobs/{job_id}/edit", data=form, headers=HTML)
    assert seen.status_code == 200
    assert "is-removed" in seen.text
    assert "It fits the signature of the task." in text_of(seen.text)
    assert "hunter2" not in seen.text
    assert web.app.jobs.get(job_id).state is JobState.DEAD, "nothing is done yet"
    for wrong in ('{"to": 1}', '{"unknown": 1}', "[1]", "{", '{"to": "***"}'):
        answer = web.ask("POST", f"/jobs/{job_id}/edit", data={**form, "args": wrong}, headers=HTML)
        assert answer.status_code in (400, 422), wrong
        assert 'role="alert"' in answer.text
    done = web.ask("POST", f"/jobs/{job_id}/edit", data={**form, "action": "replay"}, headers=HTML)
    assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{job_id}?did=replayed")
    record = web.app.jobs.get(job_id).record
    assert (record.state, record.args) == (JobState.READY, '{"to":"grace","password":"hunter2"}')
    assert "edit and replay" in [line["action"] for line in web.api("GET", "/audit").json()["lines"]]


def test_a_completed_job_is_replayed_as_a_new_one(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    web.serve("default")
    job = web.add.enqueue(3)
    [claim] = web.claim()
    web.api("POST", f"/jobs/{job.id}/complete", {"token": claim["token"], "result": 4})
    token = form_token(web.ask("GET", f"/jobs/{job.id}", headers=HTML).text)
    form = {"form_token": token, "args": '{"a": 5, "b": 1}', "action": "replay"}
    done = web.ask("POST", f"/jobs/{job.id}/edit", data=form, headers=HTML)
    assert done.status_code == 303, done.text
    new = web.app.jobs.get(re.findall(r"/jobs/([0-9a-f-]{36})", done.headers["location"])[0])
    assert (new.record.args, new.record.tags) == ('{"a":5,"b":1}', (f"again:{job.id}",))
    assert job.refresh().state is JobState.COMPLETED
    running = web.add.enqueue(1)
    answer = web.ask("POST", f"/jobs/{running.id}/edit", data=form, headers=HTML)
    assert answer.status_code == 422, "a job that has not ended is not edited"


# -- how pages look ----------------------------------------------------------------------------------


def test_theme_and_time_zone_are_links_that_set_cookies(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    job = web.add.enqueue(1)
    answer = web.ask("GET", "/preferences?theme=contrast&zone=Asia/Tokyo&next=/jobs?q=x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?q=x")
    page = web.ask("GET", f"/jobs/{job.id}", headers=HTML).text
    assert 'data-theme="contrast"' in page
    shown = re.search(r'title="(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+)"', page)
    assert shown
    assert shown[1].endswith("JST")
    for wrong in ("//evil.test", "https://evil.test", "/\tx"):
        away = web.ask("GET", "/preferences", params={"next": wrong})
        assert away.headers["location"] == "/"
    web.ask("GET", "/preferences", params={"theme": "pink"})
    refused = web.ask("GET", "/preferences", params={"zone": "../../etc/passwd"}, headers=HTML)
    assert refused.status_code == 422
    assert "Europe/Berlin" in refused.text
    page = web.ask("GET", "/jobs", headers=HTML).text
    assert 'data-theme="contrast"' in page, "an unknown theme changes nothing"
    assert 'data-zone="Asia/Tokyo"' in page, "an unknown zone changes nothing"


def test_the_settings_keep_how_pages_look(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", instances=(("staging", "https://jobs.staging.example"),))
    web.add.enqueue(1)
    page = web.ask("GET", "/settings", headers=HTML).text
    assert '<option value="Europe/Berlin">' in page
    assert 'href="https://jobs.staging.example" rel="noreferrer"' in page.partition("<main")[2]
    form = {"theme": "dark", "zone": "Asia/Tokyo", "density": "roomy", "show-state": "on",
            "show-id": "on", "show-when": "on", "next": "/settings?did=look-kept"}  # fmt: skip
    answer = web.ask("GET", "/preferences", params=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/settings?did=look-kept")
    page = web.ask("GET", "/settings?did=look-kept", headers=HTML).text
    assert "Kept in this browser." in page
    assert 'name="zone" value="Asia/Tokyo"' in page
    assert re.findall(r'name="show-(\w+)" checked', page) == ["id", "when"]
    page = web.ask("GET", "/jobs", headers=HTML).text
    assert 'data-theme="dark"' in page
    assert 'data-density="roomy"' in page
    assert re.findall(r'<th scope="col" class="c-(\w+)', page) == ["tick", "state", "task", "id", "when"]


def test_files_with_their_tag_are_kept_for_good(make_web: Callable[..., Web]) -> None:
    web = make_web("memory")
    page = web.ask("GET", "/", headers=HTML).text
    found = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert len(found) >= 8
    for path in found:
        answer = web.ask("GET", path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"], path
    stale = web.ask("GET", "/static/winch.css?v=0000")
    assert stale.headers["cache-control"] == "no-cache"


def test_every_state_has_an_icon_of_its_own() -> None:
    drawn = [icon(name) for name in STATE_ICON.values()]
    assert len(set(drawn)) == len(JobState)
    assert all("aria-hidden" in one and "style=" not in one for one in drawn)


def test_an_environment_and_other_dashboards_are_shown(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", environment="production", name="shop",
                   instances=(("staging", "https://jobs.staging.example"),))  # fmt: skip
    page = web.ask("GET", "/", headers=HTML).text
    assert "is-production" in page
    assert 'href="https://jobs.staging.example" rel="noreferrer"' in page
