"""What a driver must do instead, for each capability that it declares absent: refuse it clearly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from winch.core.errors import ConfigError, SchemaMismatch
from winch.core.gates import LIMIT, GateUse, with_gates
from winch.core.job import Note
from winch.storage.params import ClaimRef, Line
from winch.testing.conformance.bench import Bench


def is_durable(bench: Bench) -> None:
    """Nothing survives: whoever opens the store later finds it empty, not half of it."""
    finds_nothing_elsewhere(bench)


def shares_processes(bench: Bench) -> None:
    """A second process gets a store of its own, not a view of this one that sometimes works."""
    finds_nothing_elsewhere(bench)


def joins_transactions(bench: Bench) -> None:
    """`conn=` raises ConfigError, and the message says what to use instead."""
    new = bench.new_job()
    message = bench.refusal(object(), bench.driver.enqueue([new], now=bench.now))
    assert "conn" in message
    assert "transaction" in message
    assert "://" in message, "the message names a store that can do it"
    assert bench.find(new.id) == [None]


def keeps_events(bench: Bench) -> None:
    """Asking for events="full" raises ConfigError, and the message names the setting."""
    message = ""
    try:
        bench.target.fresh(events=True).close()
    except ConfigError as error:
        message = str(error)
    assert "events" in message, f"events= must be refused by name, got {message!r}"


def keeps_books(bench: Bench) -> None:
    """Writing a line raises ConfigError, and the message names a store that keeps books."""
    message = ""
    try:
        bench.call(bench.driver.write_lines([Line(book="audit", key="1", body="{}")]))
    except ConfigError as error:
        message = str(error)
    assert "://" in message, f"the message names a store that can do it, got {message!r}"


def migrates_itself(bench: Bench) -> None:
    """A verb on a store without a schema raises SchemaMismatch, and the message says what to run."""
    with bench.target.blank() as driver:
        message = ""
        try:
            driver.run(driver.counts())
        except SchemaMismatch as error:
            message = str(error)
        assert "winch migrate" in message, f"expected `winch migrate` to be named, got {message!r}"
        assert driver.check_schema().current is None


def has_schedules(bench: Bench) -> None:
    """Asking for schedules raises ConfigError, and the message names them."""
    message = ""
    try:
        bench.call(bench.driver.schedules())
    except ConfigError as error:
        message = str(error)
    assert "schedules" in message, f"schedules must be refused by name, got {message!r}"


def keeps_undo(bench: Bench) -> None:
    """Noting that something is to be undone raises ConfigError, and the message names the option."""
    bench.add()
    claim = bench.take()
    message = ""
    try:
        bench.call(bench.driver.note(ClaimRef(claim.id, claim.token), Note(has_undo=True)))
    except ConfigError as error:
        message = str(error)
    assert "undo=" in message, f"undo= must be refused by name, got {message!r}"


def has_waits(bench: Bench) -> None:
    """Sending a signal raises ConfigError, and the message names a store that keeps them."""
    message = ""
    try:
        bench.call(bench.driver.signal("go", "1", id="1", now=bench.now))
    except ConfigError as error:
        message = str(error)
    assert "signals" in message, f"signals must be refused by name, got {message!r}"
    assert "://" in message, "the message names a store that can do it"


def has_unique_windows(bench: Bench) -> None:
    """A job that needs them is refused by name, and not stored."""
    new = bench.new_job(unique_key="k", unique_within=timedelta(hours=1))
    message = ""
    try:
        bench.enqueue(new)
    except ConfigError as error:
        message = str(error)
    assert "within" in message, f"within= must be refused by name, got {message!r}"
    assert bench.find(new.id) == [None]


def finds_nothing_elsewhere(bench: Bench) -> None:
    job_id = bench.add()
    other = bench.target.another()
    try:
        assert other.run(other.get([job_id])) == [None]
    finally:
        other.close()


def has_gates(bench: Bench) -> None:
    """A job with gates is refused when it is enqueued: it must not run as if it had none."""
    options = with_gates(None, [GateUse("limit:mail", LIMIT, "limit:mail", n=1)])
    new = bench.new_job(options=options)
    message = ""
    try:
        bench.enqueue(new)
    except ConfigError as error:
        message = str(error)
    assert "limit" in message, f"limits must be refused by name, got {message!r}"
    assert bench.find(new.id) == [None]


REFUSALS: Mapping[str, Callable[[Bench], None]] = {
    "is_durable": is_durable,
    "shares_processes": shares_processes,
    "joins_transactions": joins_transactions,
    "keeps_events": keeps_events,
    "keeps_books": keeps_books,
    "migrates_itself": migrates_itself,
    "has_gates": has_gates,
    "has_schedules": has_schedules,
    "keeps_undo": keeps_undo,
    "has_waits": has_waits,
    "has_unique_windows": has_unique_windows,
}
