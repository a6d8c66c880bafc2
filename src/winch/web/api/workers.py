"""Commands to workers: quiet, resume, stop, drain, stacks, configure.

A worker runs jobs of every tenant and task, so a narrowed caller sends none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from winch.core.errors import ConfigError
from winch.core.values.duration import parse_duration
from winch.core.values.redact import mask_text
from winch.engine.client.audit import acting
from winch.engine.client.worker_commands import WorkerAnswer, look
from winch.storage.params import SessionInfo
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.workers import CommandBody, CommandOut, ConfigureBody, StopBody

LONGEST_WAIT = timedelta(seconds=60)


async def quiet(call: WebCall) -> WebReply:
    workers = call.site.app.workers
    return await _sent(call, lambda session, wait: workers.aquiet(session, wait=wait))


async def resume(call: WebCall) -> WebReply:
    workers = call.site.app.workers
    return await _sent(call, lambda session, wait: workers.aresume(session, wait=wait))


async def stop(call: WebCall) -> WebReply:
    workers, body = call.site.app.workers, call.body
    call.detail.update({} if body.grace is None else {"grace": body.grace})
    return await _sent(call, lambda session, wait: workers.astop(session, grace=body.grace, wait=wait))


async def drain(call: WebCall) -> WebReply:
    workers = call.site.app.workers
    return await _sent(call, lambda session, wait: workers.adrain(session, wait=wait))


async def stacks(call: WebCall) -> WebReply:
    workers = call.site.app.workers
    return await _sent(call, lambda session, wait: workers.astacks(session, wait=wait))


async def configure(call: WebCall) -> WebReply:
    workers, body = call.site.app.workers, call.body
    named = ("concurrency", "queues", "queue_limits", "queue_rates")
    given = {name: getattr(body, name) for name in named if getattr(body, name) is not None}
    call.detail.update(given)
    return await _sent(call, lambda session, wait: workers.aconfigure(session, wait=wait, **given))


async def get_command(call: WebCall) -> WebReply:
    session = await _session(call, is_ended_too=True)
    command = call.path("command")
    [answer] = await call.site.client.arun(look(call.site.driver, {command: [session]}))
    return WebReply(_out(answer))


async def _sent(
    call: WebCall, command: Callable[[str, timedelta], Awaitable[list[WorkerAnswer]]]
) -> WebReply:
    body: CommandBody = call.body
    session = await _session(call)
    call.note(session.worker)
    wait = min(parse_duration(body.wait, "wait"), LONGEST_WAIT)
    try:
        with acting(call.by):
            [answer] = await command(session.id, wait)
    except ConfigError as error:
        raise Problem("invalid", str(error)) from None
    return WebReply(_out(answer), status=202 if answer.state == "pending" else 200)


async def _session(call: WebCall, *, is_ended_too: bool = False) -> SessionInfo:
    identity = call.path("id")
    for session in await call.site.app.workers.alist(is_ended_too=is_ended_too):
        if session.id == identity:
            return session
    raise Problem("not-found", f"no worker session {identity!r}")


def _out(answer: WorkerAnswer) -> CommandOut:
    return CommandOut(
        id=answer.command, session=answer.session, state=answer.state, text=mask_text(answer.text)
    )


W = f"{PREFIX}/workers/{{id}}"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("POST", f"{W}/quiet", "operate", quiet, "Have a worker claim nothing more",
             body=CommandBody, answer=CommandOut, status=202, also=(200,), audit="quiet worker"),
    WebRoute("POST", f"{W}/resume", "operate", resume, "Have a quiet worker claim again",
             body=CommandBody, answer=CommandOut, status=202, also=(200,), audit="resume worker"),
    WebRoute("POST", f"{W}/stop", "operate", stop, "Stop a worker; running jobs get a grace period",
             body=StopBody, answer=CommandOut, status=202, also=(200,), audit="stop worker"),
    WebRoute("POST", f"{W}/drain", "operate", drain, "Stop a worker when its running jobs have ended",
             body=CommandBody, answer=CommandOut, status=202, also=(200,), audit="drain worker"),
    WebRoute("POST", f"{W}/stacks", "operate", stacks, "Read the stacks of a worker process",
             body=CommandBody, answer=CommandOut, status=202, also=(200,), audit="worker stacks"),
    WebRoute("PATCH", W, "operate", configure, "Change the concurrency or the queues of a worker",
             body=ConfigureBody, answer=CommandOut, status=202, also=(200,), audit="configure worker"),
    WebRoute("GET", f"{W}/commands/{{command}}", "operate", get_command,
             "What became of a command to a worker", answer=CommandOut),
)  # fmt: skip
