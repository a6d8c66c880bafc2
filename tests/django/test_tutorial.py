"""docs/tutorials/django.md, followed word for word in a new project."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from tests.server_process import free_port

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "django.md"
BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)
# What runs on until it is stopped, or is done by the environment of the tests.
NOT_HERE = ("pip", "curl", "python manage.py winch worker", "python manage.py runserver")


class Project:
    """A folder, with the commands that a reader types there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WINCH_")}
        self.env = {**kept, "DJANGO_SUPERUSER_PASSWORD": "secret"}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def type(self, line: str) -> None:
        program, *words = line.split()
        if words[1:] == ["createsuperuser"]:
            words += ["--noinput", "--username", "ada", "--email", "ada@example.org"]
        module = ["-m", "django"] if program == "django-admin" else []
        self.run(*module, *words)

    def write(self, code: str) -> None:
        """Put a block into the file that its first line names; settings are added at the end."""
        path = self.folder / code.partition("\n")[0].removeprefix("# ")
        before = path.read_text() if path.name == "settings.py" else ""
        path.write_text(before + code)
        if path.name == "settings.py" and importlib.util.find_spec("django.tasks") is None:
            path.write_text(f'{path.read_text()}INSTALLED_APPS += ["django_tasks"]\n')


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """The project as it is after the commands and files of the page."""
    project = Project(tmp_path)
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "python":
            project.write(text)
            continue
        for line in text.strip().splitlines():
            command = line.removeprefix("$ ")
            if not command.startswith(NOT_HERE):
                project.type(command)
    return project


def test_the_tutorial_works(project: Project) -> None:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "manage.py", "runserver", "--noreload", str(port)],
        cwd=project.folder,
        env=project.env,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        base = f"http://localhost:{port}"
        assert server.stdout is not None
        for line in server.stdout:
            if "Quit the server" in line:
                break
        threading.Thread(target=server.communicate, daemon=True).start()  # nothing may fill its pipes
        created = httpx.post(f"{base}/orders", data={"number": "7"}, timeout=30)
        assert (created.status_code, list(created.json())) == (202, ["job"])
        assert httpx.get(f"{base}/orders/7").json() == {"receipt": None}
        project.run("manage.py", "winch", "worker", "--batch")
        assert httpx.get(f"{base}/orders/7").json() == {"receipt": "receipt for 7"}
        jobs = httpx.get(f"{base}/jobs/", headers={"accept": "text/html"})
        assert (jobs.status_code, jobs.headers["location"]) == (302, "/admin/login/?next=/jobs/")
        with httpx.Client(base_url=base, follow_redirects=True) as client:
            client.get("/admin/login/")
            form = {"username": "ada", "password": "secret", "next": "/admin/winch/job/"}
            form["csrfmiddlewaretoken"] = client.cookies["csrftoken"]
            page = client.post("/admin/login/", data=form)
            assert created.json()["job"] in page.text
            shown = client.get(f"/jobs/jobs/{created.json()['job']}", headers={"accept": "text/html"})
            assert "shop.tasks.write_receipt" in shown.text
    finally:
        server.kill()
        server.wait()
