"""`angelia policy`: the rules by which agents may send, publish, subscribe and read keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Deed, may
from angelia.cli.errors import NOT_ALLOWED, Usage
from angelia.cli.flags import Needs, seconds
from angelia.cli.grammar import Noun
from angelia.cli.paging import Fetch, ago, every, full_id, server_pages, short, show_list, until
from angelia.cli.tables import Column
from angelia.cli.times import full
from angelia.errors import InvalidArgument

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.policy.model import PolicyRule

EFFECTS = ("allow", "deny")
ACTIONS = ("send", "channel.publish", "channel.subscribe", "keys.read")
_PRIORITY = click.IntRange(-1_000_000, 1_000_000)

command = Noun("policy", "which agents may send, publish, subscribe and read keys")


@command.verb(
    example="angelia policy add allow send --subject 'team-*' --object bob", needs=Needs.SERVER | Needs.OPERATOR
)
@click.argument("effect", metavar="allow|deny", type=click.Choice(EFFECTS))
@click.argument("action", metavar="ACTION", type=click.Choice(ACTIONS))
@click.option(
    "--subject", metavar="P", required=True, help="the agent that acts: a handle, or a beginning and a *, as 'team-*'"
)
@click.option(
    "--object", "object_", metavar="P", required=True, help="the agent it acts on: the same; a channel is owner/name"
)
@click.option("--priority", metavar="N", type=_PRIORITY, default=0, help="the higher one has the last word (0)")
@click.option("--expires", type=seconds, metavar="D", help="how long it counts, such as 12h or 30d (no end)")
@click.option("--rate", metavar="R", help="with allow: how often one subject may, as 100/1m (no limit)")
def add(
    session: CommandContext,
    effect: str,
    action: str,
    subject: str,
    object_: str,
    priority: int,
    expires: int | None,
    rate: str | None,
) -> None:
    """Make a rule. It counts at once.

    ACTION is send, channel.publish, channel.subscribe or keys.read. What no rule
    allows is denied; at equal priority deny beats allow. Quote a * from the shell."""
    from angelia.policy.model import Action, Effect, check_rule

    try:
        check_rule(Effect(effect), Action(action), subject, object_, rate)
    except InvalidArgument as error:
        raise Usage(error.message, hint=error.hint) from error
    made = session.as_operator().policy.add(
        Effect(effect),
        Action(action),
        subject=subject,
        object=object_,
        priority=priority,
        expires_in=expires,
        rate=rate,
    )
    pairs = [
        ("id", str(made.rule_id)),
        ("rule", _worded(made)),
        ("priority", str(made.priority)),
        ("rate", made.rate or ("no limit" if made.effect == "allow" else "")),
        ("expires", "never" if made.expires_at is None else full(made.expires_at)),
    ]
    session.out.thing(made, pairs, quietly=str(made.rule_id))


@command.verb(name="list", example="angelia policy list", needs=Needs.SERVER | Needs.OPERATOR | Needs.PAGES)
def list_(session: CommandContext) -> None:
    """List the rules, in the order in which they were made."""
    columns: list[Column[PolicyRule]] = [
        Column("ID", lambda r: short(r.rule_id)),
        Column("PRIORITY", lambda r: f"{r.priority:,}", right=True),
        Column("EFFECT", lambda r: r.effect),
        Column("ACTION", lambda r: r.action),
        Column("SUBJECT", lambda r: r.subject, long=True),
        Column("OBJECT", lambda r: r.object, long=True),
        Column("RATE", lambda r: r.rate or ""),
        Column("EXPIRES", lambda r: until(r.expires_at), right=True),
        Column("MADE", lambda r: ago(r.created_at), right=True),
        Column("BY", lambda r: r.created_by, long=True),
    ]
    fetch = _rules(session.as_operator())
    hint = "angelia policy add allow send --subject '*' --object '*'"
    show_list(session, fetch, columns, nothing="no rules, so nothing is allowed", hint=hint)


@command.verb(example="angelia policy remove 5b0f3c9a71e2", needs=Needs.SERVER | Needs.OPERATOR | Needs.YES)
@click.argument("id_", metavar="ID")
def remove(session: CommandContext, id_: str) -> None:
    """Remove a rule, at once. What only it allowed is denied from then on.

    ID is the rule's id or its first 8 characters or more."""
    client = session.as_operator()
    known = {str(rule.rule_id): rule for rule in every(_rules(client))}
    rule = known[full_id(id_, known, "rule", "angelia policy list")]
    named = f"rule {short(rule.rule_id)} ({_worded(rule)})"
    if may(session, Deed("remove", "removing", named, look="angelia policy list")):
        client.policy.remove(str(rule.rule_id))
        session.out.done({"rule_id": rule.rule_id}, f"removed {named}")


@command.verb(example="angelia policy check send --subject alice --object bob", needs=Needs.SERVER | Needs.OPERATOR)
@click.argument("action", metavar="ACTION", type=click.Choice(ACTIONS))
@click.option("--subject", metavar="HANDLE", required=True, help="the agent that acts")
@click.option(
    "--object", "object_", metavar="NAME", required=True, help="the agent it acts on, or owner/name of a channel"
)
def check(session: CommandContext, action: str, subject: str, object_: str) -> int:
    """Ask the rules, changing nothing. Exit 0 when they allow it, 5 when they deny it."""
    from angelia.policy.model import Action, Wish, check_wish

    try:
        check_wish(Wish(subject, Action(action), object_))
    except InvalidArgument as error:
        raise Usage(error.message, hint=error.hint) from error
    decision = session.as_operator().policy.check(Action(action), object_, subject=subject)
    word = "allowed" if decision.allowed else "denied"
    by = f"rule {decision.rule_id}" if decision.rule_id else "" if decision.allowed else "no rule allows it"
    session.out.thing(decision, [("decision", word), ("by", by)], quietly=word)
    if decision.allowed:
        return 0
    if decision.rule_id is None:
        session.out.note(f"hint: angelia policy add allow {action} --subject {subject} --object {object_}")
    else:
        session.out.note("hint: angelia policy list")
    return NOT_ALLOWED


def _rules(client: Client) -> Fetch[PolicyRule]:
    return server_pages(client.policy.list, lambda page: page.policies)


def _worded(rule: PolicyRule) -> str:
    return f"{rule.effect} {rule.action}, {rule.subject} to {rule.object}"
