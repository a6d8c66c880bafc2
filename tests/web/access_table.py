"""What each route and page owes to a narrowed caller: one row for each.

`applies` lists the narrowings under which the route answers at all; under any other it is 403, whatever
object the request names. `foreign` is the answer about an object outside the narrowing:

    404        the answer is the same as for an object that does not exist
    403        the request names what the caller may not use: no object is looked up
    "hidden"   the route succeeds, its answer holds nothing of the object, and the object is unchanged
    "free"     the route has no objects of jobs at all

`names` lists the narrowings by which the request can name a foreign object; by another it cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = ("tenant", "queue", "task")
QUEUE = ("queue",)
TENANT = ("tenant",)
QUEUE_TASK = ("queue", "task")
NONE: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    applies: tuple[str, ...]
    foreign: int | str
    kind: str = ""
    names: tuple[str, ...] = ALL


TABLE: dict[str, Row] = {
    # -- jobs
    "POST /api/v1/jobs": Row(ALL, 403, "new job"),
    "POST /api/v1/jobs:bulk": Row(ALL, 403, "new jobs"),
    "POST /api/v1/jobs:cancel": Row(ALL, "hidden", "job ids"),
    "POST /api/v1/jobs:retry": Row(ALL, "hidden", "job ids"),
    "POST /api/v1/jobs:delete": Row(ALL, "hidden", "job ids"),
    "GET /api/v1/operations/{id}": Row(ALL, 404, "operation"),
    "GET /api/v1/jobs": Row(ALL, "hidden"),
    "GET /api/v1/jobs/{id}": Row(ALL, 404, "job"),
    "GET /api/v1/jobs/{id}/result": Row(ALL, 404, "job"),
    "GET /api/v1/jobs/{id}/why": Row(ALL, 404, "job"),
    "GET /api/v1/jobs/{id}/events": Row(ALL, 404, "job"),
    "POST /api/v1/jobs/{id}/cancel": Row(ALL, 404, "job"),
    "POST /api/v1/jobs/{id}/retry": Row(ALL, 404, "dead job"),
    "DELETE /api/v1/jobs/{id}": Row(ALL, 404, "job"),
    # -- work
    "POST /api/v1/queues/{queue}/claim": Row(QUEUE_TASK, 404, "claim", names=QUEUE),
    "POST /api/v1/jobs/{id}/heartbeat": Row(ALL, 404, "claimed job"),
    "POST /api/v1/jobs/{id}/complete": Row(ALL, 404, "claimed job"),
    "POST /api/v1/jobs/{id}/fail": Row(ALL, 404, "claimed job"),
    "POST /api/v1/jobs/{id}/release": Row(ALL, 404, "claimed job"),
    "POST /api/v1/sessions": Row(QUEUE_TASK, 404, "new session", names=QUEUE),
    "POST /api/v1/sessions/{session}/heartbeat": Row(QUEUE_TASK, 404, "session"),
    "POST /api/v1/sessions/{session}/claim": Row(QUEUE_TASK, 404, "session"),
    "POST /api/v1/sessions/{session}/finish": Row(QUEUE_TASK, 404, "session finish"),
    "POST /api/v1/sessions/{session}/notes": Row(QUEUE_TASK, "hidden", "session notes"),
    "POST /api/v1/sessions/{session}/children": Row(QUEUE_TASK, 409, "session children"),
    "DELETE /api/v1/sessions/{session}": Row(QUEUE_TASK, 404, "session"),
    # -- queues and workers
    "GET /api/v1/queues": Row(QUEUE, "hidden"),
    "GET /api/v1/queues/{queue}": Row(QUEUE, 404, "queue"),
    "PATCH /api/v1/queues/{queue}": Row(QUEUE, 404, "queue settings"),
    "GET /api/v1/queues/{queue}/settings": Row(QUEUE, 404, "queue"),
    "POST /api/v1/queues/{queue}/pause": Row(QUEUE, 404, "queue"),
    "POST /api/v1/queues/{queue}/resume": Row(QUEUE, 404, "queue"),
    "POST /api/v1/queues/{queue}/drain": Row(QUEUE, 404, "drain"),
    "POST /api/v1/queues/{queue}/purge": Row(QUEUE, 404, "purge"),
    "POST /api/v1/queues/{queue}/move": Row(QUEUE, 404, "queue move"),
    "GET /api/v1/workers": Row(QUEUE, "hidden"),
    "GET /api/v1/workers/{id}": Row(QUEUE, 404, "worker"),
    "POST /api/v1/workers/{id}/quiet": Row(NONE, "free", "worker"),
    "POST /api/v1/workers/{id}/resume": Row(NONE, "free", "worker"),
    "POST /api/v1/workers/{id}/stop": Row(NONE, "free", "worker"),
    "POST /api/v1/workers/{id}/drain": Row(NONE, "free", "worker"),
    "POST /api/v1/workers/{id}/stacks": Row(NONE, "free", "worker"),
    "PATCH /api/v1/workers/{id}": Row(NONE, "free", "worker settings"),
    "GET /api/v1/workers/{id}/commands/{command}": Row(NONE, "free", "worker command"),
    # -- dead letters
    "GET /api/v1/dead/groups": Row(QUEUE_TASK, "hidden"),
    "PATCH /api/v1/dead/groups/{group}": Row(NONE, "free", "group mark"),
    "POST /api/v1/dead:discard": Row(NONE, "free", "discard"),
    "POST /api/v1/dead:replay": Row(ALL, 404, "dead job ids"),
    # -- numbers
    "GET /api/v1/stats": Row(NONE, "free"),
    "GET /api/v1/autoscale": Row(QUEUE, 404, "queue in query"),
    "GET /api/v1/limits": Row(NONE, "free"),
    "PUT /api/v1/limits/{name}": Row(NONE, "free", "limit"),
    "DELETE /api/v1/limits/{name}": Row(NONE, "free", "limit"),
    "GET /api/v1/breakers": Row(NONE, "free"),
    "POST /api/v1/breakers/{name}/trip": Row(NONE, "free", "trip"),
    "POST /api/v1/breakers/{name}/reset": Row(NONE, "free", "tripped"),
    "GET /api/v1/tenants": Row(NONE, "free"),
    "GET /api/v1/keys": Row(NONE, "free"),
    "DELETE /api/v1/keys/{name}": Row(NONE, "free", "key"),
    "GET /metrics": Row(NONE, "free"),
    "GET /api/v1/audit": Row(ALL, "hidden"),
    "GET /api/v1/events": Row(QUEUE, "hidden"),
    # -- schedules
    "GET /api/v1/schedules": Row(QUEUE_TASK, "hidden"),
    "POST /api/v1/schedules": Row(QUEUE_TASK, 403, "new schedule"),
    "PATCH /api/v1/schedules/{name}": Row(QUEUE_TASK, 404, "schedule change"),
    "GET /api/v1/schedules/{name}": Row(QUEUE_TASK, 404, "schedule"),
    "POST /api/v1/schedules/{name}/pause": Row(QUEUE_TASK, 404, "schedule"),
    "POST /api/v1/schedules/{name}/resume": Row(QUEUE_TASK, 404, "schedule"),
    "POST /api/v1/schedules/{name}/trigger": Row(QUEUE_TASK, 404, "schedule"),
    "POST /api/v1/schedules/{name}/skip": Row(QUEUE_TASK, 404, "schedule"),
    "POST /api/v1/schedules/{name}/backfill": Row(QUEUE_TASK, 404, "schedule backfill"),
    "DELETE /api/v1/schedules/{name}": Row(QUEUE_TASK, 404, "schedule"),
    # -- webhooks
    "GET /api/v1/webhooks": Row(TENANT, "hidden"),
    "POST /api/v1/webhooks": Row(TENANT, 403, "new webhook"),
    "GET /api/v1/webhooks/{id}": Row(TENANT, 404, "webhook"),
    "PATCH /api/v1/webhooks/{id}": Row(TENANT, 404, "webhook change"),
    "POST /api/v1/webhooks/{id}/disable": Row(TENANT, 404, "webhook"),
    "POST /api/v1/webhooks/{id}/enable": Row(TENANT, 404, "webhook"),
    "POST /api/v1/webhooks/{id}/rotate": Row(TENANT, 404, "webhook secret"),
    "GET /api/v1/webhooks/{id}/deliveries": Row(TENANT, 404, "webhook"),
    "POST /api/v1/webhooks/{id}/replay": Row(TENANT, 404, "webhook replay"),
    "DELETE /api/v1/webhooks/{id}": Row(TENANT, 404, "webhook"),
    # -- flows: the members of one flow may be in any queue, of any task and tenant
    "GET /api/v1/flows": Row(NONE, "free"),
    "GET /api/v1/flows/{id}": Row(NONE, "free", "flow"),
    "GET /api/v1/flows/{id}/graph": Row(NONE, "free", "flow"),
    "POST /api/v1/flows/{id}/cancel": Row(NONE, "free", "flow"),
    "POST /api/v1/flows/{id}/retry": Row(NONE, "free", "flow"),
    "POST /api/v1/flows/{id}/rerun": Row(NONE, "free", "flow rerun"),
    "POST /api/v1/signals/{name}": Row(NONE, "free", "signal"),
    # -- for everybody
    "GET /api/v1/openapi.json": Row(ALL, "free"),
    "GET /livez": Row(ALL, "free"),
    "GET /readyz": Row(ALL, "free"),
    "GET /healthz": Row(ALL, "free"),
    "GET /startupz": Row(ALL, "free"),
    "GET /login": Row(ALL, "free"),
    "GET /preferences": Row(ALL, "free"),
    "POST /login": Row(ALL, "free"),
    "POST /logout": Row(ALL, "free"),
    "GET /static/{name}": Row(ALL, "free", "file"),
    # -- pages
    "GET /": Row(ALL, "hidden"),
    "GET /api": Row(ALL, "free"),
    "GET /jobs": Row(ALL, "hidden"),
    "POST /jobs": Row(ALL, "hidden", "job ids"),
    "GET /jobs/suggest": Row(ALL, "hidden"),
    "GET /goals": Row(ALL, "hidden"),
    "POST /jobs/views": Row(ALL, "hidden", "new view"),
    "GET /jobs.csv": Row(ALL, "hidden"),
    "GET /jobs.ndjson": Row(ALL, "hidden"),
    "GET /jobs/new": Row(ALL, "hidden", "task in query"),
    "POST /jobs/new": Row(ALL, 403, "new job", names=QUEUE_TASK),
    "GET /jobs/{id}": Row(ALL, 404, "job"),
    "POST /jobs/{id}/edit": Row(ALL, 404, "dead job"),
    "POST /jobs/{id}/cancel": Row(ALL, 404, "job"),
    "POST /jobs/{id}/retry": Row(ALL, 404, "dead job"),
    "POST /jobs/{id}/delete": Row(ALL, 404, "job"),
    "GET /queues": Row(QUEUE, "hidden"),
    "GET /queues/{queue}": Row(QUEUE, 404, "queue"),
    "POST /queues/{queue}/pause": Row(QUEUE, 404, "queue"),
    "POST /queues/{queue}/resume": Row(QUEUE, 404, "queue"),
    "POST /queues/{queue}/drain": Row(QUEUE, 404, "drain"),
    "POST /queues/{queue}/purge": Row(QUEUE, 404, "queue"),
    "POST /queues/{queue}/move": Row(QUEUE, 404, "queue move"),
    "POST /queues/{queue}/settings": Row(QUEUE, 404, "queue"),
    "GET /workers": Row(QUEUE, "hidden"),
    "POST /workers": Row(NONE, "free", "idlest"),
    "GET /workers/{id}": Row(QUEUE, 404, "worker"),
    "POST /workers/{id}": Row(NONE, "free", "worker action"),
    "GET /dead": Row(QUEUE_TASK, "hidden"),
    "POST /dead": Row(ALL, 404, "dead job ids"),
    "GET /dead/{group}": Row(QUEUE_TASK, 404, "group"),
    "POST /dead/{group}": Row(NONE, "free", "group mark"),
    "GET /schedules": Row(QUEUE_TASK, "hidden"),
    "POST /schedules": Row(QUEUE_TASK, 403, "new schedule", names=("task",)),
    "GET /schedules/{name}": Row(QUEUE_TASK, 404, "schedule"),
    "POST /schedules/{name}": Row(QUEUE_TASK, 404, "schedule"),
    "GET /limits": Row(NONE, "free"),
    "POST /limits": Row(NONE, "free", "limit form"),
    "GET /tenants": Row(NONE, "free"),
    "GET /flows": Row(NONE, "free"),
    "POST /flows": Row(NONE, "free", "signal"),
    "GET /flows/{id}": Row(NONE, "free", "flow"),
    "POST /flows/{id}": Row(NONE, "free", "flow"),
    "GET /operations": Row(ALL, "hidden"),
    "GET /operations/{id}": Row(ALL, 404, "operation"),
    "GET /audit": Row(ALL, "hidden"),
    "GET /audit.csv": Row(ALL, "hidden"),
    "GET /audit.ndjson": Row(ALL, "hidden"),
    "GET /settings": Row(ALL, "hidden"),
    "POST /settings/tokens": Row(ALL, 403, "new token"),
    "POST /settings/tokens/{id}": Row(ALL, 404, "token"),
}
