from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winch.core.errors import ConfigError
from winch.core.values.ids import RUN, JobIds, job_id, job_ids, parse_id, random_id

TICKS = st.integers(0, 2**60 - 1)


@settings(max_examples=30)
@given(TICKS, st.binary(min_size=8, max_size=8))
def test_job_ids_are_version_7_and_hold_the_time(tick: int, random: bytes) -> None:
    made = uuid.UUID(job_id(tick, random))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == tick >> 12  # milliseconds, as the standard has it
    assert str(made) == job_id(tick, random)


@settings(max_examples=30)
@given(TICKS, TICKS, st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8))
def test_job_ids_sort_by_time_as_text(a: int, b: int, one: bytes, other: bytes) -> None:
    if a != b:
        assert (job_id(a, one) < job_id(b, other)) is (a < b)


@settings(max_examples=30)
@given(TICKS, st.integers(0, 1000), st.integers(1, 700))
def test_ids_drawn_together_take_the_places_in_turn(tick: int, place: int, count: int) -> None:
    made = job_ids(tick, bytes(range(1, 9)) * count, place)
    assert [int(one[19:21], 16) - 0x80 for one in made] == [
        (place + at // RUN) % 64 if count > 1 else place % 64 for at in range(count)
    ]
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert {one[21:] for one in made} == {"02-030405060708"}
    assert len(set(made)) == count


@settings(max_examples=30)
@given(st.binary(min_size=16, max_size=16))
def test_random_ids_are_version_4(random: bytes) -> None:
    made = uuid.UUID(random_id(random))
    assert (made.version, made.variant) == (4, uuid.RFC_4122)
    assert str(made) == random_id(random)


def test_every_random_bit_but_the_fixed_ones_is_kept() -> None:
    seen = {random_id((1 << bit).to_bytes(16, "big")) for bit in range(128)}
    assert len(seen) >= 128 - 6
    seen = {job_id(0, (1 << bit).to_bytes(8, "big")) for bit in range(64)}
    assert len(seen) >= 64 - 2


@pytest.mark.parametrize(
    "given_id",
    [
        "018f5b3a-7c1d-7000-8000-000000000001",
        "018F5B3A-7C1D-7000-8000-000000000001",
        "018f5b3a7c1d70008000000000000001",
        "{018f5b3a-7c1d-7000-8000-000000000001}",
        uuid.UUID("018f5b3a-7c1d-7000-8000-000000000001"),
    ],
)
def test_an_id_is_one_text_however_it_was_written(given_id: str | uuid.UUID) -> None:
    assert parse_id(given_id) == "018f5b3a-7c1d-7000-8000-000000000001"


@pytest.mark.parametrize("given_id", ["", "41", "not-a-uuid", None, 41, "018f5b3a-7c1d-7000-8000"])
def test_an_invalid_uuid_is_refused_by_name(given_id: object) -> None:
    with pytest.raises(ConfigError, match="job id must be a UUID"):
        parse_id(given_id, "job id")  # type: ignore[arg-type]  # what a caller without types may pass


def test_one_id_is_the_first_of_many() -> None:
    for byte in (0x00, 0x3F, 0x80, 0xC7, 0xFF):
        random = bytes([byte, *range(7)])
        for place in (None, 0, 63, 64, 1000):
            tick = 7 * 10**15 + byte
            assert job_id(tick, random, place) == job_ids(tick, random, place)[0]


def test_ids_are_not_drawn_for_places_that_are_avoided() -> None:
    now = 1_000.0
    ids = JobIds(lambda: now, bytes)
    unfit = set(range(64)) - {7, 40}
    ids.avoid(unfit)
    drawn = [ids.draw() for _ in range(20)]
    assert {_place_of(one) for one in drawn} == {7, 40}
    many = ids.draw_many(450)
    assert {_place_of(one) for one in many} == {7, 40}
    assert [*drawn, *many] == sorted({*drawn, *many})
    now += 1.1
    assert {_place_of(ids.draw()) for _ in range(64)} == set(range(64))


def test_ids_are_drawn_even_if_every_place_is_avoided() -> None:
    ids = JobIds(lambda: 1_000.0, bytes)
    ids.avoid(range(64))
    assert {_place_of(ids.draw()) for _ in range(64)} == set(range(64))


def _place_of(job_id: str) -> int:
    return int(job_id[19:21], 16) & 0x3F
