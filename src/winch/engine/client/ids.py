"""Random bytes of the system, drawn ahead: asking for eight costs as much as asking for hundreds."""

from __future__ import annotations

import os

USUAL = 8
AHEAD = 64

_drawn: list[bytes] = []


def entropy(count: int) -> bytes:
    """So many random bytes. Those of a job's id, for which most calls ask, come out of a drawer."""
    if count != USUAL:
        return os.urandom(count)
    try:
        return _drawn.pop()
    except IndexError:
        first, *others = _pieces(os.urandom(USUAL * AHEAD))
        _drawn.extend(others)
        return first


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + USUAL] for at in range(0, len(data), USUAL)]


# Parent and child would draw the same ones.
os.register_at_fork(after_in_child=_drawn.clear)
