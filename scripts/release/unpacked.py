"""Unpack the source archive in dist/ and run `make check` there, in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.release.dist import DIST, unpack


def main() -> int:
    archives = list(DIST.glob("*.tar.gz"))
    if len(archives) != 1:
        raise SystemExit("run `make dist` first: dist/ holds no source archive, or several")
    with tempfile.TemporaryDirectory(prefix="winch-sdist-") as folder:
        source = unpack(archives[0], Path(folder))
        # Not this environment's interpreter: the archive makes its own from the one below it.
        python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        return subprocess.run(["make", f"PYTHON={python}", "check"], cwd=source, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
