"""The dashboard's pages: made, escaped, and what their forms do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import httpx
import pytest

import winch
from tests.web.kit import OWN, Web
from winch import JobState
from winch.core.job import Entry, Failure, JobRecord
from winch.web.draw.charts import ChartRow, drawn, tick_text, ticks, time_ticks
from winch.web.draw.timeline import phases, timeline
from winch.web.mount import ROUTES, asgi
from winch.web.pages.base import NAV
from winch.web.pages.show import compact, pretty, span

HTML = {"accept": "text/html", **OWN}
SCRIPT = r' src="/static/[a-z]+\.js\?v=[0-9a-f]{16}" defer></script>'
XSS = ['<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'-alert(1)-'", "{{7*7}}",
       "</textarea><svg/onload=alert(1)>", "javascript:alert(1)"]  # fmt: skip


def seeded(web: Web) -> dict[str, str]:
    """Jobs in every state that can be had, with hostile texts everywhere."""
    web.serve("default", "mail", tasks=(XSS[0], "shop.add"))
    ids = {}
    web.app.queues.pause(XSS[1].replace(":", ""), reason=XSS[0])
    dead = web.mail.using(tags=[XSS[1]], headers={"x": XSS[0]}).enqueue(XSS[0])
    [claim] = web.claim("mail", worker=XSS[1])
    web.api(
        "POST",
        f"/jobs/{dead.id}/fail",
        {
            "token": claim["token"],
            "is_final": True,
            "error": {"type": XSS[0], "message": XSS[4], "traceback": XSS[4] * 3},
        },
    )
    ids["dead"] = dead.id
    ids["scheduled"] = web.add.using(delay="1h").enqueue(1).id
    ids["cancelled"] = web.add.enqueue(2).cancel(XSS[4]).id
    done = web.add.enqueue(3)
    [claim] = web.claim()
    web.api("POST", f"/jobs/{done.id}/complete", {"token": claim["token"], "result": {"x": XSS[0]}})
    ids["completed"] = done.id
    running = web.add.enqueue(4)
    [claim] = web.claim(worker=XSS[0])
    beat = {"token": claim["token"], "progress": {"percent": 40, "message": XSS[0]}, "log": XSS[4]}
    web.api("POST", f"/jobs/{running.id}/heartbeat", beat)
    ids["running"] = running.id
    ids["ready"] = web.mail.enqueue(XSS[4]).id
    return ids


def pages(web: Web, ids: dict[str, str]) -> list[str]:
    [group, *_] = web.api("GET", "/dead/groups").json()["groups"]
    found = [path for path, *_ in NAV] + ["/api", "/login", "/queues/mail", f"/dead/{group['group']}"]
    found += [f"/jobs/{job_id}" for job_id in ids.values()]
    made = winch.flow(XSS[0])
    first = [made.add(web.add.bind(n)) for n in range(2)]
    made.add(web.add.bind(1), after=first)
    found += [f"/flows/{made.enqueue().id}", "/jobs/new", "/jobs/new?task=shop.add"]
    found += [f"/jobs/new?{httpx.QueryParams({'task': XSS[0]})}"]
    found += ["/jobs?q=state:dead", "/jobs?state=ready", "/?range=15m", "/?range=30d", "/jobs?q=%22"]
    found += [f"/jobs?q={httpx.QueryParams({'x': text})}" for text in XSS]
    return found


def test_every_page_is_made_and_no_text_becomes_markup(web: Web) -> None:
    ids = seeded(web)
    web.api("POST", f"/jobs/{ids['ready']}/cancel", {"reason": XSS[0]})
    for path in pages(web, ids):
        answer = web.ask("GET", path, headers=HTML)
        assert answer.status_code == 200, f"{path}: {answer.text[:400]}"
        text = answer.text
        assert not re.search(
            r'<script(?! src="/static/[a-z]+\.js\?v=[0-9a-f]{16}" defer></script>)', text
        ), path
        assert ("<script" in text) is (path != "/login"), path
        assert "<img" not in text
        assert "onload=" not in re.sub(r"&lt;.*?&gt;", "", text), path
        assert " style=" not in text, "the content policy would drop it"
        assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", text), (
            "nothing from elsewhere"
        )
        assert re.search(r"<h1>", text)


def test_the_json_twin_is_there_for_what_pages_show() -> None:
    api = {route.path.removeprefix("/api/v1") for route in ROUTES if not route.is_page}
    for path in ("/jobs", "/jobs/{id}", "/queues", "/queues/{queue}", "/workers", "/audit"):
        assert path in api


def form_token(text: str) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', text)
    assert found, "the page has no form"
    return found[1]


def test_forms_act_and_leave_a_line(web: Web) -> None:
    job = web.add.enqueue(1)
    page = web.ask("GET", f"/jobs/{job.id}", headers=HTML)
    token = form_token(page.text)
    answer = web.ask("POST", f"/jobs/{job.id}/cancel", data={"form_token": token}, headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job.id}?did=cancelled")
    assert job.refresh().state is JobState.CANCELLED
    assert "The job is cancelled" in web.ask("GET", answer.headers["location"], headers=HTML).text
    web.ask("POST", f"/jobs/{job.id}/retry", data={"form_token": token}, headers=HTML)
    assert job.refresh().state is JobState.READY
    paused = web.ask(
        "POST", "/queues/default/pause", data={"form_token": token, "reason": "deploy"}, headers=HTML
    )
    assert paused.status_code == 303
    assert web.app.queues.list()[0].pause_reason == "deploy"
    sure = web.ask("POST", f"/jobs/{job.id}/delete", data={"form_token": token}, headers=HTML)
    assert sure.status_code == 400, "deleting wants a tick"
    lines_ = web.api("GET", "/audit").json()["lines"]
    assert [(line["action"], line["via"]) for line in lines_] == [
        ("pause queue", "dashboard"),
        ("retry", "dashboard"),
        ("cancel", "dashboard"),
    ]


@pytest.mark.parametrize("wrong", ["", "0" * 64, "missing"])
def test_a_form_without_its_token_changes_nothing(make_web: Callable[..., Web], wrong: str) -> None:
    web = make_web()
    job = web.add.enqueue(1)
    web.ask("GET", "/jobs", headers=HTML)  # the cookie is there; the token is what is wrong
    data = {"reason": "x"} if wrong == "missing" else {"form_token": wrong}
    answer = web.ask("POST", f"/jobs/{job.id}/cancel", data=data, headers=OWN)
    assert (answer.status_code, answer.json()["code"]) == (403, "cross-site")
    assert job.refresh().state is JobState.READY


def test_all_that_match_is_counted_first(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    web.app.enqueue_many([web.add.bind(n) for n in range(5)])
    other = web.mail.enqueue("ada")
    token = form_token(web.ask("GET", "/jobs?queue=default", headers=HTML).text)
    form = {"form_token": token, "scope": "matching", "action": "cancel", "queue": "default"}
    first = web.ask("POST", "/jobs", data=form, headers=HTML)
    assert "5 jobs match" in first.text
    assert len(web.app.jobs.list(state="ready")) == 6
    done = web.ask("POST", "/jobs", data={**form, "sure": "yes"}, headers=HTML)
    assert done.status_code == 303
    assert "<dt>Done</dt><dd>5</dd>" in web.ask("GET", done.headers["location"], headers=HTML).text
    assert other.refresh().state is JobState.READY
    none = web.ask("POST", "/jobs", data={"form_token": token, "action": "retry"}, headers=OWN)
    assert none.status_code == 422


def test_dead_jobs_are_edited_and_replayed(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    ids = seeded(web)
    token = form_token(web.ask("GET", f"/jobs/{ids['dead']}", headers=HTML).text)
    form = {"form_token": token, "id": ids["dead"]}
    wrong = web.ask("POST", "/dead", data={**form, "args": "{"}, headers=OWN)
    assert wrong.status_code == 422
    done = web.ask(
        "POST", "/dead", data={**form, "args": '{"to": "grace"}', "attempts": "1"}, headers=HTML
    )
    assert done.status_code == 303, done.text
    record = web.app.jobs.get(ids["dead"]).record
    assert (record.state, record.args, record.max_attempts) == (JobState.READY, '{"to":"grace"}', 1)


def test_login_session_logout(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite", auth="tokens")
    secret = web.token("operate")
    away = web.ask("GET", "/jobs?q=x", headers={"accept": "text/html"})
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fjobs%3Fq%3Dx")
    page = web.ask("GET", "/login?next=/jobs", headers=HTML)
    token = form_token(page.text)
    wrong = web.ask("POST", "/login", data={"form_token": token, "token": "x"}, headers=HTML)
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    form = {"form_token": token, "token": secret, "next": "//evil.test"}
    inside = web.ask("POST", "/login", data=form, headers=HTML)
    assert (inside.status_code, inside.headers["location"]) == (303, "/")
    cookie = inside.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert secret not in cookie
    assert web.ask("GET", "/jobs", headers=HTML).status_code == 200
    assert web.ask("GET", "/audit", headers=HTML).status_code == 403, "operate is not admin"
    # The API takes the session, too, but not a change without the form's token.
    job = web.add.enqueue(1)
    assert web.api("GET", "/jobs").status_code == 200
    assert web.api("POST", f"/jobs/{job.id}/cancel", {}, headers=OWN).status_code == 403
    assert web.api("POST", f"/jobs/{job.id}/cancel", {}).status_code == 403
    ok = web.api("POST", f"/jobs/{job.id}/cancel", {}, headers={**OWN, "x-winch-form": token})
    assert ok.status_code == 200
    out = web.ask("POST", "/logout", data={"form_token": token}, headers=HTML)
    assert out.status_code == 303
    web.cookies.set("winch-session", cookie.partition("=")[2].partition(";")[0], domain="localhost")
    assert web.api("GET", "/jobs").status_code == 401, (
        "the session itself has ended, not only its cookie"
    )


def test_a_session_ends_with_its_token(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    secret = web.token("admin")
    token = form_token(web.ask("GET", "/login", headers=HTML).text)
    web.ask("POST", "/login", data={"form_token": token, "token": secret}, headers=HTML)
    page = web.ask("GET", "/settings", headers=HTML)
    made = web.ask(
        "POST",
        "/settings/tokens",
        data={"form_token": token, "name": "ci", "role": "enqueue", "queues": "mail"},
        headers=HTML,
    )
    assert "winch_" in made.text
    assert "cannot be shown again" in made.text
    own = re.search(r'/settings/tokens/([0-9a-f]{12})"', page.text)
    assert own
    web.ask("POST", f"/settings/tokens/{own[1]}", data={"form_token": token}, headers=HTML)
    import time

    time.sleep(0.6)  # the cache of tokens
    assert web.ask("GET", "/settings", headers=HTML).status_code == 303


def test_a_reader_sees_no_buttons(make_web: Callable[..., Web]) -> None:
    from winch.web.access import Access

    web = make_web()
    job = web.add.enqueue(1)
    web.asgi = asgi(web.app, authenticate=lambda _: Access("bob"))
    for path in ("/jobs", f"/jobs/{job.id}", "/queues/default", "/settings"):
        text = web.ask("GET", path, headers=HTML).text
        assert 'method="post"' not in text, path


def test_it_works_below_a_prefix(make_web: Callable[..., Web]) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from winch.web.access import Access

    web = make_web()
    job = web.add.enqueue(1)
    inner = asgi(web.app, authenticate=lambda _: Access("ada", roles=("operate",)))
    web.asgi = Starlette(routes=[Mount("/admin/jobs", inner)])
    text = web.ask("GET", "/admin/jobs/", headers=HTML).text
    addresses = re.findall(r'(?:href|src|action|hx-get)="([^"#]*)"', text)
    assert addresses
    assert all(address.startswith("/admin/jobs") for address in addresses), addresses
    page = web.ask("GET", f"/admin/jobs/jobs/{job.id}", headers=HTML)
    done = web.ask(
        "POST",
        f"/admin/jobs/jobs/{job.id}/cancel",
        data={"form_token": form_token(page.text)},
        headers=HTML,
    )
    assert done.headers["location"] == f"/admin/jobs/jobs/{job.id}?did=cancelled"
    made = web.ask(
        "POST", "/admin/jobs/api/v1/jobs", {"task": "shop.add", "args": {"a": 1}}, headers=OWN
    )
    assert made.headers["location"].startswith("/admin/jobs/api/v1/jobs/")


def test_files_are_served_with_a_tag(make_web: Callable[..., Web]) -> None:
    web = make_web("memory", auth="tokens")
    for name in ("winch.css", "winch.js", "live.js", "mark.svg"):
        answer = web.ask("GET", f"/static/{name}")
        assert answer.status_code == 200
        tag = {"if-none-match": answer.headers["etag"]}
        assert web.ask("GET", f"/static/{name}", headers=tag).status_code == 304
    for name in ("nothing.js", "../site.py", "%2e%2e/site.py", "licences.html"):
        assert web.ask("GET", f"/static/{name}").status_code == 404


def test_unknown_places_and_problems_are_pages_for_browsers(make_web: Callable[..., Web]) -> None:
    web = make_web()
    answer = web.ask("GET", "/nowhere", headers=HTML)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert web.ask("GET", "/nowhere").headers["content-type"] == "application/problem+json"


def test_a_large_payload_gives_a_small_page(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    job = web.mail.enqueue("x" * 250_000)
    assert len(web.ask("GET", f"/jobs/{job.id}", headers=HTML).text) < 300_000
    assert len(web.ask("GET", "/jobs", headers=HTML).text) < 100_000


# -- words and pictures ------------------------------------------------------------------------------


def test_spans_in_words() -> None:
    texts = [span(value) for value in (None, 0, 0.0004, 0.25, 3.21, 45, 200, 3700, 90_000, 400_000)]
    assert texts == [
        "–",
        "0 s",
        "400 µs",
        "250 ms",
        "3.2 s",
        "45 s",
        "3 m 20 s",
        "1 h 1 m",
        "25 h",
        "4 d 15 h",
    ]


def test_values_in_words() -> None:
    assert compact({"a": 1, "b": "x"}) == 'a=1 b="x"'
    assert compact("y" * 500).endswith("…")
    assert "cut here" in pretty({"x": "y" * 50_000})


def test_a_chart_has_no_style_and_a_sentence() -> None:
    chart = drawn("T", [ChartRow("<b>", "tone-dead", [1, 0, 3], "bars")], ["a", "b", "<i>"], 'a "quote"')
    assert 'aria-label="a &#34;quote&#34;"' in chart.svg
    assert "style=" not in chart.svg
    assert "<i>" not in chart.svg
    assert not chart.is_empty
    assert drawn("T", [ChartRow("x", "tone-a", [None, None])], ["a", "b"], "s").is_empty
    assert [ticks(value)[-1] for value in (0, 1, 7, 23, 101)] == [1, 1, 8, 25, 125]
    assert ticks(3700) == [0, 1000, 2000, 3000, 4000]
    assert ticks(44, "s") == [0, 10, 20, 30, 40, 50]
    assert ticks(253, "s") == [0, 60, 120, 180, 240, 300]
    assert [tick_text(value, "s") for value in ticks(7000, "s")] == ["0", "30 m", "1 h", "1.5 h", "2 h"]


def test_labels_of_time_are_at_round_times() -> None:
    at = int(datetime(2030, 1, 1, 12, 53, tzinfo=UTC).timestamp())
    minutes = [at + 60 * n for n in range(60)]
    assert [label for _, label in time_ticks(minutes)] == [
        "13:00",
        "13:10",
        "13:20",
        "13:30",
        "13:40",
        "13:50",
    ]
    days = [at // 3600 * 3600 + 3600 * n for n in range(168)]
    assert [label for _, label in time_ticks(days)][:2] == ["02 Jan", "03 Jan"]


NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def record(**fields: object) -> JobRecord:
    given: dict[str, object] = {
        "id": "0198c000-0000-7000-8000-000000000001",
        "task": "t",
        "version": 1,
        "args": "{}",
        "queue": "q",
        "priority": 0,
        "created_at": NOW,
        "run_at": NOW,
        "state": JobState.READY,
    }
    return JobRecord(**{**given, **fields})  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_the_timeline_explains_waiting() -> None:
    found = phases(record(), at(9), "No worker serves its queue.")
    assert [(p.title, p.took, p.note) for p in found] == [
        ("waits in queue", "9.0 s", "No worker serves its queue.")
    ]
    later = record(state=JobState.SCHEDULED, run_at=at(60))
    [phase] = phases(later, at(5), "It is scheduled.")
    assert (phase.title, phase.took, phase.is_now) == ("scheduled", "1 m", True)


def test_the_timeline_of_a_job_that_failed_and_then_worked() -> None:
    failed = Entry(
        what="failed",
        at=at(3),
        attempt=1,
        claimed_at=at(1),
        session="s1",
        error=Failure("Boom", "password=hunter2"),
    )
    asked = Entry(what="retried", at=at(4), by="ada")
    job = record(
        state=JobState.COMPLETED,
        attempt=2,
        claimed_at=at(10),
        finished_at=at(12),
        history=(failed, asked),
    )
    found = phases(job, at(100), "")
    assert [(p.title, p.took) for p in found] == [
        ("waited in queue", "1.0 s"),
        ("attempt 1 failed", "2.0 s"),
        ("waited for its next attempt", "7.0 s"),
        ("retried by ada", "0 s"),
        ("attempt 2 completed", "2.0 s"),
    ]
    assert "hunter2" not in found[1].note
    drawn = timeline(found, at(100))
    assert [track.lane.count("<rect") for track in drawn.tracks] == [1, 1, 1, 1, 1]
    assert drawn.marks == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s"]
    assert drawn.words == "12 s: 8.0 s waiting, 4.0 s running"
    waits = record(state=JobState.RETRYING, attempt=1, run_at=at(95), history=(failed,))
    assert timeline(phases(waits, at(10), ""), at(10)).words == (
        "10 s so far: 8.0 s waiting, 2.0 s running"
    ), "what is still to come is not counted"
    skewed = record(state=JobState.RUNNING, attempt=1, claimed_at=at(-5))
    assert all(p.end >= p.start for p in phases(skewed, at(1), ""))


def test_the_pages_name_the_command_of_the_framework(make_web: Callable[..., Web]) -> None:
    web = make_web()
    web.app.command = "manage.py winch"
    job = web.add.enqueue(1)
    for path in ("/workers", "/queues/default", f"/jobs/{job.id}"):
        text = web.ask("GET", path).text
        assert "manage.py winch worker" in text, path
        assert "-A module:app" not in text, path
    why = web.api("GET", f"/jobs/{job.id}/why").json()["why"]
    assert why == "No worker serves its queue 'default'. Start one: manage.py winch worker -Q default"
