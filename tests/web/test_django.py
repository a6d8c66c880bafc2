"""The site inside a Django project, in a process of its own: Django is configured once per process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_site_in_a_django_project(tmp_path: Path) -> None:
    script = Path(__file__).parent / "django_site.py"
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    done = subprocess.run(
        [sys.executable, script, url], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "all is well\n", done.stdout + done.stderr
