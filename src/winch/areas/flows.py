"""Looking at flows and acting on them: what is kept about each, and its members by their tag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError, FlowNotFound
from winch.core.flow import MOST_MEMBERS, FlowNote, member_id, tag_of
from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL, JobState
from winch.core.values.ids import parse_id
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.twins import blocking, twin
from winch.engine.flows.store import BOOK, members_page
from winch.storage.kv_records import KvFilter
from winch.storage.params import Acted, JobFilter

if TYPE_CHECKING:
    from winch.engine.client.client import Client

PAGE = 500
MOST_COUNTED = 1000
Members = list[JobRecord]


class FlowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a flow. `counts` has its members and callbacks by state; `members` leaves callbacks
    out.
    """

    id: str
    note: FlowNote
    counts: Mapping[JobState, int] = {}
    members: int = 0

    @property
    def state(self) -> str:
        """One word: running, completed, failed (a member is dead) or cancelled."""
        states = {state for state, number in self.counts.items() if number}
        if states - FINAL:
            return "running"
        if JobState.DEAD in states:
            return "failed"
        return "completed" if JobState.COMPLETED in states or not states else "cancelled"


Infos = list[FlowInfo]


class Flows:
    """`app.flows`: look at compositions, cancel and retry them whole."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @blocking
    def list(self, *, limit: int = 50, before: str | None = None) -> Operation[Infos]:
        """The latest flows, newest first. `before` is the id of the last flow of the page before."""
        driver = self._client.driver()
        which = KvFilter(book=BOOK, limit=limit, before=before, is_newest_first=True)
        lines = yield driver.kv_list(which)
        found: Infos = []
        for line in lines:
            found.append((yield from self._listed(line.key, _note(line.body))))
        return found

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def get(self, flow_id: str) -> Operation[FlowInfo]:
        """One flow, with its members counted. Raises FlowNotFound."""
        return (yield from self._get(flow_id))

    @twin(get)
    def aget(self) -> None:
        """`get` without blocking the event loop."""

    def _get(self, flow_id: str) -> Operation[FlowInfo]:
        flow_id = parse_id(flow_id, "flow id")
        driver = self._client.driver()
        lines = yield driver.kv_list(KvFilter(book=BOOK, after=_before(flow_id), limit=1))
        if not lines or lines[0].key != flow_id:
            raise FlowNotFound(flow_id)
        members = yield from self._members(flow_id)
        counts = Counter(job.state for job in members)
        count = sum(tag_of(flow_id) in job.tags for job in members)
        return FlowInfo(id=flow_id, note=_note(lines[0].body), counts=counts, members=count)

    @blocking
    def members(self, flow_id: str) -> Operation[Members]:
        """The jobs of the flow, oldest first, callbacks last."""
        return (yield from self._members(flow_id))

    @twin(members)
    def amembers(self) -> None:
        """`members` without blocking the event loop."""

    @blocking
    def cancel(
        self, flow_id: str, *, reason: str | None = None, by: str | None = None
    ) -> Operation[int]:
        """Cancel the members that are not final, and return their number."""
        members = yield from self._members(flow_id)
        # Those that wait first: a member that ends must not start the one after it.
        live = [job for job in reversed(members) if not job.state.is_final]
        live.sort(key=lambda job: job.state is not JobState.BLOCKED)
        took = yield from self._act("cancel", [job.id for job in live], by, reason)
        driver = self._client.driver()
        yield from noted(driver, "cancel flow", flow_id, jobs=took, reason=reason)
        return took

    @twin(cancel)
    def acancel(self) -> None:
        """`cancel` without blocking the event loop."""

    @blocking
    def retry(self, flow_id: str, *, by: str | None = None) -> Operation[int]:
        """Run dead and cancelled members again, each after those before it; returns how many."""
        members = yield from self._members(flow_id)
        failed = [job for job in members if job.state in (JobState.DEAD, JobState.CANCELLED)]
        took = yield from self._act("retry", [job.id for job in failed], by, None)
        yield from noted(self._client.driver(), "retry flow", flow_id, jobs=took)
        return took

    @twin(retry)
    def aretry(self) -> None:
        """`retry` without blocking the event loop."""

    @blocking
    def rerun(self, flow_id: str, node: str, *, by: str | None = None) -> Operation[int]:
        """Run the members of this node again, and all that come after it; returns how many.

        `node` is a name in the graph, or the task of one node. Members that are not final are left as
        they are.
        """
        info = yield from self._get(flow_id)
        chosen = after_node(info.note, node)
        members = {job.id: job for job in (yield from self._members(flow_id))}
        ids = [
            member_id(info.id, name, number)
            for name, _, count, _ in info.note.nodes
            if name in chosen
            for number in range(count)
        ]
        ended = [job_id for job_id in ids if job_id in members and members[job_id].state.is_final]
        took = yield from self._act("retry", ended, by, None)
        yield from noted(self._client.driver(), "rerun flow", info.id, node=node, jobs=took)
        return took

    @twin(rerun)
    def arerun(self) -> None:
        """`rerun` without blocking the event loop."""

    # -- how ---------------------------------------------------------------------------------------

    def _listed(self, flow_id: str, note: FlowNote) -> Operation[FlowInfo]:
        """A flow of a list. A batch grows after its note is written, so its members are counted."""
        if note.kind != "batch":
            return FlowInfo(id=flow_id, note=note, members=note.members)
        which = JobFilter(tag=tag_of(flow_id), limit=MOST_COUNTED)
        jobs = yield from members_page(self._client.driver(), flow_id, which)
        counts = Counter(job.state for job in jobs)
        return FlowInfo(id=flow_id, note=note, counts=counts, members=len(jobs))

    def _members(self, flow_id: str) -> Operation[Members]:
        flow_id = parse_id(flow_id, "flow id")
        driver, found = self._client.driver(), list[JobRecord]()
        for tag in (f"{tag_of(flow_id)}:callback", tag_of(flow_id)):
            which = JobFilter(tag=tag, limit=MOST_MEMBERS)
            has_inner = tag == tag_of(flow_id)
            found += yield from members_page(driver, flow_id, which, has_inner=has_inner)
        found.reverse()
        return found

    def _act(self, verb: str, ids: Sequence[str], by: str | None, reason: str | None) -> Operation[int]:
        driver = self._client.driver()
        took = 0
        for at in range(0, len(ids), PAGE):
            some = ids[at : at + PAGE]
            who = by or actor()
            answers: Sequence[Acted] = yield (
                driver.cancel(some, by=who, reason=reason)
                if verb == "cancel"
                else driver.retry(some, by=who)
            )
            took += sum(answer.took for answer in answers)
        return took


def after_node(note: FlowNote, node: str) -> set[str]:
    """The names of this node and of all that come after it."""
    tasks = [name for name, task, _, _ in note.nodes if task == node]
    names = {name for name, *_ in note.nodes}
    if node not in names:
        if len(tasks) != 1:
            known = ", ".join(sorted(names)) or "none"
            raise ConfigError(f"the flow has no node {node!r}; its nodes are {known}")
        [node] = tasks
    chosen = {node}
    for name, _, _, before in note.nodes:  # each stands after those before it
        if chosen & set(before):
            chosen.add(name)
    return chosen


def _note(body: str) -> FlowNote:
    try:
        return msgspec.json.decode(body, type=FlowNote)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ConfigError(f"the stored record of the flow is malformed: {error}") from error


def _before(flow_id: str) -> str:
    """The text just before this id: lists begin after it."""
    return flow_id[:-1] + chr(ord(flow_id[-1]) - 1) + "~"


def shown(info: FlowInfo, members: list[JobRecord]) -> dict[str, Any]:
    """A flow as JSON."""
    return {
        "id": info.id,
        "name": info.note.name,
        "kind": info.note.kind,
        "state": info.state,
        "counts": {str(state): number for state, number in info.counts.items()},
        "members": [{"id": job.id, "task": job.task, "state": job.state} for job in members],
    }
