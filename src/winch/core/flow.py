"""Compositions as values: members, and the edges between them.

A flow is stored as plain jobs. Each member's id follows from the flow's id, the member's name and its
number, so that a repeat stores nothing twice, and a member can name those before it without a list: by
name and count. Those of one name have ids that begin alike, so that a store finds by one look at its
index whether any of them is live. What a member needs to know about them is in one header.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from winch.core.errors import ConfigError
from winch.core.values import codec

# Every member's, with the flow's id.
FLOW_HEADER = "winch-flow"
# What comes before the member, for those that wait.
INPUTS_HEADER = "winch-inputs"
TAG = "flow:"
# All ids of one flow begin alike, with so many characters of the flow's own.
FLOW_ALIKE = 13
MOST_MEMBERS = 1 << 24

Policy = Literal["skip", "fail", "continue"]
POLICIES = ("skip", "fail", "continue")
Takes = Literal["nothing", "one", "all"]
Wants = Literal["edges", "success", "complete", "death"]


class Edge(msgspec.Struct, frozen=True, omit_defaults=True):
    """Members before this one: `count` of this name. `policy` decides what follows where one of them
    does not complete: `skip` (this one is cancelled), `fail` (it is dead), `continue` (it runs all the
    same)."""

    name: str
    count: int = 1
    policy: Policy = "skip"


class Inputs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member waits for. `takes`: whether their results are its first argument. `wants`: a
    callback of a batch, which asks how the batch went instead of for edges."""

    flow: str
    edges: tuple[Edge, ...] = ()
    takes: Takes = "nothing"
    wants: Wants = "edges"

    def ids(self) -> list[tuple[str, Policy]]:
        return [
            (prefix + numbered(number), edge.policy)
            for edge in self.edges
            for prefix in [members_prefix(self.flow, edge.name)]
            for number in range(edge.count)
        ]


def members_prefix(flow: str, name: str) -> str:
    """What the ids of all members of one name begin with, and no other id does. They
    sort beside their flow's id, and are the same however often they are asked for."""
    digest = hashlib.sha256(f"{flow}\0{name}".encode()).hexdigest()
    variant = "89ab"[int(digest[0], 16) & 3]
    return f"{flow[:8]}-{flow[9:13]}-7{digest[1:4]}-{variant}{digest[4:7]}-{digest[7:13]}"


def range_of(flow: str) -> tuple[str, str]:
    """The first id that a member of this flow may have, and one that is after all of them."""
    alike = flow[:FLOW_ALIKE]
    return f"{alike}-0000-0000-000000000000", f"{alike}-ffff-ffff-ffffffffffff"


def members_prefix_of(job_id: str) -> str:
    """`members_prefix` of the member that has this id."""
    return job_id[: -len(numbered(0))]


def member_id(flow: str, name: str, number: int = 0) -> str:
    """The id of a member: those of one name are numbered, and sort by their number."""
    return members_prefix(flow, name) + numbered(number)


def numbered(number: int) -> str:
    """The end of a member's id."""
    if not 0 <= number < MOST_MEMBERS:
        raise ConfigError(f"a flow has at most {MOST_MEMBERS:,} members of one kind")
    return f"{number:06x}"


def tag_of(flow: str) -> str:
    return TAG + flow


def read_inputs(text: str) -> Inputs:
    found: Inputs = codec.loads(text, Inputs, what=f"its {INPUTS_HEADER} header")
    return found


class FlowNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store keeps about a flow beside its members."""

    name: str
    kind: str
    members: int
    tasks: tuple[str, ...] = ()
    nodes: tuple[tuple[str, str, int, tuple[str, ...]], ...] = ()
    """Name, task, how many, and the names before it."""
    is_closed: bool = False
    """Whether its producer has stored all members."""
