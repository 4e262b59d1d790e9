"""`angelia spool`: a node of group logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.grammar import Noun

command = Noun("spool", "nodes of group logs: serve")


@command.verb(example="angelia spool serve --data-dir /srv/spool --port 8090")
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="where it keeps all")
@click.option("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
@click.option("--port", type=int, metavar="N", help="port to listen on (8080); 0 takes a free one")
@click.option("--public-url", metavar="URL", help="the URL devices use; needed beyond loopback")
@click.option(
    "--trusted-proxy", "trusted_proxies", multiple=True, metavar="NET", help="believe its X-Forwarded-For; repeatable"
)
@click.option("--insecure", is_flag=True, default=None, help="let anyone who reaches it create groups")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (info)")
@click.option("--log-format", metavar="FORMAT", help="json, text or auto (auto: text on a terminal)")
@click.option("--drain-seconds", type=int, metavar="S", help="how long a stop lets requests finish (30)")
def serve(session: CommandContext, /, **flags: Any) -> int:
    """Run a spool node of its own, without PostgreSQL and Valkey. A server has one already.

    Devices spread the messages of a group over several nodes, and trust none of them."""
    from angelia import settings, spool_server

    return spool_server.serve(settings.load({**flags, "trusted_proxies": flags["trusted_proxies"] or None}))
