"""`winch dev`: a worker for the terminal in which one writes the tasks."""

from __future__ import annotations

import os

import click

from winch.cli.run.worker import LOG_STYLE, app_options, run_worker, start_logging
from winch.cli.shared.options import port_option
from winch.cli.shared.output import remark
from winch.web.server.serve_process import ServeProcess, is_installed


@click.command()
@app_options
@click.option(
    "-Q",
    "--queues",
    default="*",
    show_default=True,
    help="Queues in strict order (a,b), by weight (a:5,b:1), or all but some ('*,-slow').",
)
@click.option("-c", "--concurrency", type=int, help="Jobs that run at the same time.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="What this worker offers to tasks with needs, like gpu=h100.",
)
@port_option
@click.option(
    "--dashboard/--no-dashboard", "with_dashboard", default=True, help="Also serve the dashboard."
)
@click.option(
    "--grace", default="3s", show_default=True, help="How long jobs may continue after Ctrl-C."
)
@click.option("-v", "--verbose", count=True, help="More log lines.")
def dev(
    app_spec: str | None,
    url: str | None,
    schema: str | None,
    config: str | None,
    queues: str,
    concurrency: int | None,
    labels: tuple[str, ...],
    port: int,
    with_dashboard: bool,
    grace: str,
    verbose: int,
) -> None:
    """Run a worker that restarts when the code changes.

    One process with readable logs: every job's start and end is a line. The dashboard is served beside
    it on this machine, where the extra is installed: pip install 'winch-jobs[web]'.
    """
    os.environ[LOG_STYLE] = "short"  # for the children and isolated children, too
    start_logging(verbose)
    dashboard = None
    if with_dashboard and is_installed():
        options = {"-A": app_spec, "--url": url, "--schema": schema, "--config": config}
        given = [word for name, value in options.items() if value for word in (name, value)]
        dashboard = ServeProcess(["--port", str(port), "--environment", "dev", *given])
        address = dashboard.start()
        remark(f"dashboard: {address}" if address else "no dashboard; try winch serve to see why")
    try:
        run_worker(
            {"app": app_spec, "url": url, "schema": schema},
            {
                "queues": queues,
                "concurrency": concurrency,
                "processes": 1,
                "labels": labels,
                "grace": grace,
                "reload": True,
            },
            config=config,
            verbose=max(verbose, 1),
        )
    finally:
        if dashboard is not None:
            dashboard.stop()
