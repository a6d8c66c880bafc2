"""The witness: record what happens in and around a store, then decide whether the promises held.

recorder = Recorder(folder)                 # in producers, handlers and the test itself
verdict = check(gather(driver, folder))     # driver with events="full"
assert verdict.is_ok, verdict
"""

from lab.history.checker import check
from lab.history.lines import ENV, Line, Recorder, read
from lab.history.records import History, Verdict, Violation, gather

__all__ = ["ENV", "History", "Line", "Recorder", "Verdict", "Violation", "check", "gather", "read"]
