"""Every key, in one address. Scripts get them as the Lua table K, made from the table below.

All keys begin with the same hash tag, `{schema}:`, so that they live in one slot and one script may
touch any of them. A key is a name, or a name with a part behind it (`ready:mail`); names of queues,
tasks and sessions stand at the end, where no character of theirs can be taken for anything else.
"""

from __future__ import annotations

import re

from winch.core.errors import SUSPECT_TYPES
from winch.core.flow import FLOW_ALIKE, FLOW_HEADER, INPUTS_HEADER
from winch.core.gates.scopes import RAMP_STEP, RAMP_STEPS
from winch.core.gates.uses import LONGEST, MARK
from winch.core.job import (
    HEAD_START,
    HISTORY_LIMIT,
    KEEP,
    LOG_LIMIT,
    UNDO_LIVES,
)
from winch.core.lifecycle import FINAL, TRANSITIONS
from winch.storage.decide.gates import OPENED_AT_ONCE
from winch.storage.decide.waits import AWAITED_HEADER, STILL_AWAITED

# name -> what it holds. Only waiters and bells expire by themselves; what a job leaves goes by `prune`.
KEYS = {
    "meta": "hash: version of the layout, whether events are kept",
    "env": "hash: job -> moment of its creation and its envelope",
    "st": "hash: job -> what verbs have changed; a job that has none is ready and was never claimed",
    "run": "hash: running job -> its claim; see parts/starting.lua",
    "ids": "zset of jobs, score 0: they sort by id; those that are in no page",
    "pages": "zset, score 0: ids of jobs stored together: how all of them begin, then each of them",
    "paged_to": "how the page begins that prune has looked at last",
    "recorded": "exists where events are kept: looked for together with other keys",
    "queues": "set: the queues that had jobs",
    "paused": "hash: queue -> since when, why",
    "caps": "hash: queue -> its concurrency",
    "ruled": "hash: queue -> the number of its rule, which is set here",
    "ruling": "hash: queue -> number and rule that are not known in every part of a cluster yet",
    "strict": "set: queues of strict order, whose jobs a priority moves STRICT times as far",
    "unsorted": "set: queues whose order has changed and whose ready jobs still have old places",
    "cancelling": "set: running jobs that are asked to stop",
    "sess": "hash: session -> its details",
    "alive": "zset: live session, by the end of its lease",
    "beats": "hash: session -> its beats",
    "ended": "hash: ended session -> when, why, the end of its lease",
    "orphaned": "set: ended sessions that hold running jobs",
    "uniq": "hash: unique key -> the live job that has it",
    "ukey": "hash: live job -> its unique key",
    "kept": "hash: unique key that is held for a time -> the job that had it, until when",
    "kept_until": "zset: unique key that is held for a time, by its end",
    "keep": "hash: job -> how long it is kept when final, where its task sets it",
    "drop": "zset: jobs that ended together, by the end of their keeping time",
    "cancelled": "zset of cancelled jobs, score 0",
    "dead": "zset of dead jobs, score 0",
    "died": "zset: task with dead jobs, score 0",
    "groups": "zset: fingerprint, by its number of dead jobs",
    "gate": "hash: gate -> what it remembers: a rate, a scope, the virtual time of a queue's tenants",
    "opens": "zset: gate at which jobs wait, by the moment it may open",
    "rests": "zset: gate, by the moment from which what it remembers no longer matters",
    "closed": "set: the gates at which jobs wait",
    "used": "hash: gate -> the sum of its permits",
    "own": "hash: limit, session and how many that runs at once -> how many of its jobs have passed",
    "turn": "hash: FIFO key -> the member whose turn it is until it is final",
    "limits": "hash: name -> its numbers as they are set in the store",
    "sched": "hash: schedule -> its row",
    "sched_due": "zset: active schedules, by their next window; 0: wants to be looked at",
    "declares": "hash: live session -> the schedules that its code defines",
    "awaited": "set: live jobs that others may wait for",
    "unfinished": "hash: key of jobs that are waited for together -> how many of them are not final",
    "waiters": "zset, score 0: what is waited for, with the number of the wait",
    "wait_of": "hash: blocked job -> the number of its wait",
    "wait_job": "hash: wait -> its job",
    "wait_left": "hash: wait -> how many must still come",
    "wait_until": "zset: waits with an end, by it",
    "waits_over": "list: waits that are over and have something left to remove",
    "rechecks": "list: what has come, to be looked at by unblock",
    "signal_ends": "zset: signals, by the moment when they are forgotten",
    "took": "hash: job, step and name -> the signal that it has taken",
    "nothing": "never exists: asked for to learn whether the slot is moving",
    "events": "stream: every change, where events are kept",
    "lines_end": "zset: lines of books, by the end of their time",
    "seq": "number of the last event",
    "parcels": "hash: the numbers of a move's parcels: last that left, open, last that came; the fence",
    "leaving": "hash: job on its way from this shard to home -> all there is of it",
    "away": "zset: jobs that went home from this shard, by when; for a day",
    "shut": "set: families of gates that are at home or on their way: no job of theirs is admitted here",
    "common": "set: families of gates that are at home; all others are in the shards of their keys",
    "arrived": "zset: jobs that came home from a shard, by when; for a day",
    "changes": "hash: job -> number of its last event",
}
KEYS_OF = {
    "ready": "zset: ready plain jobs of a queue, by their sort key",
    "gated": "zset: ready jobs of a queue with gates and without a tenant, by their sort key",
    "tenanted": "zset: ready jobs of a queue with a tenant, by their sort key",
    "tenants": "zset: the tenants of a queue that have ready jobs, by their start in virtual time",
    "fair": "zset: the tenants of a queue that are ahead of its virtual time, by how far",
    "stopped": "zset: jobs that wait at a gate, in the order in which it lets them go",
    "permits": "hash: job that holds a permit of a scope or a queue -> 1; those of limits are in claims",
    "members": "zset: live members of a FIFO key, by their numbers",
    "scheduled": "zset: scheduled jobs of a queue, by run_at",
    "retrying": "zset: retrying jobs of a queue, by run_at",
    "blocked": "zset: blocked jobs of a queue, by run_at; what each waits for is kept beside it",
    "tasks": "set: the tasks that the jobs of a queue had",
    "held": "set: the running jobs of a session",
    "deaths": "zset: dead jobs of a task, by the moment of death",
    "alike": "zset: dead jobs with a fingerprint, score 0",
    "alike_at": "zset: dead jobs with a fingerprint, by the moment of death",
    "wants": "hash: what a wait is for -> whether that is enough",
    "signals": "hash: id of a signal of this name -> payload, when it was sent, which job has taken it",
    "untaken": "zset: signals of this name that no job has taken, by when they were sent",
    "declared": "hash: live session -> its definition of a schedule",
    "windows": "zset: the windows of a schedule that were dealt with",
    "runs": "hash: window of a schedule -> what became of it",
    "lines": "zset: the keys of a book, score 0",
    "bodies": "hash: key of a book -> its text and the end of its time",
    "parcel": "list: the jobs of a move's open parcel: id, envelope and state of each",
    "waiting": "zset: waiters of a queue, until when; `waiting:` has the waiters for due jobs",
    "bell": "list: the wake-ups of one waiter; expires",
}

# With a queue and something of it: the length of the queue's name shows where it ends.
KEYS_OF_TWO = {
    "line": "zset: ready jobs of one tenant of a queue, by their sort key",
}

# Numbers of scripts are doubles: from EXACT on they count by a step that has a address up to 2^63.
EXACT = 2**53
PAST_EXACT = 1024

_SECOND = 1_000_000
# In a queue of strict order a level of priority is worth so many head starts, 69 days: a score is
# a double, which has no place for more.
STRICT = 100_000


def _micros(value: object) -> int:
    return round(value.total_seconds() * _SECOND)  # type: ignore[attr-defined,no-any-return]


def _begin(name: str) -> str:
    return "B" if name in ("waiting", "bell") else "P"


# A key with something simple behind it: K.ready(queue), K.held(A.session).
_OF = re.compile(r"\bK\.(\w+)\(([\w.\[\]]+)\)")


def with_parts(text: str) -> str:
    """A script with the keys that have a part behind them put in where they stand: otherwise each call
    makes a function for every one of them, of which it needs a few."""

    def put_in(found: re.Match[str]) -> str:
        name, of = found.groups()
        return f"({_begin(name)} .. '{name}:' .. {of})" if name in KEYS_OF else found[0]

    return _OF.sub(put_in, text)


def with_keys(text: str) -> str:
    """A script of one server with all its keys put in where they stand: making the table K takes longer
    than each of the few things that a short script does."""
    text = re.sub(r"\bK\.(\w+)\((\w+)\)", r"(P .. '\1:' .. \2)", text)
    for name, number in (("STRICT", STRICT), ("PAST_EXACT", PAST_EXACT), ("EXACT", EXACT)):
        text = text.replace(name, str(number))
    return "local P = string.sub(KEYS[1], 1, -5)\n" + re.sub(r"\bK\.(\w+)", r"(P .. '\1')", text)


def prelude(text: str) -> str:
    """What a script begins with: the keys, limits and rows of the transition table that it names.

    Only those: all of it is run anew with each call.
    """
    used = set(re.findall(r"\bK\.(\w+)", text))
    if "K[" in text:  # by the name of a state
        used |= {"scheduled", "retrying", "blocked", "ready", "cancelled", "dead"}
    lines = ["local P = string.sub(KEYS[1], 1, -5)"]
    if {"waiting", "bell"} & used or "(B .. '" in text:
        # In a cluster waiters leave their names once per node, not in every part of the store.
        lines.append("local B = KEYS[2] and string.sub(KEYS[2], 1, -5) or P")
    lines.append("local K = {")
    lines += [f"  {name} = P .. '{name}'," for name in KEYS if name in used]
    lines += [
        f"  {name} = function(of) return {_begin(name)} .. '{name}:' .. of end,"
        for name in KEYS_OF
        if name in used
    ]
    lines += [
        f"  {name} = function(of, it) return P .. '{name}:' .. #of .. ':' .. of .. ':' .. it end,"
        for name in KEYS_OF_TWO
        if name in used
    ]
    lines.append("}")
    if "MAY" in text:
        lines.append("local MAY = {")
        for verb, table in TRANSITIONS.items():
            if re.search(rf"MAY\.{verb}\b|operate\('{verb}'", text):
                states = ", ".join(f"{state} = true" for state in table)
                lines.append(f"  {verb} = {{{states}}},")
        lines.append("}")
    if "FINAL" in text:
        lines.append(f"local FINAL = {{{', '.join(f'{state} = true' for state in sorted(FINAL))}}}")
    if "KEEP" in text:
        kept = ", ".join(f"{state} = {_micros(keep)}" for state, keep in KEEP.items())
        lines.append(f"local KEEP = {{{kept}}}")
    lines.append(f"local HEAD_START = {_micros(HEAD_START)}")
    lines.append(f"local STRICT = {STRICT}")
    lines.append(f"local HISTORY_LIMIT, LOG_LIMIT = {HISTORY_LIMIT}, {LOG_LIMIT}")
    if "GATED" in text:
        lines.append(f"local GATED, OPENED_AT_ONCE = '{MARK}', {OPENED_AT_ONCE}")
    if "PAST_EXACT" in text:
        lines.append(f"local EXACT, PAST_EXACT = {EXACT}, {PAST_EXACT}")
    if "LONGEST" in text:
        lines.append(f"local LONGEST = {LONGEST}")
    if "RAMP_STEP" in text:
        lines.append(f"local RAMP_STEP, RAMP_STEPS = {RAMP_STEP}, {RAMP_STEPS}")
    if "AWAITED" in text:
        lines.append(f"local AWAITED = '\"{AWAITED_HEADER}\":'")
    if "FLOW" in text or "INPUTS" in text:
        lines.append(f"local FLOW, INPUTS = '\"{FLOW_HEADER}\":', '\"{INPUTS_HEADER}\":'")
        lines.append(f"local FLOW_ALIKE, STILL_AWAITED = {FLOW_ALIKE}, {_micros(STILL_AWAITED)}")
    if "UNDO_LIVES" in text:
        lines.append(f"local UNDO_LIVES = {UNDO_LIVES}")
        types = ", ".join(f"{what} = '{name}'" for what, name in SUSPECT_TYPES.items())
        lines.append(f"local TYPES = {{{types}}}")
    return "\n".join(lines)
