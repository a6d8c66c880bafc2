from __future__ import annotations

import inspect
import pickle

from winch.core import errors, outcome
from winch.core.errors import JobFailed, UnknownTask, WinchError, did_you_mean, type_name, within


def test_every_error_is_a_winch_error() -> None:
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == "winch"]
    assert len(found) > 10
    assert all(issubclass(cls, WinchError) for cls in found)


def test_the_tree_at_the_top_of_the_module_names_every_error() -> None:
    tree = errors.__doc__ or ""
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if cls.__module__ == "winch":
            assert name in tree


def test_a_hint_names_the_nearest_word_or_nothing() -> None:
    assert did_you_mean("send_welcom", ["send_welcome", "other"]) == " (did you mean 'send_welcome'?)"
    assert did_you_mean("xyz", ["send_welcome"]) == ""
    assert "did you mean 'mail.send'" in str(UnknownTask("mail.sendd", ["mail.send"]))


def test_a_failed_job_carries_its_error() -> None:
    assert str(JobFailed("41", "dead", "ValueError: no")) == "job 41 is dead: ValueError: no"
    assert str(JobFailed("41", "cancelled", None)) == "job 41 is cancelled"


def test_a_sentence_within_another_loses_its_capital_but_a_name_keeps_its_own() -> None:
    assert within("Expected int, got str") == "expected int, got str"
    assert within("JSON is malformed") == "JSON is malformed"
    assert within("") == ""


def test_errors_and_directives_are_stored_and_shown_by_their_public_names() -> None:
    for module in (errors, outcome):
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, WinchError | outcome.Directive) and cls is not outcome.Directive:
                assert type_name(cls) == f"winch.{name}"
                assert pickle.loads(pickle.dumps(cls)) is cls  # noqa: S301
