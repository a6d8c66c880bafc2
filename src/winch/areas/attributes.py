"""The areas of an app as its attributes: `app.jobs`, `app.dead` and so on.

Each is imported when it is first used: a producer that only enqueues loads none of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from winch.areas.declare import Declares

if TYPE_CHECKING:
    from winch.areas.dead import Dead
    from winch.areas.flows import Flows
    from winch.areas.idempotency import Idempotency
    from winch.areas.jobs import Jobs
    from winch.areas.limits import Limits
    from winch.areas.outbox import Outbox
    from winch.areas.queues import Queues
    from winch.areas.schedules import Schedules
    from winch.areas.webhooks.area import Webhooks
    from winch.areas.workers import Workers
    from winch.engine.client.client import Client
    from winch.engine.tasks.runtime import Runtime


class Areas(Declares):
    """What `App` adds its areas with."""

    client: Client
    runtime: Runtime

    @cached_property
    def jobs(self) -> Jobs:
        """Find jobs and act on them."""
        from winch.areas.jobs import Jobs

        return Jobs(self.client)

    @cached_property
    def dead(self) -> Dead:
        """Dead jobs: list them, replay them, delete them."""
        from winch.areas.dead import Dead

        return Dead(self.client, self.runtime)

    @cached_property
    def queues(self) -> Queues:
        """Queues: list, pause, resume, purge and configure them."""
        from winch.areas.queues import Queues

        return Queues(self.client)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules: list, add, change, pause and trigger them."""
        from winch.areas.schedules import Schedules

        return Schedules(self.client, self.runtime)

    @cached_property
    def workers(self) -> Workers:
        """The workers that the store knows."""
        from winch.areas.workers import Workers

        return Workers(self.client)

    @cached_property
    def limits(self) -> Limits:
        """Limits, rates and the weights of tenants: read them, and set them for the whole fleet."""
        from winch.areas.limits import Limits

        return Limits(self.client)

    @cached_property
    def flows(self) -> Flows:
        """Enqueued compositions: inspect, cancel and retry them as a whole."""
        from winch.areas.flows import Flows

        return Flows(self.client)

    @cached_property
    def outbox(self) -> Outbox:
        """Messages that commit with your own writes; workers deliver them in order for each key."""
        from winch.areas.outbox import Outbox

        return Outbox(self.client, self.runtime)

    @cached_property
    def webhooks(self) -> Webhooks:
        """Webhooks: endpoints of your customers, and events that workers deliver to them."""
        from winch.areas.webhooks.area import Webhooks

        return Webhooks(self.client, self.runtime, self.outbox)

    @cached_property
    def idempotency(self) -> Idempotency:
        """Effects outside the store that must not happen twice: `with app.idempotency.begin(key) as
        once`.
        """
        from winch.areas.idempotency import Idempotency

        return Idempotency(self.client)
