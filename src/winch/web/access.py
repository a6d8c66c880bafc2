"""Roles, the scope of a credential, and how a request is matched to a caller.

A role is a set of rights; a route names the one right it needs (routes.py). Nothing is allowed unless
it is named: a route without a right does not start.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from winch.areas.outbox import PREFIX as OUTBOX
from winch.core.errors import ConfigError, did_you_mean
from winch.core.job import JobRecord

Right = Literal["public", "read", "enqueue", "work", "operate", "admin"]
Narrowing = Literal["tenant", "queue", "task"]
EVERY_NARROWING: tuple[Narrowing, ...] = ("tenant", "queue", "task")

# role -> rights. `operate` may look at what it acts on; `work` and `enqueue` see nothing but their own.
ROLES: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "enqueue": frozenset({"enqueue"}),
    "work": frozenset({"work"}),
    "operate": frozenset({"read", "enqueue", "operate"}),
    "admin": frozenset({"read", "enqueue", "work", "operate", "admin"}),
}


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller may do. `queues`, `tenant` and `tasks` narrow it; None is no limit.

    A host application returns one of these from its `authenticate` function. A caller makes no token
    that outlives `expires_at`.
    """

    name: str
    roles: tuple[str, ...] = ("read",)
    queues: tuple[str, ...] | None = None
    tenant: str | None = None
    tasks: tuple[str, ...] | None = None
    credential: str = ""
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(
                    f"role must be one of {', '.join(ROLES)}, got {role!r}{did_you_mean(role, ROLES)}"
                )

    @property
    def rights(self) -> frozenset[str]:
        """The rights of this caller's role."""
        return _rights(self.roles)

    def may(self, right: str) -> bool:
        """Whether this caller has the right."""
        return right == "public" or right in self.rights

    def serves(self, queue: str) -> bool:
        """Whether this caller may use the queue."""
        return self.queues is None or queue in self.queues

    def runs(self, task: str) -> bool:
        """Whether this caller may use the task."""
        return self.tasks is None or task in self.tasks

    def enqueues(self, task: str) -> bool:
        """Whether this caller may enqueue the task.

        A message of the outbox names its own recipient: an event, for example, names the tenant whose
        endpoints get it, signed. So a caller of one tenant may not enqueue one. Another narrowed caller
        may only if its tasks name the topic's task.
        """
        is_unnamed = self.tenant is not None or self.tasks is None
        if task.startswith(OUTBOX) and self.is_narrow and is_unnamed:
            return False
        return self.runs(task)

    def sees(self, job: JobRecord) -> bool:
        """Whether the job is within this caller's queues, tasks and tenant."""
        is_own_tenant = self.tenant is None or job.tenant == self.tenant
        return is_own_tenant and self.serves(job.queue) and self.runs(job.task)

    @property
    def narrowings(self) -> tuple[Narrowing, ...]:
        """What limits this caller to some jobs."""
        limits = {"tenant": self.tenant, "queue": self.queues, "task": self.tasks}
        return tuple(name for name in EVERY_NARROWING if limits[name] is not None)

    @property
    def is_narrow(self) -> bool:
        """Whether the server hides some jobs from this caller, in lists and in counts."""
        return bool(self.narrowings)

    def covers(self, other: Access) -> bool:
        """Whether this caller may do everything that `other` may."""
        return (
            other.rights <= self.rights
            and self.tenant in (None, other.tenant)
            and _covers(self.queues, other.queues)
            and _covers(self.tasks, other.tasks)
        )

    def is_own(self, name: str, credential: str) -> bool:
        """Whether a caller of this name and credential is this one: two tokens may share a name."""
        return (name, credential) == (self.name, self.credential)


@functools.cache
def _rights(roles: tuple[str, ...]) -> frozenset[str]:
    return frozenset[str]().union(*(ROLES[role] for role in roles))


def _covers(own: tuple[str, ...] | None, other: tuple[str, ...] | None) -> bool:
    return own is None or (other is not None and set(other) <= set(own))


ANONYMOUS = Access("nobody", roles=())
LOCAL = Access("local", roles=("admin",), credential="local")


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    header = header.strip().lower()
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0]


LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
