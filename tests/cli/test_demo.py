"""The tour itself: if it ends well, most of Winch works."""

from __future__ import annotations

from tests.cli.command import Command


def test_demo_ends_as_it_should(winch: Command) -> None:
    answer = winch("demo", url=None, TMPDIR=str(winch.folder))
    assert answer.code == 0, answer.out + answer.err
    assert answer.err == ""
    assert "WRONG" not in answer.out
    assert "ended as they should" in answer.out.splitlines()[-1]
    for told in ("kill -9", "is running, attempt 1", "due in", "lost its process, killed by SIGKILL"):
        assert told in answer.out
    assert not list(winch.folder.glob("winch-demo-*")), "it leaves nothing behind"
