"""Every route and page, with every role, under every narrowing, about an own and a foreign object."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from tests.web.access_table import TABLE, Row
from tests.web.conftest import PRINTED
from tests.web.kit import LoopThread, Web
from winch import App, Job
from winch.storage.params import NewSession
from winch.web.access import ROLES
from winch.web.mount import ROUTES
from winch.web.routes import WebRoute
from winch.web.tokens import Tokens

NARROWINGS = ("none", "tenant", "queue", "task")
OWN = {"queue": "own-q", "tenant": "own-t", "task": "own.task"}
# The foreign object differs from the own one by the narrowed dimension and by nothing else.
FOREIGN = {"queue": "FOREIGN-q", "tenant": "FOREIGN-t", "task": "FOREIGN.task"}
FOREIGN_VALUE = "FOREIGN-value"
ABSENT = "0198c000-0000-7000-8000-00000000dead"
FORM = {"content-type": "application/x-www-form-urlencoded"}


def name_of(route: WebRoute) -> str:
    return f"{route.method} {route.path}"


def test_every_route_has_a_row_and_applies_what_the_row_promises() -> None:
    assert {name_of(route) for route in ROUTES} == set(TABLE)
    for route in ROUTES:
        if route.needs != "public":
            assert set(route.applies) == set(TABLE[name_of(route)].applies), name_of(route)


@dataclass
class Answer:
    status: int
    text: str


@dataclass
class Request:
    path: str
    body: Any = None
    form: dict[str, str] | None = None


class Side:
    """The objects of one side: all of one queue, task and tenant."""

    def __init__(self, world: World, names: dict[str, str], value: str) -> None:
        self.world, self.names, self.value = world, names, value
        self.queue, self.task, self.tenant = names["queue"], names["task"], names["tenant"]
        self.seed = self.job()
        self.dead = self.dead_job()
        self.group = self.dead.refresh().record.fingerprint or ""
        self.schedule = self.new_schedule("kept")
        self.webhook = self.new_webhook()
        self.session = self.new_session(world.admin_text)
        self.worker = world.session(self.queue)
        self.flow = world.flow(self)

    def job(self, **more: Any) -> Job[Any]:
        task = self.world.tasks[self.task].using(queue=self.queue, tenant=self.tenant, **more)
        job: Job[Any] = task.enqueue(value=self.value)
        return job

    def dead_job(self) -> Job[Any]:
        job = self.job(priority="high")  # to be the first that is claimed
        self.world.kill(job, self.queue, self.task, f"{self.value} failed")
        return job

    def new_schedule(self, name: str) -> str:
        self.world.count += 1
        full = f"{self.value}-{name}-{self.world.count}"
        self.world.app.schedules.add(
            full, task=self.task, every="1h", args={"value": self.value}, queue=self.queue
        )
        return full

    def new_session(self, token: str) -> str:
        """The key of a session of this token, for the queue of this side."""
        body = {"worker": self.value, "queues": [self.queue]}
        answer = self.world.web.api("POST", "/sessions", body, token=token)
        assert answer.status_code == 201, answer.text
        key: str = answer.json()["key"]
        return key

    def new_webhook(self) -> str:
        made = self.world.app.webhooks.subscribe(
            f"https://example.com/{self.value}", [f"{self.value}.*"], tenant=self.tenant
        )
        return made.endpoint.id


class World:
    """A store with an own and a foreign side for one narrowing."""

    def __init__(self, web: Web, runner: LoopThread, narrowing: str) -> None:
        self.web, self.app, self.runner = web, web.app, runner
        self.narrowing = narrowing
        self.count = 0
        web.app.webhooks.setup()
        self.tasks = {name: self._task(web.app, name) for name in ("own.task", "FOREIGN.task")}
        self.cookie, self.form_token = self._form()
        changed = {} if narrowing == "none" else {narrowing: FOREIGN[narrowing]}
        self.own = Side(self, OWN, "own-value")
        self.foreign = Side(self, OWN | changed, FOREIGN_VALUE)
        self.own.job()
        scope: dict[str, Any] = {}
        if narrowing == "tenant":
            scope = {"tenant": OWN["tenant"]}
        elif narrowing != "none":
            scope = {f"{narrowing}s": (OWN[narrowing],)}
        self.scope = scope
        # The name is the same for all of them: a name is no proof.
        self.tokens = {role: self.token(role, **scope) for role in ROLES}
        self.admin = self.token("admin")
        self.foreign_operation = self.bulk(self.admin[1], "cancel", [])
        self.foreign_token = self.token("read", **self._foreign_scope())

    def token(self, *roles: str, **scope: Any) -> tuple[str, str]:
        text, token = self.app.client.run(Tokens(self.app.ready()).create("same-name", roles, **scope))
        return token.id, text

    def _foreign_scope(self) -> dict[str, Any]:
        if self.narrowing == "tenant":
            return {"tenant": FOREIGN["tenant"]}
        return {} if self.narrowing == "none" else {f"{self.narrowing}s": (FOREIGN[self.narrowing],)}

    @staticmethod
    def _task(app: App, name: str) -> Any:
        @app.task(name=name, queue="own-q")
        def handler(value: str = "") -> str:
            return value

        return handler

    def _form(self) -> tuple[str, str]:
        page = self.web.ask("GET", "/login")
        found = re.search(r'name="form_token" value="([^"]+)"', page.text)
        assert found is not None
        return page.cookies["winch-form"], found[1]

    def session(self, queue: str) -> str:
        self.count += 1
        identity = f"00000000-0000-4000-8000-{self.count:012}"
        driver = self.app.ready()
        new = NewSession(id=identity, worker=f"worker-{queue}", host="h", pid=1, release="1",
                         queues=(queue,), tasks=("own.task",), slots=2,
                         lease=timedelta(minutes=50), supervisor=identity)  # fmt: skip
        driver.run(driver.start_session(new))
        return identity

    def flow(self, side: Side) -> str:
        import winch

        made = winch.flow("f")
        task = self.tasks[side.task].using(queue=side.queue, tenant=side.tenant)
        made.add(task.bind(value=side.value))
        return made.enqueue().id

    def kill(self, job: Job[Any], queue: str, task: str, message: str) -> None:
        taken: list[dict[str, Any]] = []
        while not any(one["id"] == job.id for one in taken):
            taken += self.web.claim(queue, token=self.admin_text, tasks=[task])
        for one in taken:
            is_it = one["id"] == job.id
            end = {"is_final": True, "error": {"type": message, "message": message}} if is_it else {}
            verb = "fail" if is_it else "release"
            path = f"/jobs/{one['id']}/{verb}"
            body = {"token": one["token"], **end}
            assert self.web.api("POST", path, body, token=self.admin_text).status_code == 200

    @property
    def admin_text(self) -> str:
        if not hasattr(self, "_admin"):
            self._admin = self.token("admin")[1]
        return self._admin

    def bulk(self, token: str, action: str, ids: list[str]) -> str:
        answer = self.web.api("POST", f"/jobs:{action}", {"ids": ids}, token=token)
        assert answer.status_code == 202, answer.text
        found: str = answer.json()["id"]
        return found

    # -- requests ----------------------------------------------------------------------------------

    def ask(self, route: WebRoute, request: Request, token: str) -> Answer:
        return self.runner.run(self._ask(route, request, token))

    async def _ask(self, route: WebRoute, request: Request, token: str) -> Answer:
        headers = {"host": "localhost", "authorization": f"Bearer {token}"}
        body = b""
        if request.form is not None:
            headers |= FORM | {"cookie": f"winch-form={self.cookie}"}
            body = urlencode({"form_token": self.form_token, **request.form}, doseq=True).encode()
        elif request.body is not None:
            headers["content-type"] = "application/json"
            body = json.dumps(request.body).encode()
        answer = await call_asgi(self.web.asgi, route.method, request.path, headers, body)
        if route.path.endswith("/drain") and answer.status < 400:
            for queue in {OWN["queue"], FOREIGN["queue"]}:  # the next requests enqueue into them
                await self.app.queues.aresume(queue)
        return answer


async def call_asgi(app: Any, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
    """One request; a stream is left after its first message with data."""
    url = httpx.URL(f"http://localhost{path}")
    status, text = 0, ""
    is_enough = asyncio.Event()
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await is_enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, text
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            text += message.get("body", b"").decode()
            if "data:" in text or not message.get("more_body"):
                is_enough.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": url.path,
        "raw_path": url.raw_path,
        "query_string": url.query,
        "root_path": "",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await asyncio.wait_for(app(scope, receive, send), 30)
    return Answer(status, text)


# -- the request that each kind of row makes -------------------------------------------------------


def request_for(  # noqa: PLR0912  # one case for each kind of object
    world: World, route: WebRoute, row: Row, side: Side, role: str
) -> Request:
    """A request about an object of this side; a fresh object where the request may change it."""
    path = route.path
    form: dict[str, Any] | None = {} if route.is_page and route.changes else None
    body: Any = {} if route.body is not None else None
    is_own = side is world.own
    is_fresh = is_own or world.narrowing == "none"

    def fill(name: str, value: str) -> None:
        nonlocal path
        path = path.replace(f"{{{name}}}", quote(value, safe=""))

    def give(**fields: Any) -> None:
        (body if form is None else form).update(fields)

    match row.kind:
        case "":
            pass
        case "job" | "dead job" | "claimed job":
            job = side.seed
            if route.changes and is_fresh:
                job = side.dead_job() if row.kind == "dead job" else side.job()
            fill("id", job.id)
            if row.kind == "claimed job":
                give(token=ABSENT)
            if path.endswith("/delete"):
                give(sure="yes")
        case "job ids" | "dead job ids":
            job = side.seed if row.kind == "job ids" else side.dead
            if is_fresh:
                job = side.job() if row.kind == "job ids" else side.dead_job()
            if form is None:
                give(ids=[job.id])
            else:
                give(id=job.id, action="cancel")
        case "new job" | "new jobs":
            tenant = {} if form is not None else {"tenant": side.tenant}
            new = {"task": side.task, "queue": side.queue, **tenant}
            give(**(new if row.kind == "new job" else {"jobs": [new]}))
        case "operation":
            made = world.foreign_operation if not is_own else "00000000000000000000-absent00"
            if is_own and "operate" in ROLES[role]:
                made = world.bulk(world.tokens[role][1], "cancel", [])
            fill("id", made)
        case "claim":
            fill("queue", side.queue)
        case "queue" | "queue settings":
            fill("queue", side.queue)
            if row.kind == "queue settings":
                give(retries=3)
        case "drain":
            fill("queue", side.queue)
        case "purge":
            fill("queue", side.queue)
            give(dry_run=True)
        case "queue move":
            fill("queue", side.queue)
            give(
                to=world.own.queue + "-2" if world.narrowing == "none" else world.own.queue, dry_run=True
            )
        case "queue in query":
            path += f"?queue={side.queue}"
        case "task in query":
            path += f"?task={side.task}"
        case "worker" | "worker settings" | "worker command":
            fill("id", side.worker)
            fill("command", "00000001-absent")
            if row.kind == "worker settings":
                give(concurrency=3)
        case "new session":
            give(worker="w", queues=[side.queue])
        case "session" | "session finish" | "session notes" | "session children":
            key = side.session
            if (is_fresh and "work" in ROLES[role]) and world.narrowing != "tenant":
                key = side.new_session(world.tokens[role][1])
            fill("session", key)
            claim = {"id": side.seed.id, "token": ABSENT}
            if row.kind == "session finish":
                give(outcomes=[], claim={})
            elif row.kind == "session notes":
                give(notes=[claim])
            elif row.kind == "session children":
                give(parent=claim, jobs=[{"task": side.task}])
        case "group":
            fill("group", side.group)
        case "group mark":
            fill("group", side.group)
            give(**({"state": "ignored"} if form is None else {"action": "ignored"}))
        case "discard":
            give(group=side.group, dry_run=True)
        case "limit":
            fill("name", "limit:own.task")
            if body is not None:
                give(value=3)
        case "limit form":
            give(action="set", name="limit:own.task", value="3")
        case "idlest":
            give(idlest="1")
        case "worker action":
            fill("id", side.worker)
            give(action="stop")
        case "trip" | "tripped":
            fill("name", "bank")
            if row.kind == "trip":
                give(hold="1m")
            else:
                world.app.limits.trip("bank", "1m")
        case "key":
            world.count += 1
            side.job(unique=f"key-{world.count}")
            fill("name", f"key-{world.count}")
        case "schedule" | "schedule change" | "schedule backfill":
            name = side.schedule
            if route.changes and is_fresh:
                name = side.new_schedule("fresh")
            fill("name", name)
            if form is not None:
                give(action="pause")
            elif row.kind == "schedule change":
                give(every="2h")
            elif row.kind == "schedule backfill":
                give(start="2026-11-01T00:00:00Z", end="2026-11-01T06:00:00Z")
        case "webhook" | "webhook change" | "webhook secret" | "webhook replay":
            fill("id", side.new_webhook() if route.changes and is_fresh else side.webhook)
            if row.kind == "webhook change":
                give(events=["changed"])
            elif row.kind == "webhook secret":
                give(secret="whsec_" + "a" * 44)
            elif row.kind == "webhook replay":
                give(start="2026-01-01T00:00:00Z")
        case "new webhook":
            secret = "whsec_" + "a" * 44
            give(url="https://example.com", events=["e"], secret=secret, tenant=side.tenant)
        case "new schedule":
            world.count += 1
            give(name=f"new-{world.count}", task=side.task, every="1h")
            give(**({"queue": side.queue} if form is None else {}))
        case "flow" | "flow rerun":
            fill("id", side.flow)
            if row.kind == "flow rerun":
                give(node=side.task)
            if form is not None:
                give(action="cancel")
        case "new view":
            give(name="late", q="state:dead")
        case "signal":
            fill("name", "s")
            give(**({"name": "s"} if form is not None else {}))
        case "file":
            fill("name", "winch.css")
        case "new token":
            give(name="same-name", role="read")
            if not is_own and world.narrowing != "none":
                field = "tenant" if world.narrowing == "tenant" else f"{world.narrowing}s"
                give(**{field: side.names[world.narrowing]})
        case "token":
            token = world.foreign_token if not is_own else world.token("read", **world.scope)
            fill("id", token[0])
        case _:
            raise AssertionError(f"no request for {row.kind!r}")
    return Request(path, body, form)


def absent(route: WebRoute, request: Request, side: Side, world: World) -> Request:
    """The same request about an object that does not exist."""
    path, body = request.path, request.body
    path = path.replace(side.webhook, "ep_" + "0" * 32)
    for value in (side.seed.id, side.dead.id, world.foreign_token[0], side.worker, side.session):
        path = path.replace(value, ABSENT)
    path = path.replace(world.foreign_operation, "00000000000000000000-absent00")
    for value in (side.group, side.schedule, side.queue):
        path = path.replace(quote(value, safe=""), "absent")
    if body is not None:
        body = json.loads(json.dumps(body).replace(side.dead.id, ABSENT))
    form = request.form
    if form is not None:
        form = {name: ABSENT if value == side.dead.id else value for name, value in form.items()}
    return Request(path, body, form)


def marks(world: World) -> list[str]:
    """What a narrowed caller must not read anywhere: the foreign objects and the narrowed name."""
    side = world.foreign
    hidden = [side.webhook] if world.narrowing == "tenant" else []
    return [*hidden, side.seed.id, side.dead.id, side.flow, FOREIGN_VALUE, FOREIGN[world.narrowing],
            world.foreign_operation, world.foreign_token[0]]  # fmt: skip


def neutral(text: str, request: Request) -> str:
    """An answer without what it repeats of the request, and without its own number."""
    sent = json.dumps([request.body, request.form])
    given = {request.path, *re.split("[/?=&]", request.path), *re.findall(r'"([^"]{3,})"', sent)}
    for part in sorted(given - {""}, key=len, reverse=True):
        text = text.replace(part, "").replace(quote(part), "")
    text = re.sub(r'"(request_id|instance)":"[^"]*"', "", text)
    return re.sub(r"[0-9a-f]{16,}|[0-9a-f-]{36}", "", text)


def foreign_state(world: World) -> list[Any]:
    side = world.foreign
    jobs = [side.seed.refresh().record, side.dead.refresh().record]
    [schedule] = [one for one in world.app.schedules.list() if one.name == side.schedule]
    [queue] = [one for one in world.app.queues.list() if one.name == side.queue]
    return [
        *((job.state, job.queue, job.args, job.cancel_requested_at) for job in jobs),
        (schedule.timing, schedule.paused_at, schedule.next_at),
        world.app.webhooks.get(side.webhook),
        queue.paused_at if world.narrowing == "queue" else None,
        world.app.queues.settings().get(FOREIGN["queue"]),
    ]


@pytest.mark.parametrize("store", ["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
@pytest.mark.parametrize("narrowing", NARROWINGS)
def test_every_route_role_and_narrowing(
    narrowing: str, store: str, make_web: Callable[..., Web], runner: LoopThread
) -> None:
    world = World(make_web(store, auth="tokens"), runner, narrowing)
    before = foreign_state(world)
    wrong: list[str] = []
    checks = 0
    for route in ROUTES:
        row = TABLE[name_of(route)]
        for role in ROLES:
            for side in (world.own, world.foreign):
                request = request_for(world, route, row, side, role)
                answer = world.ask(route, request, world.tokens[role][1])
                checks += 1
                where = (
                    f"{role} {narrowing} {name_of(route)} {'own' if side is world.own else 'foreign'}"
                )
                fault = judged(world, route, row, role, side, request, answer)
                if fault:
                    wrong.append(f"{where}: {answer.status}, {fault}\n    {answer.text[:300]}")
    assert wrong == [], "\n".join(wrong)
    if narrowing != "none":
        assert foreign_state(world) == before
    PRINTED.append(
        f"{store} {narrowing}: {len(ROUTES)} routes × {len(ROLES)} roles × 2 objects = {checks} checks"
    )


def judged(
    world: World, route: WebRoute, row: Row, role: str, side: Side, request: Request, answer: Answer
) -> str:
    """What is wrong with an answer; empty when nothing is."""
    code, narrowing = answer.status, world.narrowing
    is_foreign = side is world.foreign and narrowing != "none"
    if narrowing != "none":
        shown = neutral(answer.text, request) if is_foreign else answer.text
        if found := [mark for mark in marks(world) if mark in shown]:
            return f"the answer holds {found}"
    if route.needs == "public":
        return "" if code < 500 and code != 403 else "public to everybody"
    if route.needs not in ROLES[role] or (narrowing != "none" and narrowing not in row.applies):
        return "" if code == 403 else "expected 403"
    if not is_foreign or row.foreign in ("hidden", "free") or narrowing not in row.names:
        return "" if code < 300 or code in (303, 409) else "expected success"
    if code != row.foreign:
        return f"expected {row.foreign}"
    if row.foreign == 404:
        other = absent(route, request, side, world)
        same = world.ask(route, other, world.tokens[role][1])
        if (same.status, neutral(same.text, other)) != (code, neutral(answer.text, request)):
            return f"not the answer for an object that does not exist: {same.status} {same.text[:300]}"
    return ""


def test_a_narrowed_token_counts_only_its_own_jobs_of_a_dead_group(
    make_web: Callable[..., Web],
) -> None:
    web = make_web("memory", auth="tokens")
    admin = web.token("admin")
    for queue in ("default", "mail"):
        for _ in range(2):
            job = web.add.using(queue=queue).enqueue(1)
            [one] = web.claim(queue, token=admin)
            body = {"token": one["token"], "is_final": True, "error": "broken"}
            assert web.api("POST", f"/jobs/{job.id}/fail", body, token=admin).status_code == 200
    [whole] = web.api("GET", "/dead/groups", token=admin).json()["groups"]
    assert whole["count"] == 4
    for token, count in ((web.token("read", queues=("mail",)), 2),
                         (web.token("read", queues=("mail", "default")), 4),
                         (web.token("read", tasks=("shop.add",)), 4)):  # fmt: skip
        [group] = web.api("GET", "/dead/groups", token=token).json()["groups"]
        assert group == {**whole, "count": count} | {
            k: group[k] for k in ("first_at", "sample_id", "last_at")
        }
        page = web.ask("GET", f"/dead/{group['group']}", token=token, headers={"accept": "text/html"})
        assert page.status_code == 200
    assert web.api("GET", "/dead/groups", token=web.token("read", tasks=("shop.mail",))).json() == {
        "groups": []
    }
