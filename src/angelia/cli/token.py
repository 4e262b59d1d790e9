"""`angelia token`: bearer tokens, by which services and dashboards call."""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.flags import Needs, span
from angelia.cli.grammar import Noun
from angelia.cli.paging import Fetch, ago, every, full_id, server_pages, short, show_list, until
from angelia.cli.tables import Column
from angelia.cli.times import full
from angelia.errors import AngeliaError, Conflict

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.guard.api import MadeToken
    from angelia.guard.model import Token

ADMIN = "admin.token"
ROLES = ("admin", "read-write", "read-only")

command = Noun("token", "bearer tokens: create, list, revoke")


@command.verb(example="angelia token create --role read-only --expires 30d", needs=Needs.SERVER | Needs.OPERATOR)
@click.option("--role", type=click.Choice(ROLES), required=True, metavar="ROLE", help=", ".join(ROLES))
@click.option("--agent", metavar="HANDLE", help="the agent that it speaks for")
@click.option("--expires", type=span, metavar="D", help="how long it works, such as 12h or 30d (no end)")
@click.option("--label", metavar="TEXT", help="what it is for")
@click.option("--offline", is_flag=True, help="in the data directory, while no server runs on it")
@click.option(
    "--data-dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="with --offline: which one"
)
def create(
    session: CommandContext,
    role: str,
    agent: str | None,
    expires: timedelta | None,
    label: str | None,
    offline: bool,
    data_dir: Path | None,
) -> None:
    """Make a token. It is shown this once; the server keeps only its hash.

    --offline makes it before the first start, for a server that other machines will reach."""
    if offline:
        _show(session, _made_offline(session, data_dir, role, agent, expires, label or ""))
        return
    if data_dir is not None:
        raise click.UsageError("--data-dir goes with --offline only; --url names a running server")
    seconds = None if expires is None else int(expires.total_seconds())
    client = session.as_operator()
    _show(session, client.tokens.create(role, agent=agent, label=label or "", expires_in=seconds))
    if not session.shared.json and not session.shared.quiet and _is_first(client):
        session.out.note("it is the first: from its next start on the server asks for a token (open mode ends)")


@command.verb(name="list", example="angelia token list", needs=Needs.SERVER | Needs.OPERATOR | Needs.PAGES)
def list_(session: CommandContext) -> None:
    """List the tokens that work; never their secrets."""
    columns: list[Column[Token]] = [
        Column("ID", lambda t: short(t.id)),
        Column("LABEL", lambda t: t.label, long=True),
        Column("ROLE", lambda t: t.role),
        Column("AGENT", lambda t: t.agent or "", long=True),
        Column("CREATED", lambda t: ago(t.created_at), right=True),
        Column("USED", lambda t: ago(t.last_used_at), right=True),
        Column("EXPIRES", lambda t: until(t.expires_at), right=True),
    ]
    fetch = _tokens(session.as_operator())
    show_list(session, fetch, columns, nothing="no tokens yet", hint="angelia token create --role read-only")


@command.verb(example="angelia token revoke 5b0f3c9a71e2", needs=Needs.SERVER | Needs.OPERATOR | Needs.YES)
@click.argument("id_", metavar="ID")
def revoke(session: CommandContext, id_: str) -> None:
    """Withdraw a token, at once and for good.

    ID is the token's id or its first 8 characters or more; never the token itself."""
    client = session.as_operator()
    known = {str(token.id): token for token in every(_tokens(client))}
    token = known[full_id(id_, known, "token", "angelia token list")]
    named = f"token {short(token.id)}" + (f" ({token.label})" if token.label else "")
    if may(session, Deed("revoke", "revoking", named, look="angelia token list")):
        client.tokens.revoke(str(token.id))
        session.out.done({"id": token.id}, f"revoked {named}, role {token.role}")


def _made_offline(
    session: CommandContext, data_dir: Path | None, role: str, agent: str | None, expires: timedelta | None, label: str
) -> MadeToken:
    from angelia import server, settings
    from angelia.runtime_file import read_runtime

    loaded = settings.load({"data_dir": data_dir})
    where = loaded.settings.data_dir
    if loaded.settings.database_url is None and (running := read_runtime(where)) is not None:
        said = f"angelia token create --role {role} --url {running.url} --token-file {shlex.quote(str(where / ADMIN))}"
        raise Conflict(f"a server runs on {where}", hint=f"that one makes it: `{said}`")
    if loaded.settings.database_url is None:
        session.out.note(f"opening the ledger in {where} …")
    return server.create_token(loaded, role=role, agent=agent, label=label, life=expires)


def _show(session: CommandContext, made: MadeToken) -> None:
    pairs = [
        ("token", made.token),
        ("id", str(made.id)),
        ("role", made.role),
        ("agent", made.agent or ""),
        ("label", made.label),
        ("expires", "never" if made.expires_at is None else full(made.expires_at)),
    ]
    session.out.thing(made, pairs, quietly=made.token)
    session.out.note("keep it now: it is not shown again")


def _is_first(client: Client) -> bool:
    """Whether it is the only one beside the data directory's own."""
    try:
        made = [token for token in client.tokens.list(limit=3).tokens if token.label != ADMIN]
    except AngeliaError:  # the token is made and shown already
        return False
    return len(made) == 1


def _tokens(client: Client) -> Fetch[Token]:
    return server_pages(client.tokens.list, lambda page: page.tokens)
