"""A driver that records the answers to its fenced writes, as the worker receives them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from lab.history.lines import Recorder
from winch.storage.params import Answer, ClaimRef, Finish
from winch.storage.protocol import Bell, Driver
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")


class Witness:
    """Any driver; `finish` and `release` leave a line per answer."""

    def __init__(self, inner: Driver, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder
        self._asked: dict[Verb[Any], list[tuple[str, str]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def driver(self) -> Driver:
        """This wrapper as the driver it stands for: what it does not change it hands on."""
        return cast(Driver, self)

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        return self._note(self._inner.finish(outcomes, now=now), outcomes)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        return self._note(self._inner.release(claims, has_started=has_started, now=now), claims)

    def claiming_bell(self, queues: Sequence[str]) -> Bell:
        """That of the driver, where it has one: what is claimed shows in the store."""
        claiming = getattr(type(self._inner), "claiming_bell", None)
        return self._inner.bell(queues) if claiming is None else claiming(self._inner, queues)

    def run(self, verb: Verb[T]) -> T:
        asked = self._asked.pop(verb, None)
        result = self._inner.run(verb)
        self._tell(verb.name, asked, result)
        return result

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return Unhurried(self.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        asked = self._asked.pop(verb, None)
        result = await self._inner.arun(verb)
        self._tell(verb.name, asked, result)
        return result

    def _note(self, verb: Verb[list[Answer]], about: Sequence[Finish | ClaimRef]) -> Verb[list[Answer]]:
        self._asked[verb] = [(claim.id, claim.token) for claim in about]
        return verb

    def _tell(self, verb: str, asked: list[tuple[str, str]] | None, answers: Any) -> None:
        for (job, token), answer in zip(asked or (), answers if asked else (), strict=True):
            self._recorder.answered(verb, job, token, answer.value)
