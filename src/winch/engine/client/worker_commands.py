"""Commands to workers, as they are stored: what an operator sends, and what comes back.

The answer to a beat brings the commands of a session to its supervisor, which carries each out once and
stores the answer. docs/protocol/commands.md has the rules.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.engine.base.operation import Operation, Sleep
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import COMMANDS, SessionInfo
from winch.storage.protocol import Driver

ANSWERS = "command_answer"
COMMANDS_KEPT = timedelta(minutes=10)
ANSWERS_KEPT = timedelta(hours=1)
# A waiting operator looks this often.
LOOK_EVERY = 0.25

Action = Literal["quiet", "resume", "stop", "drain", "stacks", "configure"]


class WorkerCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker is to do. `grace` is in seconds; `queues` is the text of `-Q`; the others
    are those of their flags."""

    do: str
    by: str
    grace: float | None = None
    concurrency: int | None = None
    queues: str | None = None
    queue_limits: str | None = None
    queue_rates: str | None = None


class CommandAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command, as its worker stores it."""

    state: Literal["done", "failed"]
    text: str = ""


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command to one worker. `workers` are the names of its processes that were chosen.

    `state` is "done", "failed", "pending" (no answer yet; the command waits for ten minutes) or "ended"
    (the worker ended first). `text` is the worker's answer: its stacks, or what it does now. `command`
    is the id of the command.
    """

    command: str
    session: str
    workers: tuple[str, ...]
    state: Literal["done", "failed", "pending", "ended"]
    text: str = ""


def key_of(session: str, command: str) -> str:
    """The key under which a command and its answer are kept."""
    return f"{session}/{command}"


def _after(session: str) -> tuple[str, str]:
    """The range of a session's keys: '0' is the character after '/'."""
    return f"{session}/", f"{session}0"


def send(driver: Driver, session: str, command: WorkerCommand) -> Operation[str]:
    """Store a command for this session; returns its id. It sorts after all that were stored before."""
    after, before = _after(session)
    highest = 0
    for book in (COMMANDS, ANSWERS):
        which = KvFilter(book=book, after=after, before=before, limit=1, is_newest_first=True)
        for line in (yield driver.kv_list(which)):
            highest = max(highest, int(line.key[len(after) :].partition("-")[0]))
    identity = f"{highest + 1:08}-{secrets.token_hex(8)}"
    body = msgspec.json.encode(command).decode()
    record = KvRecord(book=COMMANDS, key=key_of(session, identity), body=body, keep=COMMANDS_KEPT)
    yield driver.kv_put([record])
    return identity


def answer_of(driver: Driver, session: str, command: str) -> Operation[CommandAnswer | None]:
    """The stored answer to a command; None while there is none."""
    key = key_of(session, command)
    which = KvFilter(book=ANSWERS, after=key[:-1], before=f"{key}\x01")
    for line in (yield driver.kv_list(which)):
        if line.key == key:
            return msgspec.json.decode(line.body, type=CommandAnswer)
    return None


def store_answer(driver: Driver, key: str, answer: CommandAnswer) -> Operation[None]:
    """Store the answer, then delete the command. Both may be repeated."""
    body = msgspec.json.encode(answer).decode()
    yield driver.kv_put([KvRecord(book=ANSWERS, key=key, body=body, keep=ANSWERS_KEPT)])
    yield driver.kv_delete(COMMANDS, [key])


def look(driver: Driver, sent: Mapping[str, Sequence[SessionInfo]]) -> Operation[list[WorkerAnswer]]:
    """What became of these commands by now. `sent` has the processes by command, the addressee first."""
    found = []
    ended: set[str] | None = None
    for command, (session, *others) in sent.items():
        stored = yield from answer_of(driver, session.id, command)
        if stored is None and ended is None:
            live = yield driver.sessions(is_ended_too=False)
            ended = {one.id for one, *_ in sent.values()} - {one.id for one in live}
            # It may have been answered between the two looks.
            stored = yield from answer_of(driver, session.id, command)
        state: Literal["done", "failed", "pending", "ended"]
        if stored is not None:
            state = stored.state
        else:
            state = "ended" if ended is not None and session.id in ended else "pending"
        found.append(
            WorkerAnswer(
                command=command,
                session=session.id,
                workers=tuple(one.worker for one in (session, *others)),
                state=state,
                text="" if stored is None else stored.text,
            )
        )
    return found


def await_answers(
    driver: Driver, sent: Mapping[str, Sequence[SessionInfo]], wait: float
) -> Operation[list[WorkerAnswer]]:
    """What became of these commands, waiting for so many seconds at most."""
    waited = 0.0
    while True:
        found = yield from look(driver, sent)
        if waited >= wait or all(answer.state != "pending" for answer in found):
            return found
        pause = min(LOOK_EVERY, wait - waited)
        yield Sleep(pause)
        waited += pause


def live_sessions(driver: Driver) -> Operation[list[SessionInfo]]:
    """The sessions of workers that have not ended and whose leases are not over."""
    found = yield driver.sessions(is_ended_too=False)
    now = datetime.now(UTC)
    return [one for one in found if one.is_worker and one.lease_until > now]


def by_worker(sessions: Sequence[SessionInfo]) -> list[list[SessionInfo]]:
    """The processes of each whole worker: those under one supervisor."""
    found: dict[str, list[SessionInfo]] = {}
    for session in sessions:
        found.setdefault(session.supervisor, []).append(session)
    return list(found.values())


def idlest(live: Sequence[SessionInfo], number: int) -> list[SessionInfo]:
    """The processes of so many workers that run the fewest jobs; of equal ones the youngest."""
    workers = by_worker([session for session in live if session.supervisor])
    workers.sort(key=lambda one: max(session.started_at for session in one), reverse=True)
    workers.sort(key=lambda one: sum(session.running for session in one))
    return [session for worker in workers[:number] for session in worker]


def named(live: Sequence[SessionInfo], names: Sequence[str]) -> list[SessionInfo]:
    """Those of these worker names or session ids; raises ConfigError for an unknown one."""
    chosen: dict[str, SessionInfo] = {}
    for name in names:
        found = [one for one in live if name in (one.worker, one.id)]
        if not found:
            known = [one.worker for one in live]
            raise ConfigError(f"no live worker named {name!r}{did_you_mean(name, known)}")
        # A worker of Faktory has a session that takes commands, and one for each of its jobs.
        able = [one for one in found if one.supervisor]
        if not able:
            raise ConfigError(f"worker {name} works over HTTP and takes no commands")
        chosen |= {one.id: one for one in able}
    return list(chosen.values())
