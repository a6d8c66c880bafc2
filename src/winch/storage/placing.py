"""What a store that spreads jobs over places answers when the place of an id cannot take its job."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from winch.core.errors import StorageUnavailable
from winch.storage.params import Enqueued


class NotPlaced(StorageUnavailable):
    """Some jobs are not stored, because the places that their ids name cannot take them now. Under ids
    of other places they can be.

    - `answers`: one for each job of the call; None for a job that is surely not stored.
    - `unfit`: the places that take no jobs now (`core.values.ids`).
    """

    def __init__(self, message: str, answers: Sequence[Enqueued | None], unfit: Collection[int]) -> None:
        super().__init__(message, maybe_applied=any(answer is not None for answer in answers))
        self.answers = answers
        self.unfit = unfit
