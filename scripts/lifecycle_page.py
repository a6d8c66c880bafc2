"""Write docs/lifecycle.md from the one table of transitions. `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from winch.core.lifecycle import ENQUEUED, FINAL, TRANSITIONS, JobState

PAGE = Path(__file__).parent.parent / "docs" / "lifecycle.md"
MEANING = {
    JobState.SCHEDULED: "waits for its time",
    JobState.BLOCKED: "waits at a gate: other jobs, a turn, a limit, a signal",
    JobState.READY: "waits for a free slot",
    JobState.RUNNING: "claimed by a worker",
    JobState.RETRYING: "failed, waits for its next attempt",
    JobState.COMPLETED: "done (final)",
    JobState.CANCELLED: "no longer wanted (final)",
    JobState.DEAD: "given up, kept for people to look at (final)",
}


def page() -> str:
    lines = [
        "# The life of a job",
        "",
        "Written by `scripts/lifecycle_page.py` from `src/winch/core/lifecycle.py`; do not edit.",
        "",
        "| state | meaning |",
        "|---|---|",
        *(f"| {state} | {MEANING[state]} |" for state in JobState),
        "",
        "```mermaid",
        "stateDiagram-v2",
        *(f"    [*] --> {state}: enqueue" for state in JobState if state in ENQUEUED),
    ]
    arrows: dict[tuple[str, str], list[str]] = {}
    for verb, table in TRANSITIONS.items():
        for source, targets in table.items():
            for target in targets:
                arrows.setdefault((source, target), []).append(verb)
    lines += [
        f"    {source} --> {target}: {', '.join(verbs)}"
        for (source, target), verbs in sorted(arrows.items())
    ]
    lines += [
        *(f"    {state} --> [*]: prune" for state in JobState if state in FINAL),
        "```",
        "",
        "| verb | may be applied in | leads to |",
        "|---|---|---|",
    ]
    for verb, table in TRANSITIONS.items():
        sources = ", ".join(state for state in JobState if state in table)
        after = {target for targets in table.values() for target in targets}
        leads = ", ".join(state for state in JobState if state in after) or "removed"
        lines.append(f"| {verb} | {sources} | {leads} |")
    lines += [
        "",
        "`cancel` of a running job leaves a request; the end of its claim carries it out. A job that",
        "has something to undo is made ready by a cancel, to do that. A verb that is not listed for a",
        "state changes nothing there and says so.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
