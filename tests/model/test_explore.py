"""The explorer finds what is there: shortest traces, dead ends, and no help that does not count."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.explore import Rule, Step, explore, render


class Stairs:
    """Climb by one or two from 0; the top is settled, some steps may be broken or need help."""

    def __init__(self, top: int, *, broken: int = -1, trap: int = -1, helped: bool = False) -> None:
        self.top = top
        self.broken = broken
        self.trap = trap
        self.helped = helped

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[Step[int]]:
        for size in (1, 2):
            after = state + size
            if after <= self.top and state != self.trap:
                breaches = (Rule.REPEATED,) if after == self.broken else ()
                yield Step(f"up by {size}", after, breaches=breaches)
        if state == self.trap and self.helped:
            yield Step("an operator helps", self.top, is_help=True)

    def breaches(self, state: int) -> tuple[Rule, ...]:
        return (Rule.LIMIT,) if state > 100 else ()

    def is_settled(self, state: int) -> bool:
        return state == self.top

    def describe(self, state: int) -> str:
        return f"at {state}"


def test_all_states_are_walked_once() -> None:
    report = explore(Stairs(10))
    assert report.holds
    assert (report.states, report.steps) == (11, 19)
    assert report.labels == {"up by 1", "up by 2"}


def test_first_breach_has_a_shortest_trace() -> None:
    report = explore(Stairs(10, broken=5))
    assert report.breach is Rule.REPEATED
    assert len(report.trace) - 1 == 3
    assert report.trace[-1] == ("up by 2", "at 5") or report.trace[-1] == ("up by 1", "at 5")


def test_breach_of_a_state_is_found() -> None:
    assert explore(Stairs(101)).breach is Rule.LIMIT


def test_unwatched_breaches_are_walked_past() -> None:
    assert explore(Stairs(10, broken=5), watch=[Rule.SETTLES]).holds


def test_state_without_a_way_to_the_end_is_stuck() -> None:
    report = explore(Stairs(10, trap=4))
    assert report.breach is Rule.SETTLES
    assert report.trace[-1].after == "at 4"


def test_help_is_no_way_out() -> None:
    assert explore(Stairs(10, trap=4, helped=True)).breach is Rule.SETTLES


def test_trace_is_rendered_in_words() -> None:
    assert render(explore(Stairs(10, broken=2))) == "\n".join(
        [
            "   0. the start  [at 0]",
            "   1. up by 2  [at 2]",
            f"      => {Rule.REPEATED.value}",
        ]
    )
