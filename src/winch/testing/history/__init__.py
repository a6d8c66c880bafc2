"""The witness: record what happens in and around a store, then decide whether the promises held.

recorder = Recorder(folder)                 # in producers, handlers and the test itself
verdict = check(gather(driver, folder))     # driver with events="full"
assert verdict.is_ok, verdict
"""

from winch.testing.history.checker import check
from winch.testing.history.lines import ENV, Line, Recorder, read
from winch.testing.history.records import History, Verdict, Violation, gather

__all__ = ["ENV", "History", "Line", "Recorder", "Verdict", "Violation", "check", "gather", "read"]
