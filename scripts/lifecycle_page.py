"""Write docs/lifecycle.md from the one table of transitions. `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from winch.core.lifecycle import TRANSITIONS, JobState

PAGE = Path(__file__).parent.parent / "docs" / "lifecycle.md"
MEANING = {
    JobState.SCHEDULED: "waits for its time",
    JobState.BLOCKED: "waits for another job, its turn, a limit or a signal",
    JobState.READY: "waits for a free slot",
    JobState.RUNNING: "claimed by a worker",
    JobState.RETRYING: "failed, waits for its next attempt",
    JobState.COMPLETED: "the handler returned (final)",
    JobState.CANCELLED: "stopped on request (final)",
    JobState.DEAD: "given up, kept with every error for an operator (final)",
}


def page() -> str:
    lines = [
        "# Jobs and states",
        "",
        "<!-- Written by scripts/lifecycle_page.py from src/winch/core/lifecycle.py; do not edit. -->",
        "",
        "A **task** is a function that you registered. A **job** is one stored request to run it. An **attempt** is one try;",
        "a job that fails and has attempts left is tried again. A job is always in exactly one of eight states, and one table in",
        "the code decides which changes are possible.",
        "",
        "| state | meaning |",
        "|---|---|",
        *(f"| {state} | {MEANING[state]} |" for state in JobState),
        "",
        "![The states of a job](images/diagrams/life-light.svg#gh-light-mode-only)",
        "![The states of a job](images/diagrams/life-dark.svg#gh-dark-mode-only)",
        "",
        "The picture shows the everyday arrows. The table has every verb, and no other change of state is possible on any store.",
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
        "- A new job is `ready`, `scheduled` (it has a delay) or `blocked` (it waits for another job, a limit or a signal).",
        "- `cancel` of a running job stores a request. The job becomes `cancelled` when its attempt ends.",
        "- `cancel` of a job with [steps to undo](howto/workflows.md) makes it `ready`, so that a worker undoes them first.",
        "- A verb that the table does not allow in a state changes nothing and reports so.",
        "- `delete` and `prune` remove the job. Workers prune final jobs after their retention, 7 days unless the task sets another.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
