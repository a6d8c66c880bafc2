"""Winch with its three dependencies alone, as `pip install winch-jobs` brings it."""

from __future__ import annotations

import json
import re
import textwrap

from tests.bare.conftest import ROOT, Bare

FAILING = """
    import winch

    app = winch.App()


    @app.task(retry=winch.Retry.never())
    async def fails() -> None:
        raise ValueError("mailbox is full")


    @app.task(retry=winch.Retry.never())
    def fails_in_a_thread() -> None:
        raise ValueError("mailbox is full")


    if __name__ == "__main__":
        fails.enqueue()
        fails_in_a_thread.enqueue()
"""


def test_nothing_but_the_three_dependencies_is_installed(bare: Bare) -> None:
    listed = bare("-m", "pip", "list", "--format=json", "--disable-pip-version-check")
    names = {entry["name"].lower() for entry in json.loads(listed.stdout)}
    assert names - {"pip", "setuptools"} == {"winch-jobs", "click", "cronsim", "msgspec"}


def test_every_public_name_can_be_imported(bare: Bare) -> None:
    # `pytest` itself is no dependency: the plugin's names need it, as their docstrings state.
    code = "import winch; [getattr(winch, name) for name in winch.__all__]; print(winch.__version__)"
    done = bare("-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", done.stdout)


def test_the_example_of_the_readme_runs(bare: Bare) -> None:
    example = re.search(r"```python\n# shop\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    (bare.folder / "shop.py").write_text(example.group(1))
    produced = bare("shop.py")
    assert produced.returncode == 0, produced.stderr
    worked = bare("-m", "winch", "worker", "-A", "shop:app", "--burst", "-Q", "*")
    assert worked.returncode == 0, worked.stderr
    listed = bare("-m", "winch", "jobs", "list", "--json")
    states = {job["task"]: job["state"] for job in json.loads(listed.stdout)["jobs"]}
    assert states == {"shop.send_receipt": "completed"}


def test_a_failure_names_only_the_handler(bare: Bare) -> None:
    (bare.folder / "shop.py").write_text(textwrap.dedent(FAILING))
    assert bare("shop.py").returncode == 0
    worked = bare("-m", "winch", "worker", "-A", "shop:app", "--burst")
    assert worked.returncode == 0, worked.stderr
    listed = json.loads(bare("-m", "winch", "dead", "list", "--json").stdout)
    assert len(listed["jobs"]) == 2
    for job in listed["jobs"]:
        shown = json.loads(bare("-m", "winch", "jobs", "show", job["id"], "--json").stdout)
        traceback = shown["error"]["traceback"]
        frames = re.findall(r'File "(.*?)"', traceback)
        assert [frame.rsplit("/", 1)[-1] for frame in frames] == ["shop.py"], traceback
        assert "ImportError" not in traceback
        assert "During handling" not in traceback


def test_the_tour_runs_and_names_the_command_that_adds_the_dashboard(bare: Bare) -> None:
    tour = bare("-m", "winch", "demo")
    assert tour.returncode == 0, tour.stdout + tour.stderr
    assert "pip install 'winch-jobs[web]'" in tour.stdout + tour.stderr
    assert "ended as they should" in tour.stdout + tour.stderr


def test_a_missing_extra_is_named_with_the_command_that_adds_it(bare: Bare) -> None:
    for arguments, extra in [
        (("serve",), "web"),
        (("--url", "postgresql://localhost/x", "stats"), "postgres"),
        (("--url", "redis://localhost", "stats"), "redis"),
    ]:
        done = bare("-m", "winch", *arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert f"pip install 'winch-jobs[{extra}]'" in done.stderr
        assert "Traceback" not in done.stderr
