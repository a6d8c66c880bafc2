"""Holds the write lock of a SQLite database; prints `held` once it has it.

python -m tests.faults.hold_sqlite FILE SECONDS
"""

from __future__ import annotations

import sqlite3
import sys
import time


def main(path: str, seconds: float) -> None:
    conn = sqlite3.connect(path, isolation_level=None, timeout=10)
    conn.execute("BEGIN EXCLUSIVE")
    sys.stdout.write("held\n")
    sys.stdout.flush()
    time.sleep(seconds)
    conn.execute("ROLLBACK")
    # Closing could checkpoint beside a writer, which is not what this is about.
    sys.stdout.write("over\n")
    sys.stdout.flush()
    time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
