"""`winch enqueue`: store a job from the command line."""

from __future__ import annotations

from typing import Any

import click

from winch.app import App
from winch.cli.operate.workers import is_live
from winch.cli.shared.options import StoreOptions, find_app, json_arguments, json_option, store_options
from winch.cli.shared.output import emit_json, remark, say
from winch.cli.shared.text import one_line
from winch.core.errors import ConfigError, StorageUnavailable, UnknownTask
from winch.core.values import codec
from winch.core.values.bounds import is_int
from winch.core.values.redact import mask
from winch.engine.client.job import Job
from winch.engine.tasks.options import EnqueueOptions, enqueue_options, stored_options
from winch.storage.params import NewJob


@click.command()
@click.argument("task")
@click.option(
    "--args", "args_text", default="{}", metavar="JSON", help="""The arguments, like '{"a": 1}'."""
)
@click.option("--delay", metavar="DURATION", help="Run it after this time, like 5m.")
@click.option("--queue", help="A queue other than the task's own.")
@click.option("--priority", help="A number, or critical, high, default, low.")
@click.option(
    "--id",
    "job_id",
    metavar="UUID",
    help="The job's id. A second enqueue with it returns the first job.",
)
@click.option("--unique", metavar="KEY", help="If a live job has this key, return that job instead.")
@click.option("--tag", "tags", multiple=True, help="May be repeated.")
@click.option("--expires", metavar="DURATION", help="Do not run it after this time.")
@click.option("--wait", is_flag=True, help="Wait until the job is final and print its result.")
@click.option("--timeout", metavar="DURATION", help="With --wait: how long to wait.")
@click.option("--reveal", is_flag=True, help="With --wait: do not mask secrets in the result.")
@json_option
@store_options
def enqueue(
    options: StoreOptions,
    task: str,
    args_text: str,
    delay: str | None,
    queue: str | None,
    priority: str | None,
    job_id: str | None,
    unique: str | None,
    tags: tuple[str, ...],
    expires: str | None,
    wait: bool,
    timeout: str | None,
    reveal: bool,
) -> None:
    """Store a job and print its id.

    With an app (-A) the arguments are checked against the task. Without one, some live worker must know
    the task's name.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    args = json_arguments(args_text)
    given: dict[str, Any] = {
        "delay": delay,
        "queue": queue,
        "priority": _priority(priority),
        "id": job_id,
        "unique": unique,
        "tags": tags or None,
        "expires": expires,
    }
    app = find_app(options, needs_tasks=True)
    app.configure({"url": options.url, "schema": options.schema}, config=options.config)
    try:
        if app.tasks.names:
            job = app.tasks.get(task).using(**given).enqueue(**args)
        else:
            job = _enqueue_by_name(app, task, args, given)
        _answer(app, job, task, options, wait=wait, timeout=timeout, reveal=reveal)
    finally:
        app.close()


def _priority(given: str | None) -> int | str | None:
    if given is not None and is_int(given):
        return int(given)
    return given


def _enqueue_by_name(app: App, task: str, args: dict[str, Any], given: dict[str, Any]) -> Job[Any]:
    """Without the app's code: the name must be one that a live worker has published."""
    live = [session for session in app.workers.list() if is_live(session)]
    knowing = [session for session in live if task in session.tasks]
    if not knowing:
        if not live:
            raise ConfigError(f"cannot check the task {task!r}: no worker is live; name the app with -A")
        raise UnknownTask(task, {name for session in live for name in session.tasks})
    given_options = enqueue_options(given, tuple(EnqueueOptions.__struct_fields__))
    # The task's own queue is set in the app's code; only a queue that a worker serves is safe.
    served = sorted({queue for session in knowing for queue in session.queues})
    if given_options.queue is None and "default" not in served:
        raise ConfigError(f"pass --queue: the workers that know {task} serve {', '.join(served)}")
    new = NewJob(
        id=given_options.id or app.client.draw_id(),
        is_given_id=given_options.id is not None,
        task=task,
        args=codec.dumps(args, what="--args"),
        queue=given_options.queue or "default",
        priority=given_options.priority or 0,
        delay=given_options.delay,
        expires=given_options.expires,
        tags=given_options.tags,
        options=stored_options(given_options),
        unique_key=None if given_options.unique is None else given_options.unique.key,
    )
    [stored] = app.client.run(app.client.store([new], None))
    return Job(app.client, stored.holder or stored.id, is_new=stored.is_new)


def _answer(
    app: App,
    job: Job[Any],
    task: str,
    options: StoreOptions,
    *,
    wait: bool,
    timeout: str | None,
    reveal: bool,
) -> None:
    answer: dict[str, Any] = {"id": job.id, "is_new": job.is_new}
    if wait:
        if not options.as_json:
            remark(f"waiting for job {job.id}")
        record, result = app.client.result(job.id, timeout)  # plain, regardless of the annotation
        result = result if reveal else mask(result)
        answer |= {"state": record.state, "result": result}
        if not options.as_json:
            emit_json(result)
            return
    if options.as_json:
        emit_json(answer)
        return
    say(job.id)
    try:
        record = job.record
    except StorageUnavailable:  # it was spooled; anything else would have failed before
        remark("the store is out of reach: the job is kept in the spool until it is back")
        return
    if job.is_new:
        remark(f"{one_line(task)} is {record.state} in queue {one_line(record.queue)}")
    else:
        remark(f"the job was there before: {one_line(record.task)}, {record.state}")
