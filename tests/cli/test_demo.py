"""The tour itself: if it ends well, most of Winch works."""

from __future__ import annotations

import ast
from pathlib import Path

import winch.demo
from tests.cli.command import Command

PUBLIC = {"winch", "winch.types", "winch.errors"}


def test_demo_ends_as_it_should(winch: Command) -> None:
    answer = winch("demo", url=None, TMPDIR=str(winch.folder))
    assert answer.code == 0, answer.out + answer.err
    assert answer.err == ""
    assert "WRONG" not in answer.out
    assert "ended as they should" in answer.out.splitlines()[-1]
    for line in ("kill -9", "is running, attempt 1", "due in", "lost its process, killed by SIGKILL"):
        assert line in answer.out
    assert not list(winch.folder.glob("winch-demo-*")), "it leaves nothing behind"


def test_the_demo_is_an_application_made_of_public_names() -> None:
    private = set()
    for path in Path(winch.demo.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("winch"):
                private |= {node.module} - PUBLIC
    assert {name for name in private if name and not name.startswith("winch.demo")} == {
        "winch.web.server.serve_process"
    }
