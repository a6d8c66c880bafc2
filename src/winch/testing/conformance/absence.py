"""What a driver must do instead, for each capability that it declares absent: refuse it clearly."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from winch.core.errors import SchemaMismatch
from winch.testing.conformance.bench import Bench


def is_durable(bench: Bench) -> None:
    """Nothing survives: a process that opens the store later finds it empty, not half of it."""
    finds_nothing_elsewhere(bench)


def shares_processes(bench: Bench) -> None:
    """A second process gets a store of its own, not a view of this one that sometimes works."""
    finds_nothing_elsewhere(bench)


def joins_transactions(bench: Bench) -> None:
    """`conn=` raises ConfigError, and the message names what to use instead."""
    new = bench.new_job()
    message = bench.refusal(object(), bench.driver.enqueue([new], now=bench.now))
    assert "conn" in message
    assert "transaction" in message
    assert "://" in message, "the message names a store that can do it"
    assert bench.find(new.id) == [None]


def migrates_itself(bench: Bench) -> None:
    """A verb on a store without a schema raises SchemaMismatch, and the message names the command to
    run."""
    with bench.target.blank() as driver:
        message = ""
        try:
            driver.run(driver.counts())
        except SchemaMismatch as error:
            message = str(error)
        assert "winch migrate" in message, f"expected `winch migrate` to be named, got {message!r}"
        assert driver.check_schema().current is None


def finds_nothing_elsewhere(bench: Bench) -> None:
    job_id = bench.add()
    other = bench.target.another()
    try:
        assert other.run(other.get([job_id])) == [None]
    finally:
        other.close()


REFUSALS: Mapping[str, Callable[[Bench], None]] = {
    "is_durable": is_durable,
    "shares_processes": shares_processes,
    "joins_transactions": joins_transactions,
    "migrates_itself": migrates_itself,
}
