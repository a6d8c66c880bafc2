"""Limits, breakers, tenants and unique keys over HTTP.

Their numbers count the jobs of all queues, tasks and tenants, so a narrowed caller reaches none of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from winch.core.lifecycle import JobState
from winch.core.values.redact import mask_text
from winch.engine.client.audit import acting
from winch.engine.observe import throughput
from winch.engine.observe.throughput import MINUTE
from winch.engine.tasks.gates import limit_text, parse_limit
from winch.storage.gate_records import LimitInfo, ScopeInfo, TenantInfo
from winch.storage.params import JobFilter
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.convert import copied
from winch.web.schemas.jobs import EmptyBody
from winch.web.schemas.operate import (
    BreakerOut,
    BreakersOut,
    KeyOut,
    KeyQuery,
    KeysOut,
    LimitBody,
    LimitChangeOut,
    TenantOut,
    TenantsOut,
    TripBody,
)
from winch.web.schemas.queues import LimitOut, LimitsOut

# How many running and dead jobs are looked at to count those of each tenant.
MOST_LOOKED_AT = 1000


async def limits_of(call: WebCall) -> list[LimitInfo]:
    driver = call.site.driver
    return await driver.arun(driver.limits())


async def list_limits(call: WebCall) -> WebReply:
    return WebReply(LimitsOut(limits=[_limit_out(one) for one in await limits_of(call)]))


def _limit_out(one: LimitInfo) -> LimitOut:
    return copied(LimitOut, one, allowed=limit_text(one.spec))


async def set_limit(call: WebCall) -> WebReply:
    return WebReply(
        await change_limit(call, call.path("name"), call.body.value, dry_run=call.body.dry_run)
    )


async def change_limit(
    call: WebCall, name: str, value: int | str | None, *, dry_run: bool
) -> LimitChangeOut:
    """Set a limit, or with None take back what was set; with `dry_run` only say what it would do."""
    known = {one.name: one for one in await limits_of(call)}
    before = known.get(name, LimitInfo(name=name, spec=None))
    spec = None if value is None else parse_limit(value)
    starts = over = 0
    if spec is not None and not spec.per:
        starts, over = min(before.waiting, max(0, spec.n - before.used)), max(0, before.used - spec.n)
    if not dry_run:
        with acting(call.by):
            if value is None:
                await call.site.app.limits.areset(name)
            else:
                await call.site.app.limits.aset(name, value)
    call.note(name, value=value, before=limit_text(before.spec), dry_run=dry_run or None)
    return LimitChangeOut(
        name=name,
        before=limit_text(before.spec),
        after="as in the code" if spec is None else limit_text(spec),
        used=before.used,
        waiting=before.waiting,
        starts=starts,
        over=over,
        is_dry_run=dry_run,
    )


async def reset_limit(call: WebCall) -> WebReply:
    return WebReply(await change_limit(call, call.path("name"), None, dry_run=False))


# -- breakers ----------------------------------------------------------------------------------------


async def list_breakers(call: WebCall) -> WebReply:
    found = await call.site.app.limits.abreakers()
    return WebReply(BreakersOut(breakers=[breaker_out(one) for one in found]))


def breaker_out(one: ScopeInfo) -> BreakerOut:
    state: Literal["tripped", "held", "probing", "ramping"]
    if one.until > datetime.now(UTC):
        state = "tripped" if one.is_tripped else "held"
    else:
        state = "probing" if one.is_tripped else "ramping"
    return BreakerOut(
        name=one.name,
        state=state,
        until=one.until,
        trips=one.trips,
        tripped_at=one.tripped_at,
        reason=mask_text(one.reason),
        waiting=one.waiting,
    )


async def trip(call: WebCall) -> WebReply:
    body = call.body
    await trip_breaker(call, call.path("name"), body.hold, body.reason)
    return await list_breakers(call)


async def trip_breaker(call: WebCall, name: str, hold: str, reason: str | None) -> None:
    with acting(call.by):
        await call.site.app.limits.atrip(name, hold, reason=reason)
    call.note(name, hold=hold, reason=reason)


async def reset_breaker(call: WebCall) -> WebReply:
    await open_breaker(call, call.path("name"))
    return await list_breakers(call)


async def open_breaker(call: WebCall, name: str) -> None:
    with acting(call.by):
        took = await call.site.app.limits.auntrip(name)
    if not took:
        raise Problem("not-found", f"no breaker {name!r} is tripped or held")
    call.note(name)


# -- tenants -----------------------------------------------------------------------------------------


async def list_tenants(call: WebCall) -> WebReply:
    return WebReply(TenantsOut(tenants=await tenants_of(call), counted_up_to=MOST_LOOKED_AT))


async def tenants_of(call: WebCall) -> list[TenantOut]:
    """The tenants with ready jobs, with attempts in the last hour, or with a weight. The first is that
    whose oldest job waits longest."""
    driver, app = call.site.driver, call.site.app
    lines: dict[str, list[TenantInfo]] = {}
    for info in await app.limits.atenants(limit=1000):
        lines.setdefault(info.tenant, []).append(info)
    series = await call.site.client.arun(throughput.read(driver, MINUTE, int(time.time()), 60))
    total = series.total()
    started = total.tenants
    weights = {
        one.name.removeprefix("tenant:"): one.spec.n
        for one in await limits_of(call)
        if one.name.startswith("tenant:") and one.spec is not None
    }
    running = await _counted(call, JobState.RUNNING)
    dead = await _counted(call, JobState.DEAD)
    found = [
        _tenant_out(name, lines.get(name, []), weights, running, dead, started.get(name), total.spent)
        for name in {*lines, *started, *weights, *running}
        if name != throughput.OTHER
    ]
    return sorted(found, key=_longest_wait)


def _longest_wait(one: TenantOut) -> Any:
    return one.oldest_ready_at or datetime.max.replace(tzinfo=UTC), -one.ready, one.tenant


def _tenant_out(
    name: str,
    lines: list[TenantInfo],
    weights: dict[str, int],
    running: Counter[str],
    dead: Counter[str],
    started: tuple[int, float] | None,
    spent: Mapping[str, float],
) -> TenantOut:
    number, seconds = started or (0, 0.0)
    return TenantOut(
        tenant=name,
        ready=sum(line.ready for line in lines),
        oldest_ready_at=min(
            (line.oldest_ready_at for line in lines if line.oldest_ready_at), default=None
        ),
        queues={line.queue: line.ready for line in lines},
        weight=weights.get(name, 1),
        running=running[name],
        dead=dead[name],
        started=number,
        wait_seconds=seconds / number if number else None,
        spent_seconds=round(spent.get(name, 0.0), 6),
    )


async def _counted(call: WebCall, state: JobState) -> Counter[str]:
    """The latest jobs in this state by tenant."""
    driver = call.site.driver
    page = await driver.arun(driver.list_jobs(JobFilter(states=(state,), limit=MOST_LOOKED_AT)))
    return Counter(job.tenant for job in page.jobs if job.tenant is not None)


# -- unique keys -------------------------------------------------------------------------------------


async def list_keys(call: WebCall) -> WebReply:
    query: KeyQuery = call.query
    found = await call.site.app.jobs.aunique_keys(prefix=query.prefix, limit=query.limit)
    return WebReply(KeysOut(keys=[KeyOut(key=one.key, job=one.job) for one in found]))


async def release_key(call: WebCall) -> WebReply:
    key = call.path("name")
    return WebReply(KeyOut(key=key, job=await free_key(call, key)))


async def free_key(call: WebCall, key: str) -> str:
    """Free a unique key; returns the job that held it."""
    with acting(call.by):
        holder = await call.site.app.jobs.arelease_key(key)
    if holder is None:
        raise Problem("not-found", f"no live job holds the unique key {key!r}")
    call.note(key, job=holder)
    return holder


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", f"{PREFIX}/limits", "read", list_limits, "List limits, rates and waiting jobs",
             answer=LimitsOut),
    WebRoute("PUT", f"{PREFIX}/limits/{{name}}", "operate", set_limit,
             "Set a limit, a rate or a weight, or see what it would do", body=LimitBody,
             answer=LimitChangeOut, audit="set limit"),
    WebRoute("DELETE", f"{PREFIX}/limits/{{name}}", "operate", reset_limit,
             "Take back what was set for a limit", answer=LimitChangeOut, audit="reset limit"),
    WebRoute("GET", f"{PREFIX}/breakers", "read", list_breakers,
             "Scopes that are held, tripped or ramping up", answer=BreakersOut),
    WebRoute("POST", f"{PREFIX}/breakers/{{name}}/trip", "operate", trip,
             "Hold the jobs of a scope for a time", body=TripBody, answer=BreakersOut,
             audit="trip breaker"),
    WebRoute("POST", f"{PREFIX}/breakers/{{name}}/reset", "operate", reset_breaker,
             "Open a scope that is held or tripped", body=EmptyBody, answer=BreakersOut,
             audit="reset breaker"),
    WebRoute("GET", f"{PREFIX}/tenants", "read", list_tenants, "Tenants and how long they wait",
             answer=TenantsOut),
    WebRoute("GET", f"{PREFIX}/keys", "read", list_keys, "Unique keys and the jobs that hold them",
             query=KeyQuery, answer=KeysOut),
    WebRoute("DELETE", f"{PREFIX}/keys/{{name}}", "operate", release_key,
             "Free a unique key; its job continues", answer=KeyOut, audit="release key"),
)  # fmt: skip
