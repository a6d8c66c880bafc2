"""What pyright says about Winch: about the calls in tests/typing, and about every public type.

The second question is asked from an empty folder: pyright takes a package that lies in the folder it is
run from for a project to check, not for an installed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def main() -> int:
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "VIRTUAL_ENV": str(BIN.parent)}
    calls = subprocess.run([BIN / "basedpyright"], cwd=ROOT, env=env, check=False)
    with tempfile.TemporaryDirectory() as empty:
        command = [str(BIN / "basedpyright"), "--ignoreexternal", "--verifytypes", "winch"]
        types = subprocess.run(command, cwd=empty, env=env, capture_output=True, text=True, check=False)
    lines = types.stdout.splitlines()
    for line in lines:
        if " error: " in line or "Type completeness score" in line:
            print(line.strip())
    return calls.returncode or types.returncode


if __name__ == "__main__":
    sys.exit(main())
