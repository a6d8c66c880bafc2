"""The durable steps of a job, as JSON and as lines."""

from __future__ import annotations

import json
from typing import Any

from winch.cli.shared import text
from winch.core import steps
from winch.core.envelope import MARK
from winch.core.errors import InvalidPayload
from winch.core.job import JobRecord
from winch.core.steps import StepHistory, StepRecord
from winch.core.values.redact import mask_text, shown


def shown_steps(job: JobRecord, *, reveal: bool) -> Any:
    """What the job has made, in order; None for a job without steps, a mark where it is encrypted."""
    found = _history(job)
    if not isinstance(found, StepHistory):
        return found
    return [
        {
            "name": step.name,
            "kind": step.kind,
            "state": _state(step),
            "at": step.at,
            "until": step.until,
            "tries": step.tries or None,
            "result": shown(step.result, reveal=reveal),
            "error": None if step.error is None else _masked(step, reveal),
            "has_undo": step.has_undo,
        }
        for step in found.steps
    ]


def step_lines(job: JobRecord, *, reveal: bool) -> list[str]:
    found = _history(job)
    if found is None:
        return []
    if not isinstance(found, StepHistory):
        return [found]
    names = [text.one_line(step.name) for step in found.steps]
    wide = min(max(map(text.width, names), default=0), 40)
    lines = []
    if found.args is not None:
        body = json.dumps(shown(found.args, reveal=reveal), ensure_ascii=False)
        lines.append(f"restarted with {text.cut(text.one_line(body), 80)}")
    for name, step in zip(names, found.steps, strict=True):
        line = f"{text.dim(text.stamp(step.at))}  {text.padded(name, wide)}  {_state(step)}"
        if step.until is not None and not step.is_done:
            line += f" until {text.stamp(step.until)}"
        if step.error is not None:
            line += f"  {text.one_line(_masked(step, reveal))}"
        elif step.result is not None and step.kind != "version":
            value = shown(step.result, reveal=reveal)
            body = MARK if value == MARK else json.dumps(value, ensure_ascii=False)
            line += f"  {text.cut(text.one_line(body), 60)}"
        lines.append(line)
    if found.compensation is not None:
        lines.append(f"undone, to be {found.compensation.to}" if not found.to_undo else "undoing")
    return lines


def _history(job: JobRecord) -> StepHistory | str | None:
    value = shown(job.checkpoint, reveal=True)
    if value == MARK:
        return MARK
    try:
        return steps.read(job.checkpoint)
    except InvalidPayload as error:
        return str(error)


def _state(step: StepRecord) -> str:
    if step.is_undone:
        return "undone"
    if step.is_failed:
        return f"failed {step.tries} times" if step.tries > 1 else "failed"
    if step.kind in ("sleep", "signal", "children"):
        return "done" if step.is_done or step.kind == "sleep" else "waits"
    return "done" if step.is_done else "to be tried again"


def _masked(step: StepRecord, reveal: bool) -> str:
    if step.error is None:
        return ""
    error_text = f"{step.error.name}: {step.error.message}"
    return error_text if reveal else mask_text(error_text)
