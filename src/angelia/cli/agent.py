"""`angelia agent`: make, register and show agents."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import UNSET

from angelia.cli import flags
from angelia.cli.command_context import CommandContext
from angelia.cli.flags import Needs, local_agents
from angelia.cli.grammar import Noun
from angelia.cli.key import FACTS, publish_first
from angelia.cli.times import full
from angelia.errors import AlreadyExists, AngeliaError, Conflict

if TYPE_CHECKING:
    from angelia.agents.api import AgentRecord
    from angelia.client import Client
    from angelia.envelope.bundles import Link
    from angelia.mailbox.aicq_identity import AicqIdentity
    from angelia.mailbox.identity import Identity

_OTHER_AGENT = "make another agent: angelia agent new NAME --register"

command = Noun("agent", "make, register and show agents; claim a handle")


@command.verb(example="angelia agent new alice --register", needs=Needs.SERVER)
@click.argument("name", metavar="NAME", type=flags.handle)
@click.option("--register", is_flag=True, help="register it with the server and claim NAME as its handle")
@click.option("--passphrase", is_flag=True, help="ask for a passphrase that protects the key file")
@click.option("--name", "display_name", metavar="TEXT", help="the name that people see")
@click.option(
    "--from-aicq", "aicq", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="take the key of an AICQ client: agent.json with private.key or private.pem",
)  # fmt: skip
def new(
    session: CommandContext,
    name: str,
    register: bool,
    passphrase: bool,
    display_name: str | None,
    aicq: Path | None,
) -> None:
    """Make the keys of a new agent on this machine.

    NAME is what the agent is called here, and the handle that it claims. With --from-aicq the agent
    stays the one that it is: same key, same id."""
    from angelia.mailbox import aicq_identity, identity

    taken = None if aicq is None else aicq_identity.read(aicq)
    if taken is not None:
        _refuse_known_key(session.settings.home, name, taken)
    secret = session.ask_new_passphrase() if passphrase else None
    try:
        made = identity.create(session.settings.home, name, secret, ed25519=taken.seed if taken else None)
    except AlreadyExists as error:
        known = identity.public_identity(session.settings.home, name)
        unregistered = register and (known is None or known.id is None)
        error.hint = f"angelia agent register --as {name}" if unregistered else f"angelia agent show {name}"
        raise
    how = "with a passphrase" if secret else "no passphrase (--passphrase asks for one)"
    pairs = [("keys", f"{f'taken from {aicq}' if aicq else 'made'}, 0600, {how}")]
    if register:
        agent = _enrol(session, made, pairs, display_name, None)
        if taken is not None and taken.id != agent.id:
            session.out.note(f"warning: the server gave it a new id; in {aicq} it has {taken.id}, of another server")
        return
    pairs += [("key id", str(made.key_id)), ("fingerprint", made.pair.public.fingerprint)]
    _print_unregistered(session, made, pairs)


@command.verb(example="angelia agent show alice", needs=Needs.SERVER | Needs.AGENT | Needs.OPERATOR)
@click.argument("name", metavar="[NAME]", required=False, shell_complete=local_agents)
def show(session: CommandContext, name: str | None) -> None:
    """Show an agent: one of this machine, or with an operator's token any other.

    NAME is a handle or an id; without it, the agent that --as names."""
    local = session.local_name(name) if name else session.identity_name
    if local is None:
        _show_other(session, str(name))
        return
    mine = session.opened(local)
    if mine.id is not None:
        _print_agent(session, session.as_agent(mine).agents.me(), mine.pair.public.fingerprint)
        return
    pairs = [
        ("handle", mine.handle),
        ("key id", str(mine.key_id)),
        ("fingerprint", mine.pair.public.fingerprint),
        ("registered", "no"),
    ]
    _print_unregistered(session, mine, pairs)


@command.verb(example="angelia agent register --as alice", needs=Needs.SERVER | Needs.AGENT)
@click.option("--name", "display_name", metavar="TEXT", help="the name that people see")
@click.option("--email", metavar="ADDRESS", help="where to reach the people that run the agent")
def register(session: CommandContext, display_name: str | None, email: str | None) -> None:
    """Register an agent of this machine, claim its handle and publish its keys.

    Saying it again does no harm: it finds the agent, and changes the name or e-mail if they are given."""
    _enrol(session, session.identity, [], display_name, email)


@command.verb(example="angelia agent handle alice-7 --as alice", needs=Needs.SERVER | Needs.AGENT)
@click.argument("handle", metavar="HANDLE", type=flags.handle)
def handle(session: CommandContext, handle: str) -> None:
    """Claim a handle for a registered agent: once, and for ever."""
    chain = _chain(session, session.identity)
    _refuse_other_handle(session.identity, chain, handle)
    agent = session.as_agent().agents.claim_handle(handle)
    _remember(session, session.identity, agent)
    session.out.thing(agent, [_handle_fact(agent)], quietly=agent.handle, least=FACTS)
    if not chain:
        session.out.note(f"next: angelia key publish --as {session.identity.name}")


def _enrol(
    session: CommandContext, identity: Identity, pairs: list[tuple[str, str]], name: str | None, email: str | None
) -> AgentRecord:
    """Registers, claims the handle and publishes the keys. Returns the agent; a step that succeeded is shown even if a
    later one fails."""
    chain = _chain(session, identity)
    if identity.id is None:
        _refuse_replaced_pair(identity, chain)
    client = session.as_agent(identity)
    try:
        client.agents.register(identity.public_key, name=name, email=email)
        agent = _with_details(client, client.agents.me(), name, email)
    except AngeliaError as error:
        if pairs:
            if not session.shared.json and not session.shared.quiet:
                session.out.thing(None, pairs, least=FACTS)
            error.hint = f"the keys are safe; go on with `angelia agent register --as {identity.name}`"
        elif session.mailbox_of(identity).key_rotation.awaits_next_pair():
            error.hint = f"its next signing pair may have taken over: angelia key publish --as {identity.name}"
        raise
    wanted = _wanted(agent, identity)
    _refuse_other_handle(identity, chain, wanted)
    # An agent with bundles works without a server; it stays unregistered here until it owns the handle that they name.
    if identity.id != agent.id and not chain:
        _remember(session, identity, agent)
    pairs.append(("registered", str(agent.id)))
    go_on = f"`angelia agent register --as {identity.name}`"
    try:
        agent = agent if agent.handle == wanted else client.agents.claim_handle(wanted)
        registered = _remember(session, identity, agent)
        pairs.append(_handle_fact(agent))
        go_on = f"`angelia key publish --as {identity.name}`"
        mailbox = session.mailbox_of(registered)
        pairs += publish_first(session.as_agent(mailbox), mailbox)
    except AngeliaError as error:
        error.hint = f"the agent is registered; go on with {go_on}"
        if isinstance(error, AlreadyExists) and agent.handle != wanted:
            another = f"`angelia agent handle OTHER --as {identity.name}`"
            error.hint = _OTHER_AGENT if chain else f"{another}, then `angelia key publish --as {identity.name}`"
        raise
    finally:
        session.out.thing(agent, pairs, quietly=str(agent.id), least=FACTS)
    return agent


def _refuse_known_key(home: Path, name: str, taken: AicqIdentity) -> None:
    """Raises AlreadyExists if another agent of this machine has the key: the server knows one agent by it."""
    from angelia.mailbox import agent_names, identity

    for other in agent_names.names(home):
        try:
            known = identity.public_identity(home, other)
        except AngeliaError:  # its files are broken, which is not this command's business
            continue
        if known is not None and known.public_key == taken.public_key and other != name:
            raise AlreadyExists(f"{other} has this key already; nothing was made", hint=f"angelia agent show {other}")


def _chain(session: CommandContext, identity: Identity) -> list[Link]:
    """The agent's bundles, also those that it only handed over as files."""
    return session.mailbox_of(identity).own_keys.chain()


def _refuse_other_handle(identity: Identity, chain: list[Link], handle: str) -> None:
    """Raises Conflict if the bundles name another handle: a server refuses them for an agent of this one."""
    if chain and chain[0].bundle.agent_nhi != handle:
        raise Conflict(
            f"the bundles of {identity.name} name it {chain[0].bundle.agent_nhi}, so it cannot be {handle}",
            hint=_OTHER_AGENT,
        )


def _refuse_replaced_pair(identity: Identity, chain: list[Link]) -> None:
    """Raises Conflict if another pair signed the first bundle: a server would refuse it with the handle claimed."""
    if chain and chain[0].bundle.signer != identity.pair.public:
        raise Conflict(
            f"{identity.handle} replaced its signing pair before it had a server, and no server takes such a chain",
            hint=_OTHER_AGENT,
        )


def _with_details(client: Client, agent: AgentRecord, name: str | None, email: str | None) -> AgentRecord:
    if name in (None, agent.name) and email in (None, agent.email):
        return agent
    return client.agents.update(name=UNSET if name is None else name, email=UNSET if email is None else email)


def _wanted(agent: AgentRecord, identity: Identity) -> str:
    """The handle to claim; an agent that has one keeps it."""
    if agent.handle != str(agent.id):
        return agent.handle
    # A handle that this machine remembers was claimed before; claiming it again changes nothing.
    return identity.name if identity.handle == agent.handle else identity.handle


def _remember(session: CommandContext, identity: Identity, agent: AgentRecord) -> Identity:
    from angelia.mailbox.identity import record_registration

    return record_registration(session.settings.home, identity, id=agent.id, handle=agent.handle, server=session.url)


def _show_other(session: CommandContext, name: str) -> None:
    from angelia.client.agent_profiles import is_id

    if session.token is None and is_id(name):
        profile = session.as_anyone().agents.profile(name)
        _refuse_another(name, str(profile.id))
        pairs = [
            ("id", str(profile.id)),
            ("name", profile.name),
            ("public key", base64.b64encode(profile.public_key).decode()),
            ("registered", full(profile.joined_at)),
        ]
        session.out.thing(profile, pairs, quietly=str(profile.id), least=FACTS)
    else:
        agent = session.as_operator().agents.show(name)
        _refuse_another(name, agent.handle, str(agent.id))
        _print_agent(session, agent)


def _refuse_another(name: str, *names: str) -> None:
    from angelia.client import BadAnswer

    if name not in names:
        raise BadAnswer(f"asked for {name}, the server answered with {names[0]}")


def _print_agent(session: CommandContext, agent: AgentRecord, fingerprint: str | None = None) -> None:
    pairs = [
        ("handle", agent.handle),
        ("id", str(agent.id)),
        ("name", agent.name),
        ("e-mail", agent.email),
        ("key id", str(agent.key_id)),
        ("public key", base64.b64encode(agent.public_key).decode()),
        *([("fingerprint", fingerprint)] if fingerprint else []),
        ("registered", full(agent.registered_at)),
        ("X-AICQ-*", "accepted" if agent.aicq_signatures else "refused"),
    ]
    session.out.thing(agent, pairs, quietly=str(agent.id), least=FACTS)


def _handle_fact(agent: AgentRecord) -> tuple[str, str]:
    return ("handle", f"{agent.handle} (claimed; a handle is for ever)")


def _print_unregistered(session: CommandContext, identity: Identity, pairs: list[tuple[str, str]]) -> None:
    from angelia.mailbox.identity import PublicIdentity

    public = PublicIdentity(handle=identity.handle, public_key=identity.public_key, key_id=identity.key_id)
    session.out.thing(public, pairs, quietly=str(identity.key_id), least=FACTS)
    alone = f"without a server: angelia key publish --out FILE --as {identity.name}"
    session.out.note(f"next: angelia agent register --as {identity.name}; {alone}")
