"""What differs between stores, as data: shown in the docs, and tested both ways."""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """A False here is a declared absence; the conformance suite checks that it is refused clearly."""

    is_durable: bool = True
    """An acknowledged enqueue survives the death of every process, the store's included."""
    shares_processes: bool = True
    """Several processes may use the store at once."""
    joins_transactions: bool = True
    """`conn=` puts the enqueue into the caller's own transaction."""
    migrates_itself: bool = True
    """The schema is made and upgraded at first use; `winch migrate` is not needed."""
