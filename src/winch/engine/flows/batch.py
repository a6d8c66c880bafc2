"""Batches: jobs that belong together, with callbacks that run when they end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from winch.core.errors import ConfigError
from winch.core.flow import (
    FLOW_HEADER,
    INPUTS_HEADER,
    FlowNote,
    Inputs,
    Wants,
    member_id,
    members_prefix,
    numbered,
    tag_of,
)
from winch.engine.base.operation import Operation
from winch.engine.client.job import Job
from winch.engine.flows.compose import Flow
from winch.engine.flows.parts import check_member
from winch.engine.flows.store import (
    CHUNK,
    BatchOwner,
    Waits,
    inputs_text,
    member,
    next_chunk,
    send,
    store_members,
    write_note,
    write_outer,
)
from winch.engine.tasks.task import Bound, check_call, check_whole
from winch.storage.decide.waits import (
    AWAITED_HEADER,
    EACH,
    PREFIX,
    all_key,
    death_key,
    signal_key,
)
from winch.storage.params import ClaimRef, Enqueued, NewJob, Wait

if TYPE_CHECKING:
    from winch.engine.client.client import Client
    from winch.engine.tasks.context import Context

T = TypeVar("T")

BATCH_HEADER = "winch-batch"
TURNS_HEADER = "winch-batch-fifo"
# The batches around a member's own, with the kinds of their callbacks.
OUTER_HEADER = "winch-batch-outer"


class Callbacks(msgspec.Struct, frozen=True, array_like=True):
    """The callbacks of one batch that wait for its members."""

    batch: str
    kinds: tuple[Wants, ...]

    def ids(self) -> list[str]:
        return [member_id(self.batch, kind) for kind in self.kinds]


def gate_of(batch: str) -> str:
    """The signal that all callbacks of a batch wait for, sent when its last member is stored."""
    return f"winch-flow:{batch}"


def batch_headers(
    batch: str, kinds: Sequence[Wants], outers: Sequence[Callbacks], turns: Sequence[str]
) -> dict[str, str]:
    """What each member carries, so that it can add members while it runs."""
    headers = {FLOW_HEADER: batch, BATCH_HEADER: ",".join(kinds)}
    if outers:
        headers[OUTER_HEADER] = msgspec.json.encode(outers).decode()
    if turns:
        headers[TURNS_HEADER] = msgspec.json.encode(turns).decode()
    return headers


def refuse_turn(new: NewJob, turns: Sequence[str]) -> None:
    """Raises ConfigError for a job whose FIFO key a callback of its batch has (`turns`)."""
    if new.fifo in turns:
        raise ConfigError(
            f"{new.task} cannot be a member with the FIFO key {new.fifo!r}: a callback of its batch "
            "has that key and was stored first, so each would wait for the other. Give the callback "
            "another key"
        )


class Batch:
    """Jobs that belong together, with callbacks that each run once.

    - `on_success`: after all members have completed.
    - `on_complete`: after all members are final.
    - `on_death`: after the first member dies.

    Add members until the block ends; a running member can add more with `ctx.batch.enqueue(…)`. `with
    outer.batch("inner", …) as inner` opens a batch inside another. The outer callbacks wait for the
    inner members and callbacks too.
    """

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
        self._outers: tuple[Callbacks, ...] = ()  # those of the batches around this one
        self._is_noted = False
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
        """A batch inside this one. Open and close it while this one is open."""
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
        """Add members and return their jobs. For a composition it returns the last jobs."""
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
                check_member(call, has_before=False)
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
            self._outers = (Callbacks(outer.id, outer._kinds), *outer._outers)
            self._turns = outer._turns

    def _run(self, op: Operation[Any]) -> Any:
        assert self._client is not None  # noqa: S101  # begun before
        return self._client.surroundings.run(self._client.driver(), op)

    async def _arun(self, op: Operation[Any]) -> Any:
        assert self._client is not None  # noqa: S101  # begun before
        return await self._client.surroundings.arun(self._client.driver(), op)

    def _store_callbacks(self) -> Operation[None]:
        assert self._client is not None  # noqa: S101  # begun before
        jobs: list[NewJob] = []
        waits: Waits = []
        for kind, call in self._callbacks.items():
            if call is not None:
                self._begin([call])
                check_member(call, has_before=True)
                check_whole(call, f"batch {self.name!r}")
                inputs = inputs_text(Inputs(self.id, wants=kind))
                headers = {FLOW_HEADER: self.id, INPUTS_HEADER: inputs}
                if self._outers:
                    headers[AWAITED_HEADER] = all_key(members_prefix(self.id, kind))
                tags = (f"{tag_of(self.id)}:callback",)
                new = member(call, member_id(self.id, kind), tags, headers)
                jobs.append(new)
                if self._outer is not None:
                    refuse_turn(new, self._outer._turns)
                if new.fifo is not None:
                    self._turns += (new.fifo,)
                waits.append((new.id, [Wait(signal_key(gate_of(self.id)))]))
        self._has_jobs = True
        yield from self._note_outers()
        note = FlowNote(name=self.name, kind="batch", members=0, tasks=self._kinds)
        yield from write_note(self._client, self.id, note, self._conn)
        yield from send(self._client, jobs, waits, self._conn)

    def _note_outers(self) -> Operation[None]:
        """Note once which batches this one is in. What a member adds goes into a batch that is noted."""
        if self._outers and self._claim is None and not self._is_noted:
            assert self._client is not None  # noqa: S101  # begun before
            outers = [one.batch for one in self._outers]
            yield from write_outer(self._client, self.id, outers, self._conn)
            self._is_noted = True

    def _add(self, calls: Sequence[Bound[Any] | Flow]) -> Operation[list[Job[Any]]]:
        handles: list[Job[Any]] = []
        yield from self._note_outers()
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
            refuse_turn(new, self._turns)
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
        while (chunk := next_chunk(members))[0]:
            jobs, before = chunk
            for new in jobs:
                refuse_turn(new, self._turns)
            self._has_jobs = True
            waits = before + self._waits_for(keys if owner.is_given else [], jobs)
            answers += yield from send(self._client, jobs, waits, self._conn, self._claim)
        last = [members_prefix(self.id, node.name) for node in part._nodes if not node.is_awaited]
        return self._client.handles([one for one in answers if one.id[:PREFIX] in last])

    def _owner(self) -> BatchOwner:
        return BatchOwner(
            tags=tuple(tag_of(one.batch) for one in self._all_callbacks),
            headers=batch_headers(self.id, self._kinds, self._outers, self._turns),
            has_death=any("death" in one.kinds for one in self._all_callbacks),
            is_given=self._claim is not None,
        )

    @property
    def _all_callbacks(self) -> tuple[Callbacks, ...]:
        """Those of this batch, then those of the batches around it."""
        return (Callbacks(self.id, self._kinds), *self._outers)

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

    @property
    def _name(self) -> str:
        return "m" if self._claim is None else f"m{self._claim.id}"

    def _close(self) -> Operation[None]:
        assert self._client is not None  # noqa: S101  # begun before
        members = [all_key(members_prefix(self.id, self._name)), *self._part_keys]
        callbacks = [all_key(members_prefix(self.id, kind)) for kind in self._kinds]
        waits: Waits = [
            (one, [Wait(key) for key in members]) for one in Callbacks(self.id, self._kinds).ids()
        ]
        for outer in self._outers:
            waits += [(one, [Wait(key) for key in (*members, *callbacks)]) for one in outer.ids()]
        if waits:
            yield from store_members(self._client, [], waits, self._conn, None)
        note = FlowNote(name=self.name, kind="batch", members=0, tasks=self._kinds, is_closed=True)
        yield from write_note(self._client, self.id, note, self._conn)
        yield from self._client.signal(gate_of(self.id), 1, "stored", self._conn)


def batch(
    name: str = "batch",
    *,
    on_success: Bound[Any] | None = None,
    on_complete: Bound[Any] | None = None,
    on_death: Bound[Any] | None = None,
    conn: object = None,
) -> Batch:
    """Jobs that belong together, with callbacks when all of them are done.

        with winch.batch("import", on_success=report.bind()) as b:
            b.enqueue(*(load.bind(path) for path in paths))

    See `winch.types.Batch` for the callbacks.
    """
    return Batch(name, on_success=on_success, on_complete=on_complete, on_death=on_death, conn=conn)


def batch_of(ctx: Context) -> Batch:
    """A new `Batch` for the batch of a running member: `ctx.batch`, which makes one for each attempt.

    Members are added while the claim is live. Their ids follow from the adding job and a number that
    counts from 0 in each attempt, so that a later attempt adds the same ones.
    """
    headers = ctx.headers
    if BATCH_HEADER not in headers:
        raise ConfigError(f"job {ctx.job_id} is not a member of a batch")
    made = Batch("")
    made.id = headers[FLOW_HEADER]
    made._claim = ctx.claim_ref
    made._client = ctx._task.client
    made._kinds = tuple(kind for kind in headers[BATCH_HEADER].split(",") if kind)  # type: ignore[misc]
    if TURNS_HEADER in headers:
        made._turns = msgspec.json.decode(headers[TURNS_HEADER], type=tuple[str, ...])
    if OUTER_HEADER in headers:
        made._outers = msgspec.json.decode(headers[OUTER_HEADER], type=tuple[Callbacks, ...])
    return made


def _chunks(calls: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(calls), size):
        yield calls[at : at + size]
