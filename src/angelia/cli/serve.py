"""`angelia serve`: run a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.flags import Needs
from angelia.cli.grammar import VerbCommand


@click.command(cls=VerbCommand, example="angelia serve --port 8080", needs=Needs.YES)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="where it keeps all")
@click.option("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
@click.option("--port", type=int, metavar="N", help="port to listen on (8080); 0 takes a free one")
@click.option("--workers", type=int, metavar="N", help="web processes (1)")
@click.option("--public-url", metavar="URL", help="the URL clients use; needed beyond loopback")
@click.option(
    "--trusted-proxy", "trusted_proxies", multiple=True, metavar="NET", help="believe its X-Forwarded-For; repeatable"
)
@click.option("--insecure", is_flag=True, default=None, help="listen beyond loopback without tokens or JWT")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (info)")
@click.option("--log-format", metavar="FORMAT", help="json, text or auto (auto: text on a terminal)")
@click.option("--drain-seconds", type=int, metavar="S", help="how long a stop lets requests finish (30)")
@click.option("--rotate-master-key", is_flag=True, help="wrap the data keys by a new master key first")
@click.option("--schema", type=int, metavar="N", help="bring the ledger's schema to version N and stop")
def command(session: CommandContext, /, rotate_master_key: bool, schema: int | None, **flags: Any) -> int:
    """Run a server, with its own PostgreSQL and Valkey unless DATABASE_URL and REDIS_URL name others.

    It listens on this machine only, without tokens, until --host says otherwise."""
    from angelia import server, settings

    if rotate_master_key and (schema is not None or session.shared.dry_run):
        raise click.UsageError("--rotate-master-key goes with neither --schema nor --dry-run")
    loaded = settings.load({**flags, "trusted_proxies": flags["trusted_proxies"] or None})
    if schema is None:
        return server.serve(loaded, rotate_master_key=rotate_master_key)
    url = loaded.settings.database_url
    where = settings.mask_url(url) if url else str(loaded.settings.data_dir)

    def may_go_back(present: int) -> bool:
        what = f"what schema versions {schema + 1} to {present} hold"
        look = "angelia serve --schema N --dry-run"
        return may(session, Deed(verb="drop", doing="dropping", what=what, look=look, where=where))

    for step in server.set_schema(loaded, schema, may_go_back):
        session.out.done({"step": step}, step)
    return 0
