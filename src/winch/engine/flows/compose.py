"""Compositions: chain, group, chord and map_ are shapes of a flow.

A composition is stored as plain jobs in one transaction. Jobs that wait are blocked, each with the keys
that it waits for. When a job ends, the store marks its key for another look, and the jobs that wait for
it become ready (storage/decide/waits.py). So a callback exists from the start and runs once, after
everything it waits for is final. Two members that end at the same moment, a member that dies with its
process and a rescued member change nothing about that.

Large ones are stored in chunks. What waits for all members then also waits for a signal of the flow's
own, which is sent when everything is stored.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from winch.core.errors import ConfigError
from winch.core.flow import (
    FLOW_HEADER,
    INPUTS_HEADER,
    POLICIES,
    Edge,
    FlowNote,
    Inputs,
    Policy,
    Takes,
    members_prefix,
    numbered,
    tag_of,
)
from winch.core.values.ids import random_id
from winch.engine.base.operation import Operation
from winch.engine.flows.handle import FlowHandle
from winch.engine.flows.parts import check_member
from winch.engine.flows.store import (
    CHUNK,
    BatchOwner,
    inputs_text,
    member,
    next_chunk,
    send,
    write_note,
)
from winch.engine.tasks.task import Bound, Partial, Task, Using, check_call, check_whole
from winch.storage.decide.waits import (
    AWAITED_HEADER,
    EACH,
    all_key,
    job_key,
    signal_key,
)
from winch.storage.params import NewJob, Wait

if TYPE_CHECKING:
    from winch.engine.client.client import Client

MAX_NODES = 200
# The kinds whose result is a list, whatever the number of members.
LISTS = ("group", "map")


@dataclass(eq=False)
class Node:
    """One member of a flow, or many equal ones."""

    name: str
    calls: Iterable[Bound[Any]]
    count: int
    after: tuple[tuple[Node, Policy], ...] = ()
    takes: Takes = "nothing"
    lanes: int | None = None
    task: str = ""
    is_awaited: bool = False
    is_many: bool = False

    def waits(self, flow: str) -> list[Wait]:
        """What the members after this node wait for."""
        return [Wait(all_key(members_prefix(flow, self.name)))] if self.count else []


class Tail:
    """The last nodes of a flow inside another flow."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)


@dataclass
class Flow:
    """Members and the edges between them, in any shape without a cycle."""

    name: str = "flow"
    kind: str = "flow"
    _nodes: list[Node] = field(default_factory=list)
    _is_stored: bool = False

    @overload
    def add(
        self, call: Bound[Any], *, after: Sequence[Node | Tail] = ..., on_failure: Policy = ...
    ) -> Node: ...
    @overload
    def add(
        self, call: Flow, *, after: Sequence[Node | Tail] = ..., on_failure: Policy = ...
    ) -> Tail: ...
    @overload
    def add(
        self, call: Bound[Any] | Flow, *, after: Sequence[Node | Tail] = ..., on_failure: Policy = ...
    ) -> Node | Tail: ...
    def add(
        self,
        call: Bound[Any] | Flow,
        *,
        after: Sequence[Node | Tail] = (),
        on_failure: Policy = "skip",
    ) -> Node | Tail:
        """Add a member that runs after all of `after` are final; returns its node.

        A `partial` call takes the result of the member before it, or the list of results of several.
        `on_failure` applies when one of them does not complete:

        - "skip": cancel this member.
        - "fail": end it as dead.
        - "continue": run it, with None for the missing result.

        Another flow becomes part of this one, between its first and its last members.
        """
        before = [node for one in after for node in (one.nodes if isinstance(one, Tail) else (one,))]
        if isinstance(call, Flow):
            return self._take_in(call, before, on_failure)
        check_member(call, has_before=bool(before))
        return self._add([call], 1, [(node, on_failure) for node in before], call.task.name)

    def add_many(
        self,
        calls: Iterable[Bound[Any]],
        *,
        after: Sequence[Node | Tail] = (),
        parallel: int | None = None,
        on_failure: Policy = "skip",
    ) -> Node:
        """Add members that run side by side as one node, at most `parallel` at a time.

        An iterator is read in chunks when the flow is stored.
        """
        if parallel is not None and parallel < 1:
            raise ConfigError(f"parallel must be 1 or more, got {parallel}")
        before = [node for one in after for node in (one.nodes if isinstance(one, Tail) else (one,))]
        first, rest = _begun(calls)
        for call in rest if isinstance(rest, list) else first:
            check_member(call, has_before=bool(before) or parallel is not None)
        task = first[0].task.name if first else ""
        edges: list[tuple[Node, Policy]] = [(node, on_failure) for node in before]
        count = len(rest) if isinstance(rest, list) else len(first)
        node = self._add(rest, count, edges, task, lanes=parallel)
        node.is_many = True
        return node

    def _take_in(self, other: Flow, before: Sequence[Node], on_failure: Policy) -> Tail:
        if other is self or other._is_stored or not other._nodes:
            why = (
                "itself" if other is self else "a flow that is stored" if other._is_stored else "nothing"
            )
            raise ConfigError(f"{self.kind} {self.name!r} cannot have {why} as a part")
        other._is_stored = True  # it is part of this one now, and must not be stored again
        made: dict[Node, Node] = {}
        for node in other._nodes:
            after = [(made[one], policy) for one, policy in node.after]
            after = after or [(one, on_failure) for one in before]
            for call in node.calls if isinstance(node.calls, list) else ():
                check_member(call, has_before=bool(after) or node.lanes is not None)
            mine = self._add(node.calls, node.count, after, node.task, lanes=node.lanes)
            mine.is_many = node.is_many
            made[node] = mine
        return Tail([mine for node, mine in made.items() if not node.is_awaited])

    def _add(
        self,
        calls: Iterable[Bound[Any]],
        count: int,
        after: Sequence[tuple[Node, Policy]],
        task: str,
        lanes: int | None = None,
    ) -> Node:
        for node, policy in after:
            if not isinstance(node, Node) or node not in self._nodes:
                raise ConfigError("after= takes nodes that this flow's add() has returned")
            if policy not in POLICIES:
                raise ConfigError(f"on_failure must be one of {', '.join(POLICIES)}, got {policy!r}")
            node.is_awaited = True
        is_many = len(after) > 1 or any(node.is_many for node, _ in after)
        takes: Takes = "nothing" if not after else "all" if is_many else "one"
        node = Node(f"{len(self._nodes)}", calls, count, tuple(after), takes, lanes=lanes, task=task)
        self._nodes.append(node)
        return node

    def enqueue(self, *, conn: object = None) -> FlowHandle:
        """Store the flow and return its handle. Each member is stored once, even if the store's answer
        is lost.

        A group or map without members stores nothing, and its result is the empty list.
        """
        client = self._client()
        if client is None:
            return self._empty()
        return client.surroundings.run(client.driver(), self._enqueue(client, conn))

    async def aenqueue(self, *, conn: object = None) -> FlowHandle:
        """`enqueue` without blocking the event loop."""
        client = self._client()
        if client is None:
            return self._empty()
        return await client.surroundings.arun(client.driver(), self._enqueue(client, conn))

    def _client(self) -> Client | None:
        """Where the members are stored; None where there are none."""
        for node in self._nodes:
            first, node.calls = _begun(node.calls)
            if first:
                client: Client = first[0].task.client
                return client
        return None

    def _empty(self) -> FlowHandle:
        if not self._is_list:
            raise ConfigError(f"{self.kind} {self.name!r} has no members; add one before enqueue()")
        self._begin_storing()
        return FlowHandle(None, random_id(os.urandom(16)), self.name, self.kind, (), is_list=True)

    def _begin_storing(self) -> None:
        if self._is_stored:
            raise ConfigError(f"{self.kind} {self.name!r} is enqueued already; make a new one")
        self._is_stored = True

    @property
    def _is_list(self) -> bool:
        """Whether the result is a list: that of a group or map is one with a single member, too."""
        last = [node for node in self._nodes if not node.is_awaited]
        return self.kind in LISTS or len(last) > 1 or any(node.is_many for node in last)

    def _enqueue(self, client: Client, conn: object) -> Operation[FlowHandle]:
        self._check_all(client)
        self._begin_storing()
        flow = client.draw_id()
        gate = f"winch-flow:{flow}"
        members = self._members(flow, client)
        jobs, waits = next_chunk(members)
        is_one = len(jobs) < CHUNK
        yield from write_note(client, flow, self._note(is_closed=is_one), conn)
        while jobs:
            if not is_one:
                waits = [(job_id, [*before, Wait(signal_key(gate))]) for job_id, before in waits]
            yield from send(client, jobs, waits, conn)
            jobs, waits = next_chunk(members)
        if not is_one:
            # How many there are is known now.
            yield from write_note(client, flow, self._note(is_closed=True), conn)
            yield from client.signal(gate, 1, "stored", conn)
        last = tuple((node.name, node.count) for node in self._nodes if not node.is_awaited)
        return FlowHandle(client, flow, self.name, self.kind, last, is_list=self._is_list)

    def _check_all(self, client: Client) -> None:
        for node in self._nodes:
            for call in node.calls if isinstance(node.calls, list) else ():
                self._checkstore_members(call, client, is_first=not node.after)

    def _checkstore_members(self, call: Bound[Any], client: Client, *, is_first: bool) -> None:
        """Raise where this flow cannot store the call. Known only now: until it is stored, the flow may
        become part of another one."""
        check_call(call, client, f"{self.kind} {self.name!r}")
        if is_first:
            check_whole(call, f"{self.kind} {self.name!r}")

    def _members(
        self, flow: str, client: Client, owner: BatchOwner | None = None
    ) -> Iterator[tuple[NewJob, list[Wait]]]:
        """The members in order, made as they are asked for; a node's are counted when they all are.
        `owner`: the batch that this flow is a part of."""
        tags = (tag_of(flow),) if owner is None else owner.tags
        for node in self._nodes:
            prefix = members_prefix(flow, node.name)
            before = [wait for one, _ in node.after for wait in one.waits(flow)]
            edges = tuple(Edge(one.name, one.count, policy) for one, policy in node.after)
            plain = {FLOW_HEADER: flow} if owner is None else dict(owner.headers)
            if node.lanes is not None or (owner is not None and owner.has_death):
                plain[AWAITED_HEADER] = all_key(prefix) + EACH
            elif node.is_awaited or owner is not None:
                plain[AWAITED_HEADER] = all_key(prefix)
            if edges:
                plain[INPUTS_HEADER] = inputs_text(Inputs(flow, edges))
            taking = plain
            if edges and node.takes != "nothing":
                taking = plain | {INPUTS_HEADER: inputs_text(Inputs(flow, edges, node.takes))}
            number = -1
            is_checked = isinstance(node.calls, list)
            for number, call in enumerate(node.calls):
                if not is_checked:
                    check_member(call, has_before=bool(edges) or node.lanes is not None)
                    self._checkstore_members(call, client, is_first=not edges)
                waits = before
                if node.lanes is not None and number >= node.lanes:
                    lane = prefix + numbered(number - node.lanes)  # its lane is free after that
                    waits = [*before, Wait(job_key(lane))]
                headers = taking if isinstance(call, Partial) else plain
                is_given = owner is not None and owner.is_given
                new = member(call, prefix + numbered(number), tags, headers, is_given=is_given)
                yield new, waits
            node.count = number + 1

    def _note(self, *, is_closed: bool) -> FlowNote:
        nodes = tuple(
            (node.name, node.task, node.count, tuple(before.name for before, _ in node.after))
            for node in self._nodes[:MAX_NODES]
        )
        return FlowNote(
            name=self.name,
            kind=self.kind,
            members=sum(node.count for node in self._nodes),
            nodes=nodes,
            is_closed=is_closed,
        )


def flow(name: str = "flow") -> Flow:
    """A composition of any shape: `f.add(call, after=[…])` for each member, then `f.enqueue()`."""
    return Flow(name)


def chain(*calls: Bound[Any] | Flow, on_failure: Policy = "skip", name: str = "chain") -> Flow:
    """Run calls one after another: `chain(fetch.bind(url), parse.partial()).enqueue()`.

    A `partial` call takes the previous result as its first argument. A call may be another
    composition.
    """
    made = Flow(name, "chain")
    before: list[Node | Tail] = []
    for call in calls:
        before = [made.add(call, after=before, on_failure=on_failure)]
    return made


def group(calls: Iterable[Bound[Any] | Flow], *, name: str = "group") -> Flow:
    """Run calls side by side. `result()` of the enqueued group is the list of their results."""
    made = Flow(name, "group")
    _side_by_side(made, calls)
    return made


def chord(
    calls: Iterable[Bound[Any] | Flow],
    callback: Bound[Any],
    *,
    on_failure: Policy = "skip",
    name: str = "chord",
) -> Flow:
    """Run calls side by side, then the callback once, after all of them are final.

        chord([count.bind(shard) for shard in shards], total.partial()).enqueue()

    A `partial` callback takes the list of results. `calls` may be an iterator; it is read when the
    chord is stored.
    """
    made = Flow(name, "chord")
    members = _side_by_side(made, calls)
    check_member(callback, has_before=True)
    node = made._add([callback], 1, [(one, on_failure) for one in members], callback.task.name)
    node.takes = "all"
    return made


def map_(task: Any, items: Iterable[Any], *, parallel: int | None = None, name: str = "map") -> Flow:
    """Run the task for each item, at most `parallel` of them at a time."""
    if not isinstance(task, Task | Using):
        raise ConfigError(f"map_ takes a task and the items to call it with, got {task!r}")
    made = Flow(name, "map")
    made.add_many((task.bind(item) for item in items), parallel=parallel)
    return made


def _side_by_side(made: Flow, calls: Iterable[Bound[Any] | Flow]) -> list[Node]:
    """The calls as one node, each composition among them as nodes of its own; what ends last."""
    if isinstance(calls, (list, tuple)) and any(isinstance(call, Flow) for call in calls):
        last: list[Node] = []
        for call in calls:
            added = made.add(call)
            last += added.nodes if isinstance(added, Tail) else (added,)
        return last
    return [made.add_many(calls)]  # type: ignore[arg-type]  # a composition in an iterator is refused


def _begun(calls: Iterable[Any]) -> tuple[list[Any], Iterable[Any]]:
    """The first call, if there is one, and all of them."""
    if isinstance(calls, (list, tuple)):
        return list(calls[:1]), calls if isinstance(calls, list) else list(calls)
    rest = iter(calls)
    first = list(itertools.islice(rest, 1))
    return first, itertools.chain(first, rest)
