"""Run a command with a temporary PostgreSQL server beside it.

    python scripts/with_postgres.py -- psql '{url}'
    python scripts/with_postgres.py -- make test
    python scripts/with_postgres.py --env WINCH_URL -- winch worker -A shop:app

The command finds the server's URL in $WINCH_TEST_PG (or the variable given by --env), and in place of
{url} in its arguments. The server and its data are gone when the command ends; the exit code is
the command's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# The harness is not installed with the package; it is found next to this script.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.servers import PostgresServer, ServerError, find_postgres


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="WINCH_TEST_PG", help="variable that holds the URL")
    parser.add_argument("--bin", help="system, wheel, or a folder with initdb and postgres")
    parser.add_argument("--no-fsync", action="store_true", help="faster, not durable")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)

    try:
        bin_folder = find_postgres(options.bin)
        with PostgresServer(fsync=not options.no_fsync, bin_folder=bin_folder) as server:
            command = [word.replace("{url}", server.url) for word in options.command]
            return run(command, os.environ | {options.env: server.url})
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while True:
        # Ctrl-C reaches the command as well; it decides what that means, the server waits for it.
        with suppress(KeyboardInterrupt):
            code = child.wait()
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
