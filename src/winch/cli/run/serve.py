"""`winch serve`: the HTTP API and the dashboard."""

from __future__ import annotations

import click

from winch.cli.shared.options import StoreOptions, opened, port_option, store_options
from winch.cli.shared.output import remark, say
from winch.core.errors import ConfigError


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@port_option
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@click.option("--auth", is_flag=True, help="Require a token on a loopback address, too.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    help="A host name that clients use for this server; may be repeated.",
)
@click.option(
    "--trusted-proxies",
    metavar="NETWORKS",
    help="Proxies whose X-Forwarded headers count, like 10.0.0.0/8,127.0.0.1/32.",
)
@click.option("--environment", default="", help="A label shown on every page, like staging.")
@click.option(
    "--name", default="Jobs", show_default=True, help="The name of this store, shown on every page."
)
@click.option(
    "--instance",
    "instances",
    metavar="NAME=URL",
    multiple=True,
    help="Another dashboard that the pages link to; may be repeated.",
)
@click.option(
    "--grace", type=click.IntRange(0), default=5, help="Seconds that open requests get after a stop."
)
@click.option(
    "--faktory",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve clients of Faktory on this port, too; 0 picks a free one.",
)
@click.option(
    "--faktory-cert", metavar="FILE", help="A certificate: clients of Faktory connect with TLS."
)
@click.option("--faktory-key", metavar="FILE", help="The key of that certificate.")
@click.option("--push", is_flag=True, help="Push the jobs of the app's push targets (app.push), too.")
@click.option("--faktory-flush", is_flag=True, help="Let clients of Faktory delete all jobs with FLUSH.")
@store_options
def serve(
    options: StoreOptions,
    host: str,
    port: int,
    read_only: bool,
    auth: bool,
    hosts: tuple[str, ...],
    trusted_proxies: str | None,
    environment: str,
    name: str,
    instances: tuple[str, ...],
    grace: int,
    faktory: int | None,
    faktory_cert: str | None,
    faktory_key: str | None,
    faktory_flush: bool,
    push: bool,
) -> None:
    """Serve the HTTP API and the dashboard.

    On a loopback address, every user of this machine has full access. Any other address requires tokens
    (winch token create), and then every request needs one.

    With --faktory, clients of Faktory in any language enqueue jobs and work on them. Their password is
    $WINCH_FAKTORY_PASSWORD; without one, only this machine may connect.
    """
    if faktory is None and (faktory_cert or faktory_key or faktory_flush):
        raise ConfigError("--faktory-cert, --faktory-key and --faktory-flush go with --faktory PORT")
    if faktory is not None and read_only:
        raise ConfigError("clients of Faktory change the store: --faktory does not go with --read-only")
    if push and read_only:
        raise ConfigError("pushing jobs changes the store: --push does not go with --read-only")
    try:
        from winch.web.faktory.gateway import FaktoryConfig, Gateway, checked
        from winch.web.server.serve import bind, config_for, url_of
        from winch.web.server.serve import serve as run
    except ImportError as error:
        raise ConfigError("winch serve needs the extra: pip install 'winch-jobs[web]'") from error
    with opened(options, must_exist=False, trusted_proxies=trusted_proxies) as app:
        app.ready()
        if push and not app.runtime.pushed:
            raise ConfigError("--push needs an app with a push target (app.push): name the app with -A")
        config = config_for(
            app,
            host,
            needs_token=auth,
            is_read_only=read_only,
            hosts=hosts,
            environment=environment,
            name=name,
            instances=instances,
        )
        listening = bind(host, port)
        gateway = None
        if faktory is not None:
            how_faktory = checked(
                FaktoryConfig(
                    host=host,
                    port=faktory,
                    password=app.settings.faktory_password,
                    cert=faktory_cert,
                    key=faktory_key,
                    allows_flush=faktory_flush,
                )
            )
            listening_faktory = bind(host, faktory, "--faktory")
            gateway = Gateway(app, how_faktory, listening_faktory)

        def started() -> None:
            say(url_of(listening, host))
            if faktory is not None:
                scheme = "tcp" if faktory_cert is None else "tcp+tls"
                say(url_of(listening_faktory, host, scheme).rstrip("/"))
            how = "every request needs a token" if config.auth == "tokens" else "open to this machine"
            remark(f"serving {app.driver.describe()}; {how}; Ctrl-C ends it")

        run(app, config, listening, started=started, grace=grace, gateway=gateway, is_pushing=push)
