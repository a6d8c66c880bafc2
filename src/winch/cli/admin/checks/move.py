"""Whether jobs of this store move to another one, and how far that is."""

from __future__ import annotations

from winch.app import App
from winch.cli.admin.checks import Finding, Findings, Level
from winch.cli.shared.text import count
from winch.engine.moving.route import MoveStep, Route, look

# More live jobs are not counted.
CAP = 10_000


def check_move(app: App) -> Findings:
    """What the record of a move says; nothing where there is none."""
    driver = app.ready()
    route: Route | None = app.client.run(look(driver)).route
    if route is None:
        return
    counts = driver.run(driver.counts(cap=CAP))
    left = sum(number for state, number in counts.items() if not state.is_final)
    here = f"{'over ' if left >= CAP else ''}{count(left, 'live job')}"
    if route.step is not MoveStep.DONE:
        way = "moves back from" if route.step.is_back else "moves to"
        yield Finding(
            Level.NOTE,
            "move",
            f"{route.scope} {way} {route.address}: step {route.step}; {here} in this store",
            "winch move --resume continues it, then --cutover ends it; --back takes it back",
        )
    elif left and route.scope.is_all:
        yield Finding(
            Level.WARNING,
            "move",
            f"everything has moved to {route.address}, and this store has {here} again",
            "fetch them: winch move --resume; set url to the new store where they come from",
        )
    else:
        yield Finding(Level.NOTE, "move", f"{route.scope} has moved to {route.address}")
