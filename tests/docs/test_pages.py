"""The documentation says what is true: examples run, lists are complete, links lead somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import winch
import winch.testing
from winch.core.lifecycle import JobState
from winch.engine.base.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    for name in Settings.__struct_fields__:
        assert f"| `{name}` | `WINCH_{name.upper()}` |" in text


def test_every_state_is_in_the_glossary() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    for state in JobState:
        assert state in text


def test_the_lifecycle_page_is_the_table() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/lifecycle_page.py", "--check"], check=False)
    assert done.returncode == 0, "run scripts/lifecycle_page.py"


@pytest.mark.parametrize("package", [winch, winch.testing], ids=lambda package: package.__name__)
def test_public_names_are_sorted_and_real(package: Any) -> None:
    # Constants first, as the linter wants it.
    in_order = sorted(package.__all__, key=lambda name: (not name.isupper(), name))
    assert package.__all__ == in_order
    assert sorted(package._HOMES) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__doc__, f"{name} has no docstring"


def examples(page: Path) -> list[str]:
    """The Python blocks of a page that are meant to run."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_the_readme_example_runs_as_pasted(tmp_path: Path) -> None:
    [shop, *_] = examples(ROOT / "README.md")
    (tmp_path / "shop.py").write_text(shop)
    enqueue = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    job_id, state = enqueue.stdout.split()
    assert state == "ready"
    command = [
        sys.executable,
        "-m",
        "winch",
        "worker",
        "-A",
        "shop:app",
        "-Q",
        "mail,default",
        "--burst",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60, capture_output=True)
    shown = subprocess.run(
        [sys.executable, "-m", "winch", "jobs", "list", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert job_id in shown.stdout
    assert "completed" in shown.stdout


def test_the_quickstart_runs_as_pasted(tmp_path: Path) -> None:
    mailer, enqueue, transaction = examples(ROOT / "docs/quickstart.md")
    (tmp_path / "mailer.py").write_text(mailer)
    (tmp_path / "run.py").write_text(enqueue + "\nfrom mailer import app\n" + transaction)
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "No worker serves its queue 'default'" in done.stdout


def test_the_transaction_examples_are_python() -> None:
    found = examples(ROOT / "docs/howto/transactions.md")
    assert found
    for example in found:
        compile(example, "transactions.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_limits_page_runs_as_pasted() -> None:
    scope: dict[str, Any] = {}
    for example in examples(ROOT / "docs/howto/limits.md"):
        exec(compile(example, "limits.md", "exec"), scope)  # noqa: S102  # our own page
    [plain, keyed] = sorted(scope["app"].limits.list(), key=lambda one: one.name)
    assert (plain.name, keyed.name) == ("rate:shop.charge:provider", "tenant:acme")
    assert {str(job.state) for job in scope["app"].jobs.list()} == {"ready"}


def test_the_pages_on_schedules_and_queues_run_as_pasted(tmp_path: Path) -> None:
    for page in ("schedules", "queues"):
        example = "\n".join(examples(ROOT / f"docs/howto/{page}.md"))
        (tmp_path / "page.py").write_text(example)
        subprocess.run([sys.executable, "page.py"], cwd=tmp_path, check=True)


def test_the_workflow_page_runs_as_pasted(tmp_path: Path) -> None:
    saga, *others = examples(ROOT / "docs/howto/workflows.md")
    run = """
from winch.testing import virtual
with virtual(app) as world:
    job, number = checkout.enqueue(7), order.enqueue(7)
    world.run_all()
    print(job.result(), number.refresh().state)
    other = checkout.enqueue(8)
    world.advance("1m")
    other.cancel()
    world.run_all()
    print(other.refresh().state)
"""
    (tmp_path / "saga.py").write_text("\n".join([saga, *others]) + run)
    done = subprocess.run(
        [sys.executable, "saga.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["paid hold-7 completed", "released hold-8", "cancelled"]


def test_the_flow_page_runs_as_pasted(tmp_path: Path) -> None:
    [shapes] = examples(ROOT / "docs/howto/flows.md")
    run = """
from winch.testing import virtual
with virtual(app) as world:
    made = compose()
    world.run_all()
    print(*[one.result() for one in made], sep="; ")
"""
    (tmp_path / "shapes.py").write_text(shapes + run)
    done = subprocess.run(
        [sys.executable, "shapes.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *callbacks, results = done.stdout.splitlines()
    assert sorted(callbacks) == ["all good", "over"]
    assert results == "<a>@100; 2; ['<a>', '<b>', '<c>']; 2"


def test_the_outbox_page_runs_as_pasted(tmp_path: Path) -> None:
    page = "\n".join(examples(ROOT / "docs/howto/outbox.md"))
    run = """
with app.transaction() as conn:
    conn.execute("CREATE TABLE paid (id integer, total integer)")
pay(42, 990)
app.run_worker(burst=True)
"""
    (tmp_path / "orders.py").write_text(page + run)
    done = subprocess.run(
        [sys.executable, "orders.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" 42 {'total': 990}\n")


def test_the_testing_page_runs_as_pasted(tmp_path: Path) -> None:
    page = ROOT / "docs/howto/testing.md"
    tests = 0
    for example in examples(page):
        [name] = re.findall(r"\A# (\S+\.py)\n", example)
        (tmp_path / name).write_text(example)
        tests += len(re.findall(r"^def test_", example, flags=re.MULTILINE))
    [settings] = re.findall(r"```toml\n(.*?)```", page.read_text(), flags=re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-Werror", "-pno:anyio", "-pno:valkey"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # Three of them are one test for three places to crash at.
    assert f"{tests + 2} passed" in done.stdout
    assert not (tmp_path / "winch.db").exists()
