"""Fingerprints: the same for deaths of one kind, different for others, whatever the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winch.core.job import Failure
from winch.core.values.fingerprint import fingerprint, frames, normal_message, trace

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/mail.py", line 7, in send
    deliver(user)
  File "/usr/lib/python3.12/smtplib.py", line 70, in sendmail
    raise SMTPDataError(code, resp)
smtplib.SMTPDataError: (554, 'no')
"""


@pytest.mark.parametrize(
    "one, other",
    [
        ("no user 7", "no user 12"),
        ("took 1.5 s of 2", "took 30,000.25 s of -1"),
        ("object at 0x7f00AB", "object at 0x1"),
        ("id 0190f5a0-93f1-7cc0-8bcb-9d6e9a2b1c3d", "id FFFFFFFF-93f1-7cc0-8bcb-000000000000"),
        ("no key 'a b'", "no key 'it'"),
        ('no key "x"', 'no key ""'),
        ("commit deadbeef01 is gone", "commit 0123456789abcdef is gone"),
        ("a\n  b", "a b"),
    ],
)
def test_variable_parts_of_a_message_do_not_change_the_fingerprint(one: str, other: str) -> None:
    assert fingerprint("t", Failure("E", one)) == fingerprint("t", Failure("E", other))


@pytest.mark.parametrize(
    "one, other",
    [
        ("can't open it, won't retry", "can't close it, won't retry"),  # apostrophes are no quotes
        ("no user", "no such user"),
        ("face is missing", "decade is missing"),  # words, though of hex letters
    ],
)
def test_other_messages_are_other_groups(one: str, other: str) -> None:
    assert fingerprint("t", Failure("E", one)) != fingerprint("t", Failure("E", other))


def test_task_type_and_frames_change_the_fingerprint() -> None:
    error = Failure("E", "m", TRACEBACK)
    found = {
        fingerprint("t", error),
        fingerprint("u", error),
        fingerprint("t", Failure("F", "m", TRACEBACK)),
        fingerprint("t", Failure("E", "m")),
        fingerprint("t", Failure("E", "m", TRACEBACK.replace("in send", "in resend"))),
    }
    assert len(found) == 5


def test_lines_folders_and_libraries_make_no_difference() -> None:
    moved = TRACEBACK.replace("line 7", "line 99").replace("/srv/shop", "/srv/releases/8/shop")
    moved = moved.replace("in sendmail", "in sendmail2")
    assert fingerprint("t", Failure("E", "m", moved)) == fingerprint("t", Failure("E", "m", TRACEBACK))
    assert frames(TRACEBACK) == ["mail.py:send"]


def test_the_last_of_a_chain_of_errors_counts() -> None:
    chain = TRACEBACK.replace("in send", "in first") + "\nDuring handling …\n\n" + TRACEBACK
    assert frames(chain) == ["mail.py:send"]


def test_library_frames_count_where_there_are_no_others() -> None:
    alone = TRACEBACK.replace("/srv/shop", "/venv/lib/python3.12/site-packages/shop")
    assert frames(alone) == ["mail.py:send", "smtplib.py:sendmail"]


@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_has_a_fingerprint(task: str, kind: str, message: str, traceback: str) -> None:
    found = fingerprint(task, Failure(kind, message, traceback))
    assert re.fullmatch("[0-9a-f]{16}", found)
    assert "\0" not in trace(Failure(kind, message, traceback))
    assert len(normal_message(message)) <= 500
