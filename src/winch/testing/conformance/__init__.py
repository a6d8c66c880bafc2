"""The suite that defines a driver: it is finished when every case passes, and not before.

For a store with a URL that Winch knows:

    python -m winch.testing.conformance --url sqlite:///some/folder/x.db

For a driver of your own, say how to make an empty store, and run the same cases:

    from winch.testing.conformance import Target, run

    class MyTarget(Target):
        name = "mine"
        def fresh(self, *, events: bool = False) -> Driver: ...
        def another(self) -> Driver: ...
        def blank(self) -> AbstractContextManager[Driver]: ...

    report = run(MyTarget())
    assert not report.failed

Each case runs twice, through `driver.run` and through `driver.arun`. Where a case needs a capability
that the driver declares absent, it is checked instead that the driver refuses it clearly; such cases
are counted apart.
"""

from winch.testing.conformance.bench import MODES, Bench, Mode
from winch.testing.conformance.case import Case, case
from winch.testing.conformance.suite import Report, Result, Verdict, all_cases, run, run_case
from winch.testing.conformance.target import (
    MemoryTarget,
    PostgresTarget,
    RedisTarget,
    SqliteTarget,
    Target,
    target_for,
)

__all__ = [
    "MODES",
    "Bench",
    "Case",
    "MemoryTarget",
    "Mode",
    "PostgresTarget",
    "RedisTarget",
    "Report",
    "Result",
    "SqliteTarget",
    "Target",
    "Verdict",
    "all_cases",
    "case",
    "run",
    "run_case",
    "target_for",
]
