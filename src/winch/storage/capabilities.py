"""What may differ between drivers, as data: shown in the docs, and tested both ways."""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """A False here is a declared absence; the conformance suite checks that it is refused clearly."""

    is_durable: bool
    """An acknowledged enqueue survives the death of every process, the store's included."""
    shares_processes: bool
    """Several processes may use the store at once."""
    joins_transactions: bool
    """`conn=` puts the enqueue into the caller's own transaction."""
    keeps_events: bool
    """`events="full"` writes each change into a history the reliability checks read."""
    keeps_books: bool = False
    """Tokens, the audit and rates are kept beside the jobs; without it there are none."""
    migrates_itself: bool = False
    """The schema is made and upgraded at first use; nobody has to run `winch migrate`."""
    keeps_undo: bool = True
    """A cancel lets a job that has something to undo run once more: `ctx.step(…, undo=…)`."""
    has_waits: bool = True
    """A job may wait for signals and for other jobs without a worker: `ctx.wait_for`, `ctx.gather`."""
    has_gates: bool = True
    """Limits, rates, FIFO keys, tenants and scopes hold jobs back."""
    has_schedules: bool = True
    """Schedules, and their windows, are kept in the store."""
    has_unique_windows: bool = True
    """Unique keys can be held for a time, left by jobs that run, and put off (debounce)."""
