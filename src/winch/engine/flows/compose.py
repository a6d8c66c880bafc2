"""Compositions: chain, group, chord, map_ and batch are shapes of a flow.

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
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import msgspec

from winch.core.errors import ConfigError, LostClaim, StorageUnavailable
from winch.core.flow import (
    FLOW_HEADER,
    INPUTS_HEADER,
    POLICIES,
    Edge,
    FlowNote,
    Inputs,
    Policy,
    Takes,
    Wants,
    member_id,
    members_prefix,
    numbered,
    tag_of,
)
from winch.core.job import keep_awaited
from winch.core.values.ids import random_id
from winch.engine.base.operation import OnConnection, Operation, Pause
from winch.engine.client.job import Job
from winch.engine.flows.parts import check_part
from winch.engine.tasks.task import Bound, Partial, Task, Using, check_call, check_whole
from winch.storage.decide.waits import (
    AWAITED_HEADER,
    EACH,
    PREFIX,
    all_key,
    death_key,
    job_key,
    signal_key,
)
from winch.storage.params import ClaimRef, Enqueued, KvRecord, NewJob, Wait

if TYPE_CHECKING:
    from winch.core.values.duration import Duration
    from winch.engine.client.client import Client
    from winch.engine.tasks.context import Context

CHUNK = 500
PAUSES = (0.05, 0.15, 0.3, 0.6, 1.0)
BOOK = "flow"
KEEP_NOTE = timedelta(days=180)
MAX_NODES = 200
# The kinds whose result is a list, whatever the number of members.
LISTS = ("group", "map")

Waits = list[tuple[str, list[Wait]]]
T = TypeVar("T")


@dataclass(eq=False)
class Node:
    """One member of a flow, or many alike: `calls` are made when they are stored, and counted then."""

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
        """What those after it wait for."""
        return [Wait(all_key(members_prefix(flow, self.name)))] if self.count else []


class Tail:
    """The end of a flow that is part of another: the nodes that what follows comes after."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)


@dataclass
class Flow:
    """Members and the edges between them: any shape without a circle. `add` returns a node that others
    may come after."""

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
        """A member. It runs when all of `after` are final; a `partial` call takes the result of the one
        before it, or the list of results where several are. `on_failure` says what follows where one of
        them does not complete: "skip" (this member is cancelled), "fail" (it is dead), "continue" (it
        runs, with None for the missing result).

        Another flow becomes part of this one: its first members come after `after`, and what comes after
        it waits for its last ones."""
        before = [node for one in after for node in (one.nodes if isinstance(one, Tail) else (one,))]
        if isinstance(call, Flow):
            return self._take_in(call, before, on_failure)
        _check(call, has_before=bool(before))
        return self._add([call], 1, [(node, on_failure) for node in before], call.task.name)

    def add_many(
        self,
        calls: Iterable[Bound[Any]],
        *,
        after: Sequence[Node | Tail] = (),
        parallel: int | None = None,
        on_failure: Policy = "skip",
    ) -> Node:
        """Members that run side by side, at most `parallel` of them at a time, as one node. What is no
        list is gone through when the flow is stored, chunk by chunk."""
        if parallel is not None and parallel < 1:
            raise ConfigError(f"parallel must be 1 or more, got {parallel}")
        before = [node for one in after for node in (one.nodes if isinstance(one, Tail) else (one,))]
        first, rest = _begun(calls)
        for call in rest if isinstance(rest, list) else first:
            _check(call, has_before=bool(before) or parallel is not None)
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
                _check(call, has_before=bool(after) or node.lanes is not None)
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
        """Store it: each member once, also when the store's answer is lost on the way. A group or map
        without members stores nothing; its result is the empty list."""
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
        jobs, waits = _chunk(members)
        is_one = len(jobs) < CHUNK
        yield from write_note(client, flow, self._note(), conn)
        while jobs:
            if not is_one:
                waits = [(job_id, [*before, Wait(signal_key(gate))]) for job_id, before in waits]
            yield from send(client, jobs, waits, conn)
            jobs, waits = _chunk(members)
        if not is_one:
            yield from write_note(client, flow, self._note(), conn)  # how many there are is known now
            yield from client.signal(gate, 1, "stored", conn)
        last = tuple((node.name, node.count) for node in self._nodes if not node.is_awaited)
        return FlowHandle(client, flow, self.name, self.kind, last, is_list=self._is_list)

    def _check_all(self, client: Client) -> None:
        for node in self._nodes:
            for call in node.calls if isinstance(node.calls, list) else ():
                self._check_stored(call, client, is_first=not node.after)

    def _check_stored(self, call: Bound[Any], client: Client, *, is_first: bool) -> None:
        """Raise where this flow cannot store the call. Known only now: until it is stored, the flow may
        become part of another one."""
        check_call(call, client, f"{self.kind} {self.name!r}")
        if is_first:
            check_whole(call, f"{self.kind} {self.name!r}")

    def _members(
        self, flow: str, client: Client, owner: _Owner | None = None
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
                    _check(call, has_before=bool(edges) or node.lanes is not None)
                    self._check_stored(call, client, is_first=not edges)
                waits = before
                if node.lanes is not None and number >= node.lanes:
                    lane = prefix + numbered(number - node.lanes)  # its lane is free after that
                    waits = [*before, Wait(job_key(lane))]
                headers = taking if isinstance(call, Partial) else plain
                is_given = owner is not None and owner.is_given
                new = member(call, prefix + numbered(number), tags, headers, is_given=is_given)
                yield new, waits
            node.count = number + 1

    def _note(self) -> FlowNote:
        nodes = tuple(
            (node.name, node.task, node.count, tuple(before.name for before, _ in node.after))
            for node in self._nodes[:MAX_NODES]
        )
        return FlowNote(
            name=self.name,
            kind=self.kind,
            members=sum(node.count for node in self._nodes),
            nodes=nodes,
        )


class FlowHandle:
    """A flow that was enqueued. `last` are the jobs that no other member waits for."""

    def __init__(
        self,
        client: Client | None,
        flow: str,
        name: str,
        kind: str,
        last: tuple[tuple[str, int], ...],
        *,
        is_list: bool,
    ) -> None:
        """`last`: the names of the nodes that nothing comes after, and how many members each has. No
        `client`: nothing was stored."""
        self._client = client
        self._is_list = is_list
        self.id = flow
        self.name = name
        self.kind = kind
        self._last = last

    @cached_property
    def last(self) -> tuple[Job[Any], ...]:
        """Handles made when first asked for: a group may have a million members."""
        if self._client is None:
            return ()
        return tuple(self._client.handle(job_id) for job_id in self._last_ids())

    def _last_ids(self) -> Iterator[str]:
        for name, count in self._last:
            prefix = members_prefix(self.id, name)
            yield from (prefix + numbered(number) for number in range(count))

    def result(self, timeout: Duration | None = None) -> Any:
        """The result of the last job; of a group, a map and where several are last, the list of results.

        Raises JobFailed when one of them is dead or cancelled, TimeoutError when they take longer
        than `timeout` together.
        """
        return [] if self._client is None else self._client.run(self._result(self._client, timeout))

    async def aresult(self, timeout: Duration | None = None) -> Any:
        """`result` without blocking the event loop."""
        if self._client is None:
            return []
        return await self._client.arun(self._result(self._client, timeout))

    def _result(self, client: Client, timeout: Duration | None) -> Operation[Any]:
        found = yield from client.results(self._last_ids(), timeout)
        return found if self._is_list else found[0]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} {self.id}>"


def flow(name: str = "flow") -> Flow:
    """A composition of any shape: `f.add(call, after=[…])` for each member, then `f.enqueue()`."""
    return Flow(name)


def chain(*calls: Bound[Any] | Flow, on_failure: Policy = "skip", name: str = "chain") -> Flow:
    """One after the other; a `partial` call takes the result before it as its first argument. Other
    compositions may stand in it like calls."""
    made = Flow(name, "chain")
    before: list[Node | Tail] = []
    for call in calls:
        before = [made.add(call, after=before, on_failure=on_failure)]
    return made


def group(calls: Iterable[Bound[Any] | Flow], *, name: str = "group") -> Flow:
    """Side by side; `result()` of what is enqueued is the list of their results."""
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
    """Side by side, then the callback, once, when all of them are final; a `partial` callback takes the
    list of their results. `calls` may be an iterator: it is gone through when the chord is stored."""
    made = Flow(name, "chord")
    members = _side_by_side(made, calls)
    _check(callback, has_before=True)
    node = made._add([callback], 1, [(one, on_failure) for one in members], callback.task.name)
    node.takes = "all"
    return made


def map_(task: Any, items: Iterable[Any], *, parallel: int | None = None, name: str = "map") -> Flow:
    """The task for each item, at most `parallel` of them at a time."""
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


def _chunk(members: Iterator[tuple[NewJob, list[Wait]]]) -> tuple[list[NewJob], Waits]:
    """The next members to store in one call, and what they wait for."""
    jobs: list[NewJob] = []
    waits: Waits = []
    for new, before in itertools.islice(members, CHUNK):
        jobs.append(new)
        if before:
            waits.append((new.id, before))
    return jobs, waits


# -- batches -------------------------------------------------------------------------------------------


class _Owner(msgspec.Struct, frozen=True):
    """What the members of one batch have alike. `is_given`: a later attempt of the member that adds them
    gives the same ids again."""

    tags: tuple[str, ...]
    headers: dict[str, str]
    has_death: bool
    is_given: bool


class _Callbacks(msgspec.Struct, frozen=True, array_like=True):
    """The callbacks of one batch that wait for its members."""

    batch: str
    kinds: tuple[Wants, ...]

    def ids(self) -> list[str]:
        return [member_id(self.batch, kind) for kind in self.kinds]


class Batch:
    """Jobs that belong together, with callbacks: `on_success` when all have completed, `on_complete`
    when all are final, `on_death` when the first dies; each once. Members, compositions among them, may
    be added until the block ends, and by members while they run (`ctx.batch.enqueue(…)`).

    `with outer.batch("inner", …) as inner` opens a batch inside another: the members of the inner one
    are members of both, and the callbacks of the outer one also wait for those of the inner one."""

    def __init__(
        self,
        name: str,
        *,
        on_success: Bound[Any] | None = None,
        on_complete: Bound[Any] | None = None,
        on_death: Bound[Any] | None = None,
        conn: object = None,
    ) -> None:
        self.name = name
        self.id: str = ""
        self._callbacks: dict[Wants, Bound[Any] | None] = {
            "success": on_success,
            "complete": on_complete,
            "death": on_death,
        }
        self._conn = conn
        self._client: Client | None = None
        self._claim: ClaimRef | None = None
        self._numbers = itertools.count()  # one `next` each: threads of a handler may add at once
        self._kinds: tuple[Wants, ...] = tuple(k for k, call in self._callbacks.items() if call)
        self._turns: tuple[str, ...] = ()
        """The FIFO keys of the callbacks, those of outer batches too, which come before all members."""
        self._outer: Batch | None = None
        self._outers: tuple[_Callbacks, ...] = ()  # those of the batches around this one
        self._is_open = True
        self._has_jobs = False  # whether something of it may be stored
        self._inside: list[Batch] = []
        self._parts = itertools.count()
        self._part_keys: list[str] = []  # what callbacks wait for besides the plain members

    def batch(
        self,
        name: str = "batch",
        *,
        on_success: Bound[Any] | None = None,
        on_complete: Bound[Any] | None = None,
        on_death: Bound[Any] | None = None,
    ) -> Batch:
        """A batch inside this one, to be opened and closed while this one is open."""
        if self._claim is not None:
            raise ConfigError(
                "a running member adds members to its batch with ctx.batch.enqueue(…); it opens no "
                "batch inside it. Open the inner batch where the outer one is open"
            )
        self._check_open()
        made = Batch(
            name, on_success=on_success, on_complete=on_complete, on_death=on_death, conn=self._conn
        )
        made._outer = self
        self._inside.append(made)
        return made

    def _check_open(self) -> None:
        if not self._is_open:
            raise ConfigError(
                f"batch {self.name!r} is closed: its block has ended. Add members inside the block, or "
                "from a running member with ctx.batch"
            )

    # -- the block ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for call in self._callbacks.values():
            if call is not None:
                self._begin([call])
                self._run(self._store_callbacks())
                break
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and self._is_to_close():
            self._run(self._close())

    async def __aenter__(self) -> Self:
        for call in self._callbacks.values():
            if call is not None:
                self._begin([call])
                await self._arun(self._store_callbacks())
                break
        return self

    async def __aexit__(self, kind: object, *rest: object) -> None:
        if kind is None and self._is_to_close():
            await self._arun(self._close())

    def _is_to_close(self) -> bool:
        for inner in self._inside:
            if inner._is_open and inner._has_jobs:
                raise ConfigError(
                    f"batch {inner.name!r} is open, and batch {self.name!r} around it ends; end the "
                    "block of the inner one first"
                )
        self._is_open = False
        return self._client is not None

    def enqueue(self, *calls: Bound[Any] | Flow) -> list[Job[Any]]:
        """Add members. A composition is added whole; of it the last jobs are returned."""
        if not calls:
            return []
        self._begin(calls)
        found: list[Job[Any]] = [] if self._client is None else self._run(self._add(calls))
        return found

    async def aenqueue(self, *calls: Bound[Any] | Flow) -> list[Job[Any]]:
        """`enqueue` without blocking the event loop."""
        if not calls:
            return []
        self._begin(calls)
        found: list[Job[Any]] = [] if self._client is None else await self._arun(self._add(calls))
        return found

    # -- how ---------------------------------------------------------------------------------------

    def _begin(self, calls: Sequence[Bound[Any] | Flow]) -> None:
        """The first call brings the client; all others must be of the same app."""
        self._check_open()
        for call in calls:
            if isinstance(call, Batch):
                raise ConfigError(
                    f"batch {self.name!r} cannot take a batch as a member; open it inside: "
                    f"with outer.batch({call.name!r}, …) as inner"
                )
            if isinstance(call, Flow):
                client = call._client()
            else:
                _check(call, has_before=False)
                check_call(call, self._client, f"batch {self.name!r}")
                client = call.task.client
            if self._client is None and client is not None:
                self._begin_with(client)

    def _begin_with(self, client: Client) -> None:
        self._client = client
        if not self.id:
            self.id = client.draw_id()
        if self._outer is not None:
            if self._outer._client is None:
                self._outer._begin_with(client)
            outer = self._outer
            self._outers = (_Callbacks(outer.id, outer._kinds), *outer._outers)
            self._turns = outer._turns

    def _run(self, op: Operation[Any]) -> Any:
        assert self._client is not None  # noqa: S101  # begun before
        return self._client.surroundings.run(self._client.driver(), op)

    async def _arun(self, op: Operation[Any]) -> Any:
        assert self._client is not None  # noqa: S101  # begun before
        return await self._client.surroundings.arun(self._client.driver(), op)

    @property
    def _gate(self) -> str:
        return f"winch-flow:{self.id}"

    def _store_callbacks(self) -> Operation[None]:
        assert self._client is not None  # noqa: S101  # begun before
        jobs: list[NewJob] = []
        waits: Waits = []
        for kind, call in self._callbacks.items():
            if call is not None:
                self._begin([call])
                _check(call, has_before=True)
                check_whole(call, f"batch {self.name!r}")
                inputs = inputs_text(Inputs(self.id, wants=kind))
                headers = {FLOW_HEADER: self.id, INPUTS_HEADER: inputs}
                if self._outers:
                    headers[AWAITED_HEADER] = all_key(members_prefix(self.id, kind))
                tags = (f"{tag_of(self.id)}:callback",)
                new = member(call, member_id(self.id, kind), tags, headers)
                jobs.append(new)
                if self._outer is not None:
                    self._outer._check_turn(new)
                if new.fifo is not None:
                    self._turns += (new.fifo,)
                waits.append((new.id, [Wait(signal_key(self._gate))]))
        self._has_jobs = True
        note = FlowNote(name=self.name, kind="batch", members=0, tasks=self._kinds)
        yield from write_note(self._client, self.id, note, self._conn)
        yield from send(self._client, jobs, waits, self._conn)

    def _add(self, calls: Sequence[Bound[Any] | Flow]) -> Operation[list[Job[Any]]]:
        handles: list[Job[Any]] = []
        for is_flow, some in itertools.groupby(calls, lambda call: isinstance(call, Flow)):
            for chunk in _chunks(list(some), 1 if is_flow else CHUNK):
                if is_flow:
                    handles += yield from self._add_flow(chunk[0])  # type: ignore[arg-type]
                else:
                    handles += yield from self._add_calls(chunk)  # type: ignore[arg-type]
        return handles

    def _add_calls(self, calls: Sequence[Bound[Any]]) -> Operation[list[Job[Any]]]:
        assert self._client is not None  # noqa: S101  # begun before
        owner = self._owner()
        # Those that a member adds are named after it, and waited for apart: it is unfinished till then.
        prefix = members_prefix(self.id, self._name)
        together = all_key(prefix)
        headers = owner.headers | {AWAITED_HEADER: together + EACH if owner.has_death else together}
        jobs: list[NewJob] = []
        for call in calls:
            check_whole(call, f"batch {self.name!r}")
            job_id = prefix + numbered(next(self._numbers))
            new = member(call, job_id, owner.tags, headers, is_given=owner.is_given)
            self._check_turn(new)
            jobs.append(new)
        self._has_jobs = True
        waits = self._waits_for([together] if owner.is_given else [], jobs)
        answers = yield from send(self._client, jobs, waits, self._conn, self._claim)
        return self._client.handles(answers)

    def _add_flow(self, part: Flow) -> Operation[list[Job[Any]]]:
        """Store a composition whose jobs are members of this batch."""
        assert self._client is not None  # noqa: S101  # begun before
        part._check_all(self._client)
        part._begin_storing()
        place = f"{self._name}.{next(self._parts)}"
        for node in part._nodes:
            node.name = f"{place}.{node.name}"
        owner = self._owner()
        keys = [all_key(members_prefix(self.id, node.name)) for node in part._nodes]
        if not owner.is_given:
            self._part_keys += keys  # waited for from the end of the block on
        members = part._members(self.id, self._client, owner)
        answers: list[Enqueued] = []
        while (chunk := _chunk(members))[0]:
            jobs, before = chunk
            for new in jobs:
                self._check_turn(new)
            self._has_jobs = True
            waits = before + self._waits_for(keys if owner.is_given else [], jobs)
            answers += yield from send(self._client, jobs, waits, self._conn, self._claim)
        last = [members_prefix(self.id, node.name) for node in part._nodes if not node.is_awaited]
        return self._client.handles([one for one in answers if one.id[:PREFIX] in last])

    def _owner(self) -> _Owner:
        headers = {FLOW_HEADER: self.id, BATCH_HEADER: ",".join(self._kinds)}
        if self._outers:
            headers[OUTER_HEADER] = msgspec.json.encode(self._outers).decode()
        if self._turns:
            headers[TURNS_HEADER] = msgspec.json.encode(self._turns).decode()
        return _Owner(
            tags=tuple(tag_of(one.batch) for one in self._all_callbacks),
            headers=headers,
            has_death=any("death" in one.kinds for one in self._all_callbacks),
            is_given=self._claim is not None,
        )

    @property
    def _all_callbacks(self) -> tuple[_Callbacks, ...]:
        """Those of this batch, then those of the batches around it."""
        return (_Callbacks(self.id, self._kinds), *self._outers)

    def _waits_for(self, keys: Sequence[str], jobs: Sequence[NewJob]) -> Waits:
        """What callbacks wait for when these members are added: the keys, and the first death."""
        waits: Waits = []
        for one in self._all_callbacks:
            for kind in one.kinds:
                found = [Wait(key) for key in keys]
                if kind == "death":
                    found += [Wait(death_key(new.id), is_enough=True) for new in jobs]
                if found:
                    waits.append((member_id(one.batch, kind), found))
        return waits

    def _check_turn(self, new: NewJob) -> None:
        if new.fifo in self._turns:
            raise ConfigError(
                f"{new.task} cannot be a member with the FIFO key {new.fifo!r}: a callback of its batch "
                "has that key and was stored first, so each would wait for the other. Give the callback "
                "another key"
            )

    @property
    def _name(self) -> str:
        return "m" if self._claim is None else f"m{self._claim.id}"

    def _close(self) -> Operation[None]:
        assert self._client is not None  # noqa: S101  # begun before
        members = [all_key(members_prefix(self.id, self._name)), *self._part_keys]
        callbacks = [all_key(members_prefix(self.id, kind)) for kind in self._kinds]
        waits: Waits = [
            (one, [Wait(key) for key in members]) for one in _Callbacks(self.id, self._kinds).ids()
        ]
        for outer in self._outers:
            waits += [(one, [Wait(key) for key in (*members, *callbacks)]) for one in outer.ids()]
        if waits:
            yield from _stored(self._client, [], waits, self._conn, None)
        yield from self._client.signal(self._gate, 1, "stored", self._conn)


BATCH_HEADER = "winch-batch"
TURNS_HEADER = "winch-batch-fifo"
# The batches around a member's own, with the kinds of their callbacks.
OUTER_HEADER = "winch-batch-outer"


def batch(
    name: str = "batch",
    *,
    on_success: Bound[Any] | None = None,
    on_complete: Bound[Any] | None = None,
    on_death: Bound[Any] | None = None,
    conn: object = None,
) -> Batch:
    """Jobs that belong together: `with batch("import", on_success=done.bind()) as b: b.enqueue(…)`."""
    return Batch(name, on_success=on_success, on_complete=on_complete, on_death=on_death, conn=conn)


def batch_of(ctx: Context) -> Batch:
    """A new `Batch` for the batch of a running member: `ctx.batch`, which makes one for each attempt.

    Members are added while the claim is live. Their ids follow from the adding job and a number that
    counts from 0 in each attempt, so that a later attempt adds the same ones.
    """
    headers = ctx.headers
    if BATCH_HEADER not in headers:
        raise ConfigError(f"job {ctx.job_id} is no member of a batch")
    made = Batch("")
    made.id = headers[FLOW_HEADER]
    made._claim = ctx.claim_ref
    made._client = ctx._client
    made._kinds = tuple(kind for kind in headers[BATCH_HEADER].split(",") if kind)  # type: ignore[misc]
    if TURNS_HEADER in headers:
        made._turns = msgspec.json.decode(headers[TURNS_HEADER], type=tuple[str, ...])
    if OUTER_HEADER in headers:
        made._outers = msgspec.json.decode(headers[OUTER_HEADER], type=tuple[_Callbacks, ...])
    return made


# -- storing -------------------------------------------------------------------------------------------


def member(
    call: Bound[Any],
    job_id: str,
    tags: tuple[str, ...],
    headers: dict[str, str],
    *,
    is_given: bool = False,
) -> NewJob:
    """A member as it is stored. Those of one node share tags and headers, the very objects, so that
    stores see what they have alike. Its id was drawn by Winch; `is_given`: a repeat gives it again."""
    new = call.new_job(job_id)
    return msgspec.structs.replace(
        new,
        is_given_id=is_given,
        keep=keep_awaited(new.keep) if AWAITED_HEADER in headers else new.keep,
        tags=(*new.tags, *tags) if new.tags else tags,
        headers={**new.headers, **headers} if new.headers else headers,
    )


def send(
    client: Client,
    jobs: Sequence[NewJob],
    waits: Waits,
    conn: object,
    claim: ClaimRef | None = None,
) -> Operation[list[Enqueued]]:
    """Store members with what they wait for, all or none, trying again while the store is out of
    reach."""
    if not jobs:
        return []
    jobs = yield from client.writer.marked(client.writer.prepared(jobs), conn)
    return (yield from client.writer.with_hooks(jobs, _stored(client, jobs, waits, conn, claim)))


def _stored(
    client: Client,
    jobs: Sequence[NewJob],
    waits: Waits,
    conn: object,
    claim: ClaimRef | None,
) -> Operation[list[Enqueued]]:
    driver = client.driver()
    answers: list[Enqueued] | None
    if not waits and claim is None and not conn:
        return (yield from client.writer.store_prepared(jobs))
    if conn is not None:
        connection = getattr(conn, "connection", conn) if hasattr(conn, "result") else conn
        yield from client.writer.index(jobs, connection)
        answers = yield OnConnection(connection, driver.enqueue_after(jobs, waits, claim=claim))
        return _unless_lost(answers)
    is_repeat = False
    for pause in (*PAUSES, None):
        try:
            yield from client.writer.index(jobs)
            answers = yield driver.enqueue_after(jobs, waits, claim=claim, is_repeat=is_repeat)
        except StorageUnavailable as error:
            if pause is None:
                raise
            is_repeat = is_repeat or error.maybe_applied
            yield Pause(pause)
        else:
            return _unless_lost(answers)
    raise AssertionError("unreachable")  # pragma: no cover  # the last round returns or raises


def _unless_lost(answers: list[Enqueued] | None) -> list[Enqueued]:
    if answers is None:
        raise LostClaim("this attempt's claim is lost; it cannot add members any more")
    return answers


def write_note(client: Client, flow_id: str, note: FlowNote, conn: object) -> Operation[None]:
    """Keep what people want to know about the flow; one that cannot be kept stops nothing."""
    driver = client.driver()
    body = msgspec.json.encode(note).decode()
    verb = driver.kv_put([KvRecord(book=BOOK, key=flow_id, body=body, keep=KEEP_NOTE)])
    yield verb if conn is None else OnConnection(conn, verb)


def inputs_text(inputs: Inputs) -> str:
    return msgspec.json.encode(inputs).decode()


def _check(call: Bound[Any], *, has_before: bool) -> None:
    check_call(call, None, "a composition")
    check_part(call, "a composition")
    if has_before and (call.options.delay is not None or call.options.run_at is not None):
        raise ConfigError(
            f"{call.task.name}: a job that waits for others takes no delay= and no run_at=; it starts "
            "when they are final"
        )


def _chunks(calls: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(calls), size):
        yield calls[at : at + size]
