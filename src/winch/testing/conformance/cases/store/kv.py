"""kv_put, kv_swap, kv_list, kv_delete: the records that Winch keeps beside the jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from winch.storage.kv_records import KvFilter, KvRecord
from winch.testing.conformance.bench import HOUR, SECOND, Bench
from winch.testing.conformance.case import case

MINUTE = timedelta(minutes=1)


def write(bench: Bench, *keys: str, book: str = "audit", body: str = "{}", **fields: timedelta) -> None:
    lines = [KvRecord(book=book, key=key, body=body, **fields) for key in keys]
    bench.call(bench.driver.kv_put(lines, now=bench.now))


def keys(bench: Bench, book: str = "audit", **fields: object) -> list[str]:
    which = KvFilter(book=book, **fields)  # type: ignore[arg-type]  # the cases name real fields
    return [line.key for line in bench.call(bench.driver.kv_list(which, now=bench.now))]


@case()
def a_line_is_read_back_as_it_was_written(bench: Bench) -> None:
    write(bench, "k", body='{"who": "ada \\u2028 <b>"}')
    [line] = bench.call(bench.driver.kv_list(KvFilter(book="audit"), now=bench.now))
    assert line == KvRecord(book="audit", key="k", body='{"who": "ada \\u2028 <b>"}')


@case()
def a_line_of_the_same_key_is_replaced(bench: Bench) -> None:
    write(bench, "k", body="1")
    write(bench, "k", body="2")
    [line] = bench.call(bench.driver.kv_list(KvFilter(book="audit"), now=bench.now))
    assert line.body == "2"


@case()
def lines_come_by_key_as_bytes_and_books_are_apart(bench: Bench) -> None:
    write(bench, "b", "A", "a", "é", "1", "-")
    write(bench, "z", book="token")
    assert keys(bench) == ["-", "1", "A", "a", "b", "é"]
    assert keys(bench, is_newest_first=True) == ["é", "b", "a", "A", "1", "-"]
    assert keys(bench, "token") == ["z"]


@case()
def a_range_and_a_limit_bound_what_is_read(bench: Bench) -> None:
    write(bench, "a", "b", "c", "d", "e")
    assert keys(bench, after="a", before="e") == ["b", "c", "d"]
    assert keys(bench, after="a", limit=2) == ["b", "c"]
    assert keys(bench, before="e", limit=2, is_newest_first=True) == ["d", "c"]


@case()
def a_line_is_gone_when_its_time_is_over(bench: Bench) -> None:
    write(bench, "short", keep=MINUTE)
    write(bench, "long")
    bench.advance(MINUTE - SECOND)
    assert keys(bench) == ["long", "short"]
    bench.advance(2 * SECOND)
    assert keys(bench) == ["long"]
    write(bench, "short", keep=MINUTE)
    assert keys(bench) == ["long", "short"]


@case()
def struck_lines_are_gone_and_counted(bench: Bench) -> None:
    write(bench, "a", "b", "c")
    strike = bench.driver.kv_delete
    assert bench.call(strike("audit", ["a", "c", "nobody", "a"])) == 2
    assert bench.call(strike("token", ["b"])) == 0
    assert keys(bench) == ["b"]


@case()
def two_writers_of_the_same_lines_both_get_through(bench: Bench) -> None:
    there = [KvRecord(book="rate", key=f"{n:03}", body="1") for n in range(100)]
    back = list(reversed(there))
    verbs = [bench.driver.kv_put(lines, now=bench.now) for lines in (there, back) * 4]
    bench.together(verbs)
    assert len(keys(bench, "rate")) == 100


def swap(bench: Bench, body: str, instead_of: str | None = None, **fields: Any) -> str | None:
    line = KvRecord(**{"book": "once", "key": "k", "body": body, **fields})
    return bench.call(bench.driver.kv_swap(line, instead_of=instead_of, now=bench.now))


@case()
def a_line_is_kept_where_there_is_none(bench: Bench) -> None:
    assert swap(bench, "open a", keep=HOUR) is None
    assert swap(bench, "open b", keep=HOUR) == "open a"
    assert swap(bench, "open b", key="other") is None
    bench.advance(HOUR)
    assert swap(bench, "open c") is None
    bench.advance(HOUR)
    assert swap(bench, "open d") == "open c"


@case()
def a_line_takes_the_place_of_the_one_it_expects(bench: Bench) -> None:
    swap(bench, "open a 1")
    assert swap(bench, "done", instead_of="open a 2") == "open a 1"
    assert swap(bench, "open a 2", instead_of="open a ") is None
    assert swap(bench, "done ü", instead_of="open a 2") is None
    assert swap(bench, "open b") == "done ü"


@case()
def of_lines_kept_at_the_same_time_one_is(bench: Bench) -> None:
    for number in range(5):
        lines = [KvRecord(book="once", key=f"{number}", body=f"by {n}", keep=HOUR) for n in range(4)]
        verbs = [bench.driver.kv_swap(line, now=bench.now) for line in lines]
        answers = bench.together(verbs)
        assert answers.count(None) == 1
        winner = lines[answers.index(None)].body
        assert {answer for answer in answers if answer is not None} == {winner}
