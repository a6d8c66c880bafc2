"""Who may do what: roles, the scope of a credential, and how a request is told to be somebody's.

A role is a set of rights; a route names the one right it needs (routes.py). Nothing is allowed unless
it is named: a route without a right does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from winch.core.errors import ConfigError, did_you_mean
from winch.core.job import JobRecord

Right = Literal["public", "read", "enqueue", "work", "operate", "admin"]

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

    A host application returns one of these from its `authenticate` function.
    """

    name: str
    roles: tuple[str, ...] = ("read",)
    queues: tuple[str, ...] | None = None
    tenant: str | None = None
    tasks: tuple[str, ...] | None = None
    credential: str = ""

    def __post_init__(self) -> None:
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(
                    f"role must be one of {', '.join(ROLES)}, got {role!r}{did_you_mean(role, ROLES)}"
                )

    @property
    def rights(self) -> frozenset[str]:
        return frozenset[str]().union(*(ROLES[role] for role in self.roles))

    def may(self, right: str) -> bool:
        return right == "public" or right in self.rights

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def sees(self, job: JobRecord) -> bool:
        """Whether the job is within this caller's queues and tenant."""
        return self.serves(job.queue) and (self.tenant is None or job.tenant == self.tenant)

    @property
    def is_narrow(self) -> bool:
        """Whether there are jobs this caller must not hear of, not even as a number."""
        return self.queues is not None or self.tenant is not None


NOBODY = Access("nobody", roles=())
LOCAL = Access("local", roles=("admin",), credential="local")


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    header = header.strip().lower()
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0]


LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
