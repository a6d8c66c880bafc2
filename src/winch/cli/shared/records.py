"""A job as a row, as JSON and as a page. What is shown is masked unless --reveal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from winch.cli.shared import text
from winch.cli.shared.output import Column, Table, say, terminal_width
from winch.cli.shared.steps import shown_steps, step_lines
from winch.core.envelope import MARK
from winch.core.errors import SUSPECT_TYPES
from winch.core.job import Entry, Failure, JobRecord, attempt_words
from winch.core.lifecycle import JobState
from winch.core.values.redact import mask, mask_text, shown
from winch.storage.params import SessionInfo

Workers = Mapping[str, str]  # session id -> the worker's label


def workers_by_session(sessions: list[SessionInfo]) -> Workers:
    return {session.id: session.worker for session in sessions}


# -- JSON --------------------------------------------------------------------------------------------


def summary(job: JobRecord, *, reveal: bool) -> dict[str, Any]:
    """A job as an item of a list."""
    return {
        "id": job.id,
        "task": job.task,
        "state": job.state,
        "queue": job.queue,
        "priority": job.priority,
        "args": shown(job.args, reveal=reveal),
        "tags": _tags(job, reveal),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": job.created_at,
        "run_at": job.run_at,
        "claimed_at": job.claimed_at,
        "finished_at": job.finished_at,
        "error": _failure(job.error, reveal, with_traceback=False),
        "reason": _masked(job.reason, reveal),
        "group": job.fingerprint,
    }


def detail(job: JobRecord, workers: Workers, *, reveal: bool) -> dict[str, Any]:
    """A job with all that is known about it. Claim tokens stay out: they are proofs, not facts."""
    return summary(job, reveal=reveal) | {
        "version": job.version,
        "headers": dict(job.headers) if reveal else mask(dict(job.headers)),
        "options": shown(job.options, reveal=reveal),
        "expires_at": job.expires_at,
        "cancel_requested_at": job.cancel_requested_at,
        "crashes": job.crashes,
        "rescues": job.rescues,
        "fence": job.fence,
        "worker": workers.get(job.session or ""),
        "session": job.session,
        "progress": shown(job.progress, reveal=reveal),
        "error": _failure(job.error, reveal, with_traceback=True),
        "result": shown(job.result, reveal=reveal),
        "steps": shown_steps(job, reveal=reveal),
        "history": [
            {
                "what": entry.what,
                "at": entry.at,
                "attempt": entry.attempt or None,
                "worker": workers.get(entry.session or ""),
                "session": entry.session,
                "claimed_at": entry.claimed_at,
                "by": entry.by,
                "note": _masked(entry.note, reveal),
                "error": _failure(entry.error, reveal, with_traceback=True),
            }
            for entry in job.history
        ],
    }


def _tags(job: JobRecord, reveal: bool) -> list[str]:
    return [tag if reveal else mask_text(tag) for tag in job.tags]


def _masked(value: str | None, reveal: bool) -> str | None:
    return value if value is None or reveal else mask_text(value)


def _failure(error: Failure | None, reveal: bool, *, with_traceback: bool) -> dict[str, Any] | None:
    if error is None:
        return None
    found: dict[str, Any] = {"type": error.type, "message": _masked(error.message, reveal)}
    if with_traceback:
        found["traceback"] = _masked(error.traceback, reveal)
    return found


# -- rows --------------------------------------------------------------------------------------------


def job_table(jobs: list[JobRecord], *, reveal: bool, is_dead: bool = False) -> Table:
    """A list of jobs; `is_dead` shows what they died of instead of their arguments."""
    columns = [
        Column("ID"),
        Column("STATE"),
        Column("TASK", gives_way=True),
        Column("QUEUE", gives_way=True, drop=2),
        Column("ATTEMPT", is_right=True, drop=1),
        Column("WHEN"),
        Column("ARGS", gives_way=True, drop=3),
    ]
    if is_dead:
        columns[1:2] = []
        columns[-1] = Column("DIED OF", gives_way=True)
    table = Table(columns)
    at = text.now()
    for job in jobs:
        table.add(
            job.id,
            *([] if is_dead else [text.state(job.state)]),
            text.one_line(job.task),
            text.one_line(job.queue),
            attempts(job),
            when(job, at),
            _cause(job, reveal) if is_dead else compact(job.args, reveal=reveal),
        )
    return table


def attempts(job: JobRecord) -> str:
    return attempt_words(job.attempt, job.max_attempts).replace(" of ", "/")


def when(job: JobRecord, at: datetime) -> str:
    """The moment that matters in the job's state."""
    match job.state:
        case JobState.SCHEDULED | JobState.RETRYING:
            return f"due {text.ago(job.run_at, at)}"
        case JobState.RUNNING:
            return f"for {text.span(at - (job.claimed_at or at))}"
        case JobState.READY | JobState.BLOCKED:
            return f"waits {text.span(at - job.run_at)}"
        case _:
            return text.ago(job.finished_at, at)


def _cause(job: JobRecord, reveal: bool) -> str:
    error = job.error
    error_text = f"{error.name}: {error.message}" if error else job.reason or ""
    return text.one_line((error_text if reveal else mask_text(error_text)).strip())


def compact(stored: str, *, reveal: bool) -> str:
    """Arguments as `a=1 name="x"`."""
    found = shown(stored, reveal=reveal)
    if found == MARK:
        return MARK
    if not isinstance(found, dict):
        return text.one_line(json.dumps(found, ensure_ascii=False))
    parts = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in found.items())
    return text.one_line(" ".join(parts))


# -- a page ------------------------------------------------------------------------------------------


def show_job(job: JobRecord, workers: Workers, *, reveal: bool) -> None:
    """All about one job: what it is, what happened, what it was given and what came of it."""
    at = text.now()
    say(f"{text.bold(text.one_line(job.task))}  {text.state(job.state)}  {text.dim(job.id)}")
    say()
    for name, value in _facts(job, at, reveal):
        say(f"  {text.dim(text.padded(name, 9))} {text.one_line(value)}")
    say()
    say(text.bold("Timeline"))
    for line in _timeline(job, workers, at, reveal):
        say(f"  {line}")
    if lines := step_lines(job, reveal=reveal):
        say()
        say(text.bold("Steps"))
        for line in lines:
            say(f"  {line}")
    _block("Args", shown(job.args, reveal=reveal))
    if job.headers:
        _block("Headers", dict(job.headers) if reveal else mask(dict(job.headers)))
    if job.result is not None:
        _block("Result", shown(job.result, reveal=reveal))
    error = job.error
    if error is not None and error.traceback and job.state is not JobState.COMPLETED:
        say()
        say(text.bold("Last error"))
        for line in text.lines((error.traceback if reveal else mask_text(error.traceback)).rstrip()):
            say(f"  {line}")


def _facts(job: JobRecord, at: datetime, reveal: bool) -> list[tuple[str, str]]:
    facts = [
        ("queue", job.queue + (f"   priority {job.priority}" if job.priority else "")),
        ("attempt", attempt_words(job.attempt, job.max_attempts)),
    ]
    if job.tags:
        facts.append(("tags", ", ".join(_tags(job, reveal))))
    if job.state in (JobState.SCHEDULED, JobState.RETRYING):
        facts.append(("due", f"{text.ago(job.run_at, at)} ({text.stamp(job.run_at)})"))
    if job.expires_at is not None and not job.state.is_final:
        facts.append(("expires", f"{text.ago(job.expires_at, at)} ({text.stamp(job.expires_at)})"))
    if job.crashes or job.rescues:
        facts.append(("suspect", f"{job.crashes} crashed, {job.rescues} rescued"))
    if job.reason:
        facts.append(("reason", job.reason if reveal else mask_text(job.reason)))
    return facts


def _timeline(job: JobRecord, workers: Workers, at: datetime, reveal: bool) -> list[str]:
    """Moments in order, each with its date where that is new and the time since the creation."""
    moments: list[tuple[datetime, str]] = [(job.created_at, "created")]
    moments += [(entry.at, _entry(entry, workers, reveal)) for entry in job.history]
    current = _current(job, workers, at)
    if current is not None:
        moments.append(current)
    lines: list[str] = []
    day = ""
    for moment, what in moments:
        date, clock = f"{moment:%Y-%m-%d}", f"{moment:%H:%M:%S}"
        since = "UTC" if not lines else f"+{text.span(moment - job.created_at)}"
        lead = f"{date if date != day else '':10} {clock} {text.padded(since, 9, is_right=True)}"
        day = date
        lines.append(f"{text.dim(lead)}  {what}")
    return lines


def _current(job: JobRecord, workers: Workers, at: datetime) -> tuple[datetime, str] | None:
    """What the history does not hold: the attempt that completed, the one that runs, the next one."""
    where = _where(job.session, workers)
    match job.state:
        case JobState.COMPLETED if job.finished_at is not None:
            took = text.span(job.finished_at - (job.claimed_at or job.finished_at))
            words = f"attempt {job.attempt}  {text.state('completed')} in {took}{where}"
            return job.finished_at, words
        case JobState.RUNNING if job.claimed_at is not None:
            asked = ", asked to cancel" if job.cancel_requested_at else ""
            since = text.span(at - job.claimed_at)
            words = f"attempt {job.attempt}  {text.state('running')} for {since}{where}{asked}"
            return job.claimed_at, words
        case JobState.SCHEDULED | JobState.RETRYING:
            return job.run_at, f"attempt {job.attempt + 1}  due {text.ago(job.run_at, at)}"
        case JobState.READY:
            return at, f"{text.state('ready')} for {text.span(at - job.run_at)}"
        case _:
            return None


LEAD = 37  # the columns before what happened: indent, date, time, time since the creation
# What happened, in the colour of the state that is most like it.
LIKE = {
    "failed": JobState.DEAD,
    "crashed": JobState.DEAD,
    "discarded": JobState.DEAD,
    "rescued": JobState.RETRYING,
    "snoozed": JobState.SCHEDULED,
    "slept": JobState.SCHEDULED,
    "waited": JobState.BLOCKED,
    "compensating": JobState.RETRYING,
    "cancelled": JobState.CANCELLED,
}


def _entry(entry: Entry, workers: Workers, reveal: bool) -> str:
    what = text.state(text.one_line(entry.what), LIKE.get(entry.what))
    words = f"attempt {entry.attempt}  {what}" if entry.attempt else what
    if entry.claimed_at is not None:
        words += f" after {text.span(entry.at - entry.claimed_at)}{_where(entry.session, workers)}"
    if entry.by:
        words += f" by {text.one_line(entry.by)}"
    if entry.note:
        words += f": {text.one_line(entry.note if reveal else mask_text(entry.note))}"
    if entry.error is None:
        return words
    message = entry.error.message if reveal else mask_text(entry.error.message)
    first = text.one_line(message.strip().partition("\n")[0])
    if entry.error.type == SUSPECT_TYPES.get(entry.what):  # the error is the cause and no more
        return f"{words}: {first}"
    # One line for each moment; the last error is shown whole below.
    room = terminal_width() - LEAD - text.width(words)
    return f"{words}  {text.cut(f'{text.one_line(entry.error.name)}: {first}', max(room, 24))}"


def _where(session: str | None, workers: Workers) -> str:
    if session is None:
        return ""
    # A session is forgotten a day after its end; then only its id is left.
    return f" on {text.one_line(workers.get(session, f'session {session}'))}"


def _block(title: str, value: Any) -> None:
    say()
    say(text.bold(title))
    body = MARK if value == MARK else json.dumps(value, ensure_ascii=False)
    if len(body) > 80:
        body = json.dumps(value, indent=2, ensure_ascii=False)
    for line in text.lines(body):
        say(f"  {line}")
