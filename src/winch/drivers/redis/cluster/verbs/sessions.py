"""Sessions in a cluster: every part knows them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.sessions import SessionVerbs, read_cancels
from winch.storage.crash_report import CrashReport
from winch.storage.params import ClaimRef, NewSession, Pulse, Rescued
from winch.storage.verbs import Now, Verb

# What a worker calls for its jobs.
WORK = ("heads", "claim", "finish", "finish_and_claim")


class ClusterSessionVerbs:
    """Begin, extend and end sessions in every part."""

    def __init__(self, plain: SessionVerbs, base: ClusterBase, fan_out: FanOut) -> None:
        self._plain = plain
        self._call = base.call
        self._fan_out = fan_out

    def start_session(self, session: NewSession, *, now: Now = None) -> Verb[datetime]:
        """In every part, because each part checks that the session of a claim is live."""

        def body() -> Body[datetime]:
            results = yield from self._fan_out.scatter(
                [
                    (number, self._plain.start_session(known, now=now).steps())
                    for number in EVERYWHERE
                    for known in [
                        session if number == HOME else msgspec.structs.replace(session, schedules=())
                    ]
                ]
            )
            started = whole(results)[HOME]
            yield from self._fan_out.prepare(WORK)
            return started

        return Verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: Now = None) -> Verb[list[Pulse]]:
        """Acknowledged when every part has it. A session is live when it is live everywhere; the lowest
        count reveals a part that was set back."""

        def body() -> Body[list[Pulse]]:
            found = yield from self._fan_out.everywhere(
                lambda: self._plain.beat(sessions, now=now).steps()
            )
            return [
                Pulse(
                    session,
                    is_live=all(pulse.is_live for pulse in pulses),
                    beats=min(pulse.beats for pulse in pulses),
                    now=min(pulse.now for pulse in pulses),
                    commands=pulses[HOME].commands,
                )
                for session, *pulses in zip(sessions, *found, strict=True)
            ]

        return Verb("beat", body)

    def end_session(
        self, session: str, crash: CrashReport | None = None, *, now: Now = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            found = yield from self._fan_out.everywhere(
                lambda: self._plain.end_session(session, crash, now=now).steps()
            )
            return sorted((one for some in found for one in some), key=lambda one: one.id)

        return Verb("end_session", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            found = yield from self._fan_out.everywhere(lambda: self._plain.held(session).steps())
            return sorted((ref for some in found for ref in some), key=lambda ref: ref.id)

        return Verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            what = self._call("cancels", sessions=sessions)
            replies = whole((yield from self._fan_out.ask([(number, what) for number in EVERYWHERE])))
            return read_cancels([word for reply in replies for word in reply], sessions)

        return Verb("cancels", body, is_read=True)
