"""Wall clocks that a test can move, one for each group of processes that is given it."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SHIM = Path(__file__).with_name("clock_shim.c")
PYTHON_CLOCK = Path(__file__).with_name("python_clock")  # where there is no C compiler


class MovableClock:
    """A wall clock for worker processes, moved by `set`; the monotonic clocks are left alone."""

    def __init__(self, folder: Path, name: str) -> None:
        self._offset = folder / f"clock-{name}"
        self._library = folder / "clock_shim.so"
        self.set(0)
        compiler = shutil.which("cc")
        if compiler is not None and not self._library.exists():
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, SHIM, "-ldl"], check=True
            )

    def set(self, seconds: int) -> None:
        """From now on the clock shows this many seconds more than it should."""
        if not self._offset.exists():
            self._offset.write_bytes(struct.pack("=q", 0))
        with self._offset.open("r+b") as file:  # in place: the processes have it mapped
            file.write(struct.pack("=q", seconds))

    @property
    def env(self) -> dict[str, str]:
        if self._library.exists():
            return {"LD_PRELOAD": str(self._library), "WINCH_TEST_CLOCK": str(self._offset)}
        return {"PYTHONPATH": str(PYTHON_CLOCK), "WINCH_TEST_CLOCK": str(self._offset)}
