"""How a process died, in words."""

from __future__ import annotations

import signal
from pathlib import Path

_CGROUP_EVENTS = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory.events.local"),
)


def describe_death(code: int, *, is_oom: bool = False) -> str:
    """A return code in words; `is_oom` when the kernel has counted an out-of-memory kill meanwhile."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGKILL":
        return "out of memory (SIGKILL)" if is_oom else "killed by SIGKILL"
    return f"killed by {name}"


def oom_kills() -> int:
    """How many out-of-memory kills the kernel counts for this machine or container; 0 if unknown."""
    for path in _CGROUP_EVENTS:
        try:
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        except (OSError, ValueError):
            continue
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        pass
    return 0
