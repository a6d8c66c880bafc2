"""`python -m winch.testing.chaos`: the reliability lab of a checkout of Winch.

The lab starts servers, mounts small file systems and sends signals, with the help of the tests; it lies
in the folder `lab/` of the source and is not installed with the package.
"""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def main() -> None:
    if (ROOT / "lab" / "__main__.py").is_file():
        sys.path.insert(0, str(ROOT))
    if find_spec("lab") is None:
        sys.exit("the reliability lab is not installed with Winch; run this in a checkout of its source")
    runpy.run_module("lab", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
