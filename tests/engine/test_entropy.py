"""Random bytes drawn ahead are given once, in every process."""

from __future__ import annotations

import os

from winch.engine.client.ids import AHEAD, USUAL, entropy


def test_pieces_drawn_ahead_are_given_once() -> None:
    drawn = [entropy(USUAL) for _ in range(3 * AHEAD)]
    assert len(set(drawn)) == len(drawn)
    assert {len(piece) for piece in drawn} == {USUAL}
    assert len(entropy(16)) == 16


def test_a_forked_child_draws_its_own() -> None:
    entropy(USUAL)  # the drawer is not empty
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"".join(entropy(USUAL) for _ in range(AHEAD)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as end:
        theirs = end.read()
    os.waitpid(pid, 0)
    ours = {entropy(USUAL) for _ in range(AHEAD)}
    assert len(theirs) == USUAL * AHEAD
    assert not ours & {theirs[at : at + USUAL] for at in range(0, len(theirs), USUAL)}
