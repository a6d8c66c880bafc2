"""The signals of a supervisor: stop, stop at once, be quiet, go on, write stacks."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from winch.engine.base.log import log


class SignalTarget(Protocol):
    """What signals act on."""

    @property
    def grace(self) -> float:
        """The seconds that running jobs get when it stops."""
        ...

    def stop(self, grace: float) -> None: ...

    def quiet(self, is_quiet: bool) -> None: ...

    def dump_stacks(self) -> None: ...


def handle_signals(target: SignalTarget) -> None:
    """Have the running event loop act on signals from now on."""
    loop, signals = asyncio.get_running_loop(), 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            grace = target.grace
            log.info("stopping: no new jobs, running ones get %gs; a second signal stops at once", grace)
            target.stop(grace)
        else:
            log.info("stopping at once")
            target.stop(0.0)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGQUIT, target.stop, 0.0)
    loop.add_signal_handler(signal.SIGTSTP, target.quiet, True)
    loop.add_signal_handler(signal.SIGUSR1, target.quiet, True)
    loop.add_signal_handler(signal.SIGCONT, target.quiet, False)
    loop.add_signal_handler(signal.SIGTTIN, target.dump_stacks)
    loop.add_signal_handler(signal.SIGUSR2, target.dump_stacks)
