"""Traces and metrics for OpenTelemetry: needs the extra `otel` (`pip install 'winch-jobs[otel]'`).

    app.use(winch.integrations.otel.OpenTelemetry())

Only the API is used; the application chooses the SDK, the exporter and the propagators. Names are those
of the semantic conventions for messaging. An enqueue's span puts its context (`traceparent` and whatever
else the propagators say) into the job's headers; the span of each attempt links to it, wherever it runs:
on the loop, in a thread or in a process of its own, each of which has imported the application.

Arguments are never put into an attribute: they are the application's data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from winch import ConfigError, JobState, Middleware, RetryAfter, __version__
from winch.types import FLOW_HEADER, SCHEDULE_HEADER, Directive, mask_text, type_name

if TYPE_CHECKING:
    from winch import App, Context
    from winch.types import Claim, Finish, NewJob

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
MOST_ORIGINS = 100_000
_ACKED = (JobState.COMPLETED, JobState.CANCELLED)
TRACE_MODES = ("link", "child", "both")
# What the conventions advise, and more for jobs, which may take an hour.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 900,
           3600)  # fmt: skip

Attributes = dict[str, str | int | float]


class OpenTelemetry(Middleware):
    """Give an instance to `app.use(…)`. `trace_mode`: an attempt's span begins a trace of its own and
    links to the enqueue (`link`), is the enqueue's child (`child`), or is both (`both`). With
    `create_spans=False` a call that enqueues many jobs makes one span, not one for each job as well.
    With `receive_spans` and `settle_spans` each claim of a worker, and each answer to what it has done,
    is a span that links to the enqueues of its jobs: many, for the search for a slow store."""

    def __init__(
        self,
        *,
        trace_mode: Literal["link", "child", "both"] = "link",
        create_spans: bool = True,
        receive_spans: bool = False,
        settle_spans: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        if trace_mode not in TRACE_MODES:
            raise ConfigError(f"trace_mode must be one of {', '.join(TRACE_MODES)}, got {trace_mode!r}")
        self._trace_mode = trace_mode
        self._create_spans = create_spans
        self._receive_spans = receive_spans
        self._settle_spans = settle_spans
        # Where claimed jobs came from, until the store has answered what became of them.
        self._origins: dict[str, tuple[str, SpanContext]] = {}
        release = __version__
        self._tracer = trace.get_tracer("winch", release, tracer_provider, schema_url=SCHEMA)
        self._meter = meter = metrics.get_meter("winch", release, meter_provider, schema_url=SCHEMA)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs enqueued."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Jobs taken to run, once per attempt."
        )
        self._operation_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "How long the store took to take jobs, to hand them out, and to take what became of them.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._process_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long attempts ran.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        # The spans of calls that are being stored, by the context that their first job carries.
        self._sending: dict[object, tuple[Span, float]] = {}
        self._lock = threading.Lock()

    # -- enqueue -----------------------------------------------------------------------------------

    def enqueue_all(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        if not jobs:
            return jobs
        return self._one(jobs[0]) if len(jobs) == 1 else self._many(jobs)

    def _one(self, job: NewJob) -> Sequence[NewJob]:
        attributes = {**_facts("send", "send", job.queue), **_about_job(job)}
        # A context in the headers (that of an HTTP request, say) is its parent.
        before = propagate.extract(job.headers) if job.headers else None
        span = self._tracer.start_span(
            f"send {job.queue}", before, kind=SpanKind.PRODUCER, attributes=attributes
        )
        carrying = _carrying(job, span)
        self._begin(carrying, span)
        return [carrying]

    def _many(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        queues = {job.queue for job in jobs}
        queue = queues.pop() if len(queues) == 1 else None
        links: list[Link] = []
        carrying: list[NewJob] = []
        if self._create_spans:
            for job in jobs:
                attributes = {**_facts("create", "create", job.queue), **_about_job(job)}
                before = propagate.extract(job.headers) if job.headers else None
                created = self._tracer.start_span(
                    f"create {job.queue}", before, kind=SpanKind.PRODUCER, attributes=attributes
                )
                created.end()
                links.append(Link(created.get_span_context()))
                carrying.append(_carrying(job, created))
        span = self._tracer.start_span(
            "send" if queue is None else f"send {queue}",
            kind=SpanKind.CLIENT,
            links=links,
            attributes={**_facts("send", "send", queue), "messaging.batch.message_count": len(jobs)},
        )
        carrying = carrying or [_carrying(job, span) for job in jobs]
        self._begin(carrying[0], span)
        return carrying

    def _begin(self, first: NewJob, span: Span) -> None:
        with self._lock:
            self._sending[_carried(first)] = (span, time.monotonic())

    def stored(self, jobs: Sequence[NewJob], error: BaseException | None) -> None:
        with self._lock:
            begun = self._sending.pop(_carried(jobs[0]), None) if jobs else None
        if begun is None:
            return
        span, began = begun
        if len(jobs) == 1:  # the store may have taken it under another id than the first
            span.set_attribute("messaging.message.id", jobs[0].id)
        failure = {} if error is None else {"error.type": _name_of(error)}
        if error is not None:
            _fail(span, error)
        span.end()
        counts: dict[str, int] = {}
        for job in jobs:
            counts[job.queue] = counts.get(job.queue, 0) + 1
        for queue, count in counts.items():
            self._sent.add(count, {**_facts("send", "send", queue), **failure})
        only = jobs[0].queue if len(counts) == 1 else None
        spent = time.monotonic() - began
        self._operation_duration.record(spent, {**_facts("send", "send", only), **failure})

    # -- claim and finish --------------------------------------------------------------------------

    def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
        by_queue: dict[str, list[SpanContext]] = {}
        for claim in claims:
            origin = trace.get_current_span(propagate.extract(claim.headers)).get_span_context()
            by_queue.setdefault(claim.queue, []).append(origin)
            if self._settle_spans:
                if len(self._origins) >= MOST_ORIGINS:
                    self._origins.clear()  # of jobs that were given back
                self._origins[claim.id] = (claim.queue, origin)
        for queue, origins in by_queue.items():
            attributes = _facts("receive", "receive", queue)
            self._operation_duration.record(seconds, attributes)
            if self._receive_spans:
                self._past_span(f"receive {queue}", attributes, origins, seconds)

    def settled(self, outcomes: Sequence[Finish], seconds: float) -> None:
        self._operation_duration.record(seconds, _facts("settle", "settle", None))
        if not self._settle_spans:
            return
        found: dict[tuple[str, str], list[SpanContext]] = {}
        for outcome in outcomes:
            word = "ack" if outcome.to in _ACKED else "nack"
            queue, origin = self._origins.pop(outcome.id, (None, trace.INVALID_SPAN_CONTEXT))
            if queue is not None:
                found.setdefault((word, queue), []).append(origin)
        for (word, queue), origins in found.items():
            self._past_span(f"{word} {queue}", _facts(word, "settle", queue), origins, seconds)

    def _past_span(
        self, name: str, attributes: Attributes, origins: Sequence[SpanContext], seconds: float
    ) -> None:
        """A span of what has just ended, linked to where its jobs came from."""
        now = time.time_ns()
        span = self._tracer.start_span(
            name,
            kind=SpanKind.CLIENT,
            links=[Link(origin) for origin in origins if origin.is_valid],
            attributes={**attributes, "messaging.batch.message_count": len(origins)},
            start_time=now - int(seconds * 1e9),
        )
        span.end(now)

    # -- run ---------------------------------------------------------------------------------------

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        headers = ctx.headers
        created = propagate.extract(headers)
        origin = trace.get_current_span(created).get_span_context()
        links = [Link(origin)] if origin.is_valid and self._trace_mode != "child" else []
        # Baggage comes along in every mode; a parent only where it is asked for.
        base = created
        if self._trace_mode == "link":
            base = trace.set_span_in_context(trace.INVALID_SPAN, created)
        attributes = _facts("process", "process", ctx.queue)
        self._consumed.add(1, attributes)
        span = self._tracer.start_span(
            f"process {ctx.queue}",
            base,
            kind=SpanKind.CONSUMER,
            links=links,
            attributes={**attributes, **_about_attempt(ctx, headers)},
        )
        token = context.attach(trace.set_span_in_context(span, base))
        began = time.monotonic()
        failure: Attributes = {}
        try:
            value = await call_next()
            if isinstance(value, Directive):
                failure = _directed(span, value)
            return value
        except Directive as directive:
            failure = _directed(span, directive)
            raise
        except BaseException as error:
            # Not an Exception: interrupted from outside, or a workflow that sleeps. It is no error.
            if isinstance(error, Exception) or ctx.cancelled:
                _fail(span, error)
                failure = {"error.type": _name_of(error)}
            raise
        finally:
            context.detach(token)
            span.end()
            attributes["messaging.winch.task.name"] = ctx.task
            self._process_duration.record(time.monotonic() - began, {**attributes, **failure})

    # -- gauges ------------------------------------------------------------------------------------

    def observe(self, app: App) -> None:
        """Report the depth of the queues, the age of their oldest job and the slots of all workers,
        whenever metrics are read. In one process of the fleet: they are the store's numbers, and every
        process that reports them reports the same."""

        def depth(_: CallbackOptions) -> Iterable[Observation]:
            for queue in app.queues.list():
                for state, count in queue.counts.items():
                    facts = {"messaging.destination.name": queue.name, "winch.job.state": str(state)}
                    yield Observation(count, facts)

        def oldest(_: CallbackOptions) -> Iterable[Observation]:
            now = app.clock.now()
            for queue in app.queues.list():
                at = queue.oldest_ready_at
                age = 0.0 if at is None else max((now - at).total_seconds(), 0.0)
                yield Observation(age, {"messaging.destination.name": queue.name})

        def slots(_: CallbackOptions) -> Iterable[Observation]:
            live = app.workers.list()
            busy = sum(session.running for session in live)
            yield Observation(busy, {"winch.slot.state": "busy"})
            free = max(sum(session.slots for session in live) - busy, 0)
            yield Observation(free, {"winch.slot.state": "free"})

        gauge = self._meter.create_observable_gauge
        gauge("winch.queue.depth", [depth], "{job}", "Live jobs by queue and state.")
        gauge("winch.queue.oldest_age", [oldest], "s", "How long the oldest ready job has waited.")
        gauge("winch.worker.slots", [slots], "{slot}", "Slots of all live workers.")


def _facts(name: str, kind: str, queue: str | None) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "winch",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    return attributes


def _about_job(job: NewJob) -> Attributes:
    attributes: Attributes = {"messaging.message.id": job.id, "messaging.winch.task.name": job.task}
    if job.priority:
        attributes["messaging.winch.job.priority"] = job.priority
    if job.max_attempts is not None:
        attributes["messaging.winch.job.max_attempts"] = job.max_attempts
    if job.run_at is not None:
        attributes["messaging.winch.job.scheduled_at"] = job.run_at.isoformat()
    return {**attributes, **_about_headers(job.headers)}


def _about_attempt(ctx: Context, headers: Mapping[str, str]) -> Attributes:
    return {
        "messaging.message.id": ctx.job_id,
        "messaging.winch.task.name": ctx.task,
        "messaging.winch.job.attempt": ctx.attempt,
        "messaging.winch.job.queue_latency": ctx.queue_latency.total_seconds(),
        **_about_headers(headers),
    }


def _about_headers(headers: Mapping[str, str]) -> Attributes:
    attributes: Attributes = {}
    if FLOW_HEADER in headers:
        attributes["messaging.message.conversation_id"] = headers[FLOW_HEADER]
    if SCHEDULE_HEADER in headers:
        attributes["messaging.winch.schedule.id"] = headers[SCHEDULE_HEADER]
    return attributes


def _carrying(job: NewJob, span: Span) -> NewJob:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return msgspec.structs.replace(job, headers={**job.headers, **carrier}) if carrier else job


def _carried(job: NewJob) -> object:
    """The context that a job carries; its id, where it carries none."""
    fields = sorted(propagate.get_global_textmap().fields)
    found = tuple(job.headers.get(field) for field in fields)
    return found if any(found) else job.id


def _directed(span: Span, directive: Directive) -> Attributes:
    """A handler has chosen its outcome: a failure only where it counts as one."""
    word = type(directive).__name__
    span.set_attribute("messaging.winch.job.outcome", word)
    if not isinstance(directive, RetryAfter):
        return {}
    span.set_status(Status(StatusCode.ERROR, mask_text(str(directive))))
    span.set_attribute("error.type", _name_of(directive))
    return {"error.type": _name_of(directive)}


def _fail(span: Span, error: BaseException) -> None:
    message, frames = mask_text(str(error)), mask_text("".join(format_exception(error)))
    span.record_exception(error, {"exception.message": message, "exception.stacktrace": frames})
    span.set_status(Status(StatusCode.ERROR, message))
    span.set_attribute("error.type", _name_of(error))


def _name_of(error: BaseException) -> str:
    return type_name(type(error))
