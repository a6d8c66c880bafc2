"""Where the rows of claimed jobs lie, so that their finish need not look them up.

A claim tells the place (ctid) of each row it wrote, and the finish goes there at once, which saves a
fifth of its cost on the server. A hint and no more: the statement compares
(id, token) at the place, and whatever is not found there is looked up by its id as before. Kept in
memory, for this process alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from winch.drivers.postgres.binary import Tids
from winch.drivers.postgres.statements import Rows
from winch.drivers.postgres.verbs.base import RowHints

# Claims that end elsewhere leave their places behind; past this many all are forgotten.
MOST = 100_000
_id_and_place = itemgetter(1, -1)


class KnownRows(RowHints):
    """The places of the rows that this process has claimed."""

    def __init__(self) -> None:
        self._by_id: dict[str, bytes] = {}

    def learn(self, rows: Rows) -> None:
        """What a claim answered: the ids stand second, the places last."""
        if not rows or not isinstance(rows[0][-1], bytes):
            return  # text on connections that are not ours: not worth reading
        if len(self._by_id) > MOST:
            self._by_id.clear()
        self._by_id.update(map(_id_and_place, rows))

    def forget(self, job: str) -> None:
        """The job's row was written anew, and lies elsewhere."""
        self._by_id.pop(job, None)

    def take(self, ids: Sequence[str]) -> Tids:
        """The places of these jobs, which are about to end; None for those that are not known."""
        pop = self._by_id.pop
        return Tids([pop(i, None) for i in ids])
