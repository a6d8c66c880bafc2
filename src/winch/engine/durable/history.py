"""The steps of one job as one attempt knows them, and the texts by which the store keeps them.

The newest steps, up to PAGE_BYTES, are in the head, which is the job's checkpoint. `cut_pages` moves
them to pages, which are stored before the head that names them: a head that takes never names a page
that is not there, and the page of an attempt that lost its claim is named by no head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from winch.core.errors import PayloadTooLarge
from winch.core.steps import (
    MAX_HISTORY_BYTES,
    PAGE_BYTES,
    Compensation,
    StepHistory,
    StepRecord,
    read_page,
)

_encode = msgspec.json.Encoder().encode


class History:
    """The records by name, in the order in which they came."""

    def __init__(self, head: StepHistory) -> None:
        self.records: dict[str, StepRecord] = {step.name: step for step in head.steps}
        self._newest: dict[str, bytes] = {step.name: _encode(step) for step in head.steps}
        self._bytes = sum(map(len, self._newest.values()))
        self.compensation: Compensation | None = head.compensation
        self.checkpoint: str | None = head.checkpoint
        self.pages: tuple[str, ...] = head.pages
        self.page_bytes: int = head.page_bytes
        self.life: int = head.life
        self.args: str | None = head.args
        self.version: int = head.version
        self.attempts: int = head.attempts
        self.cut: str | None = head.cut
        self.is_whole: bool = not head.pages
        self._cuts = len(head.pages)  # counted on: no page takes the key of another
        self.left: tuple[str, ...] = ()
        """Pages that no head names any more."""

    # -- records -----------------------------------------------------------------------------------

    def put(self, record: StepRecord) -> None:
        """Take the record into the history."""
        raw = _encode(record)
        before = self._newest.get(record.name)
        self._bytes += len(raw) - (0 if before is None else len(before))
        self._newest[record.name] = raw
        self.records[record.name] = record

    def check_room(self, record: StepRecord) -> None:
        """Raises PayloadTooLarge where the history cannot take the record."""
        size = self.page_bytes + self._bytes + len(record.result or "")
        if size > MAX_HISTORY_BYTES:
            raise PayloadTooLarge(
                f"the history of {len(self.records) + 1} steps is {size:,} bytes; the limit is "
                f"{MAX_HISTORY_BYTES:,}. Start over with ctx.restart, let steps return references to "
                "their data, or spawn child jobs, which have their own histories"
            )

    def keep(self, wanted: Callable[[StepRecord], bool]) -> None:
        """Drop the records that are not wanted. Pages are written anew where one has such a record."""
        gone = [record.name for record in self.records.values() if not wanted(record)]
        if not gone:
            return
        for name in gone:
            del self.records[name]
            self._newest.pop(name, None)
        if self.pages:
            self._newest = {name: _encode(one) for name, one in self.records.items()}
            self._leave_pages()
        self._bytes = sum(map(len, self._newest.values()))

    def _leave_pages(self) -> None:
        self.left += self.pages
        self.pages, self.page_bytes = (), 0

    def cut_from(self, step: str, mark: str) -> None:
        """Forget this step and those after it, once for an order with this mark."""
        if mark == self.cut:
            return
        self.cut = mark
        self.life += 1
        if step in self.records:
            place = self.records[step].place
            self.keep(lambda record: record.place < place)

    def restart(self, args: str, version: int, attempts: int) -> None:
        """Begin another life with these arguments; so many attempts were before it."""
        self.args, self.version, self.attempts = args, version, attempts
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all steps: the job begins another life."""
        self.records, self._newest, self._bytes = {}, {}, 0
        self._leave_pages()
        self.compensation = self.checkpoint = None
        self.life += 1

    @property
    def to_undo(self) -> tuple[StepRecord, ...]:
        """What is done and has an undo that did not run yet, latest first."""
        found = [s for s in self.records.values() if s.has_undo and s.is_done and not s.is_undone]
        return tuple(sorted(found, key=lambda step: step.place, reverse=True))

    # -- texts -------------------------------------------------------------------------------------

    def text(self, record: StepRecord | None = None) -> str:
        """The head as it is stored, with one more record that is not taken in yet."""
        newest = self._newest
        if record is not None:
            newest = {**newest, record.name: _encode(record)}
        head = _encode(
            StepHistory(
                compensation=self.compensation,
                checkpoint=self.checkpoint,
                pages=self.pages,
                page_bytes=self.page_bytes,
                life=self.life,
                args=self.args,
                version=self.version,
                attempts=self.attempts,
                cut=self.cut,
            )
        )
        return (b'%b,"steps":%b}' % (head[:-1], _joined(newest.values()))).decode()

    @property
    def is_long(self) -> bool:
        """Whether the newest steps are to move to pages."""
        return self._bytes > PAGE_BYTES

    def cut_pages(self, mark: str) -> list[tuple[str, str]]:
        """Move the newest steps to pages: key and text of each, to be stored before the next head.
        `mark` is the attempt's, so that no two attempts write the same page."""
        cut: list[tuple[str, str]] = []
        raws: list[bytes] = []
        last = len(self._newest) - 1
        for number, raw in enumerate(self._newest.values()):
            raws.append(raw)
            if number == last or sum(map(len, raws)) > PAGE_BYTES:
                cut.append((f"{self._cuts:04x}.{mark}", _joined(raws).decode()))
                self._cuts += 1
                raws = []
        self.pages += tuple(key for key, _ in cut)
        self.page_bytes += self._bytes
        self._newest, self._bytes = {}, 0
        return cut

    def take_pages(self, pages: Sequence[str]) -> None:
        """Take in the texts of all pages, oldest first."""
        found = {step.name: step for page in pages for step in read_page(page)}
        found.update(self.records)
        self.records = found
        self.is_whole = True


def _joined(raws: Iterable[bytes]) -> bytes:
    return b"[%b]" % b",".join(raws)
