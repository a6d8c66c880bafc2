"""What cannot be a task is refused when it is decorated, with the reason."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from winch import App, ConfigError


def numbers() -> Iterator[int]:
    yield 1


async def anumbers() -> AsyncIterator[int]:
    yield 1


def add(a: int, b: int) -> int:
    return a + b


class Shop:
    def sell(self, item: str) -> None: ...

    @staticmethod
    def static(item: str) -> str:
        return item

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "what, reason",
    [
        (numbers, "numbers is a generator, which runs nothing"),
        (anumbers, "anumbers is a generator"),
        (Shop, "Shop is a class"),
        (Shop().sell, "Shop.sell is a method, whose object a worker would not have"),
        (Shop.sell, "Shop.sell is a method"),
        (Shop.__dict__["static"], "a method of a class"),
        (functools.partial(add, 1), r"functools.partial.*task\.partial"),
        (Shop(), "takes a function, got"),
        (7, "takes a function, got 7"),
    ],
)
def test_a_job_that_no_worker_could_run_is_refused(what: Callable[..., object], reason: str) -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match=reason):
        app.task(what)
    with pytest.raises(ConfigError, match=reason):
        app.task(name="given")(what)
    assert app.tasks.names == ()


def test_a_static_method_is_a_function() -> None:
    app = App("memory://")
    task = app.task(Shop.static)
    assert task("x") == "x"
    assert app.task(functools.lru_cache(add)).name.endswith("test_refused_tasks.add")
