"""Chunked database maintenance: a table too big for one statement, a chunk at a time.

Each chunk is a short job that enqueues the next one in its own transaction: nothing holds a lock for
long, a crash repeats nothing that was committed, and pausing the queue pauses the work.
"""

from __future__ import annotations

from winch import App, Context

app = App()
CHUNK = 250


@app.task(name="db.chunk", queue="maintenance", priority="low")
def upper_case(after: int = 0, *, ctx: Context) -> int:
    """Bring the names after this id to upper case; returns the last id."""
    with ctx.transaction() as tx:
        found = tx.execute(
            "SELECT id FROM person WHERE id > ? ORDER BY id LIMIT ?", (after, CHUNK)
        ).fetchall()
        last: int = found[-1][0] if found else after
        tx.execute("UPDATE person SET name = upper(name) WHERE id > ? AND id <= ?", (after, last))
        if len(found) == CHUNK:
            following = upper_case.using(conn=tx, delay="10ms")
            following.enqueue(last)  # type: ignore[call-arg]  # ctx is injected
        tx.result = last
    return last
