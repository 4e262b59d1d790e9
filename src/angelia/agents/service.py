"""Agents: registration, handles, request keys, block lists and look-ups."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

from angelia import metrics
from angelia.agents import store
from angelia.agents.model import BlockedAgent, Registration, check_email, check_handle, clean_name, parse_public_key
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.envelope.ids import MAX_HANDLE, KeyType, key_id, valid_handle
from angelia.errors import AlreadyExists, AngeliaError, Conflict, InvalidArgument, NotFound
from angelia.stores.group_commit import GroupCommit
from angelia.stores.ledger import Ledger, Tx, UniqueViolation
from angelia.stores.wake import Wake, wake_topic

MOST_BLOCKS = 10_000  # entries of one block list
CHANGES = wake_topic("agents", "changes")
# How long the agent of a key is remembered: for longer by a process that hears of the changes of all others.
_KEPT_SECONDS, _KEPT_UNHEARD_SECONDS = 10.0, 1.0
_MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """The agent of a key, and whether this registration made it."""

    id: UUID
    new: bool


class Agents:
    """The agents of this ledger. Each key belongs to one agent."""

    def __init__(self, ledger: Ledger, wake: Wake | None = None) -> None:
        self._ledger = ledger
        self._wake = wake
        self._registrations = GroupCommit(ledger.transaction, register_batch)
        self._lookups = GroupCommit(ledger.lookups, _by_key_ids)
        self._by_key: dict[UUID | None, tuple[float, AgentRow]] = {}  # when each was read, and the agent
        self._key_of: dict[UUID, UUID] = {}  # by agent
        self._forgotten = 0
        if wake is not None:
            wake.follow(CHANGES, self)

    async def close(self) -> None:
        await self._registrations.close()
        await self._lookups.close()

    async def register(self, public_key: str, name: str, email: str, now: datetime) -> RegistrationOutcome:
        """Registers a key, or finds the agent that has it; a repeat changes nothing."""
        raw = parse_public_key(public_key)
        wanted = Registration(
            id=uuid.uuid4(),
            public_key=raw,
            key_id=key_id(KeyType.ED25519, raw),
            name=clean_name(name),
            email=check_email(email),
            at=now,
        )
        registered = await self._registrations.submit(wanted)
        if registered.new:
            metrics.AGENTS_REGISTERED.inc()
        return registered

    async def update(
        self, agent: AgentRow, now: datetime, *, name: str | None, email: str | None, aicq_signatures: bool | None
    ) -> AgentRow:
        """Changes an agent's profile; None leaves a field as it is. Returns the agent."""
        name = None if name is None else clean_name(name)
        email = None if email is None else check_email(email)
        async with self.changing(agent.id) as tx:
            before = await lock(tx, agent.id)
            updated = _found(await store.update(tx, agent.id, name, email, aicq_signatures, now))
            changed = [f for f in ("name", "email", "aicq_signatures") if getattr(updated, f) != getattr(before, f)]
            if changed:
                detail = {"changed": ",".join(changed)}
                event = audit.event("agent_updated", now, actor=updated.handle, object=updated.handle, detail=detail)
                await audit.record(tx, [event])
        return updated

    async def claim_handle(self, agent: AgentRow, handle: str, now: datetime) -> AgentRow:
        """Gives an agent its handle, which never changes again; idempotent. Returns the agent."""
        check_handle(handle)
        try:
            async with self.changing(agent.id) as tx:
                claimed = await store.claim_handle(tx, agent.id, handle, now)
                if claimed is None:
                    return await _claimed_before(tx, agent, handle)
                event = audit.event("handle_claimed", now, actor=handle, object=handle, detail={"id": str(agent.id)})
                await audit.record(tx, [event])
            return claimed
        except UniqueViolation as error:
            raise AlreadyExists(
                f"the handle {handle} belongs to another agent",
                hint="choose another one; a handle is for ever",
            ) from error

    async def by_id(self, id: UUID) -> AgentRow:
        async with self._ledger.reading() as tx:
            return _found(await store.by_id(tx, id))

    async def by_key_id(self, key_id: UUID, now: datetime) -> tuple[AgentRow, bytes] | None:
        """Returns the agent whose requests this key signs now, and the key: its present one, or a former one still
        valid.

        Remembered for ten seconds. A change by another process shows at once, and if its wake-up is lost, ten seconds
        later; while no wake-ups come, a second later.
        """
        read_at, known = self._by_key.get(key_id, (0.0, None))
        began = monotonic()
        if known is not None:
            kept_seconds = _KEPT_SECONDS if self._heard_since(read_at) else _KEPT_UNHEARD_SECONDS
            if began < read_at + kept_seconds:
                return known, known.public_key
        forgotten = self._forgotten
        found = await self._lookups.submit((key_id, now))
        # A result read before `ring` may be older than the change, so it is not kept. Neither is a former key: it is
        # rare, and valid only until a time that is not kept with it.
        if found is not None and found[0].key_id == key_id and forgotten == self._forgotten:
            self._keep(began, found[0])
        return found

    async def valid_former_keys(self, id: UUID, now: datetime) -> list[bytes]:
        """Returns an agent's former keys that still sign its requests."""
        async with self._ledger.reading() as tx:
            return await store.valid_former_keys(tx, id, now)

    @asynccontextmanager
    async def changing(self, id: UUID) -> AsyncIterator[Tx]:
        """Opens a transaction that changes an agent or its keys. Afterwards all processes forget what they remember of
        the agent; also after an error, since it may have been committed."""
        try:
            async with self._ledger.transaction() as tx:
                yield tx
        finally:
            if self._wake is None:
                self.ring(id.bytes)
            else:
                await self._wake.tell(CHANGES, id.bytes)

    def ring(self, message: bytes = b"") -> None:
        """A process has changed an agent. An empty message says that some changes may be missing: `Wake.heard_since`
        knows."""
        if message:
            self._by_key.pop(self._key_of.pop(UUID(bytes=message), None), None)
            self._forgotten += 1

    def _keep(self, read_at: float, agent: AgentRow) -> None:
        if len(self._by_key) >= _MOST_KEPT:
            self._by_key.clear()
            self._key_of.clear()
        if (before := self._key_of.get(agent.id)) != agent.key_id:
            self._by_key.pop(before, None)  # replaced, and this process was not told
        self._key_of[agent.id] = agent.key_id
        self._by_key[agent.key_id] = (read_at, agent)

    def _heard_since(self, then: float) -> bool:
        """Whether this process has heard of all changes since then."""
        since = self._wake.heard_since(CHANGES) if self._wake is not None else None
        return since is not None and since <= then

    async def names(self, ids: Collection[UUID]) -> dict[UUID, str]:
        """The names of agents, by id."""
        async with self._ledger.reading() as tx:
            return await store.names(tx, ids)

    async def count(self) -> int:
        async with self._ledger.reading() as tx:
            return await store.count(tx)

    async def named(self, name: str) -> AgentRow:
        """Returns an agent by handle or by id. The default handle is the id, so one look-up is nearly always enough."""
        async with self._ledger.reading() as tx:
            found = await find(tx, name)
        if found is None:
            raise no_such_agent(name)
        return found

    async def handles(self, ids: Sequence[UUID]) -> dict[UUID, str]:
        async with self._ledger.reading() as tx:
            return await store.handles(tx, ids)

    async def list_agents(
        self,
        *,
        name: str | None,
        since: datetime | None,
        until: datetime | None,
        after: tuple[datetime, UUID] | None,
        limit: int,
    ) -> tuple[list[AgentRow], int]:
        """Returns a page of agents in order of registration, and how many there are in that period. With a name: of
        those that have it, and then of those whose name begins with it."""
        async with self._ledger.reading() as tx:
            if name:
                return await store.named(tx, name, since, until, after, limit)
            return await store.list_agents(tx, since, until, after, limit)

    async def block(self, agent: AgentRow, name: str, now: datetime) -> None:
        """Puts another agent on an agent's block list; idempotent."""
        other = await self.named(name)
        if other.id == agent.id:
            raise InvalidArgument("an agent cannot block itself")
        async with self._ledger.transaction() as tx:
            present = await lock(tx, agent.id)
            if not await store.block(tx, agent.id, other.id, now):
                return
            if await store.count_blocks(tx, agent.id) > MOST_BLOCKS:
                raise Conflict(f"a block list has at most {MOST_BLOCKS:,} entries", hint="unblock somebody first")
            await audit.record(tx, [audit.event("agent_blocked", now, actor=present.handle, object=other.handle)])

    async def unblock(self, agent: AgentRow, name: str, now: datetime) -> None:
        """Takes another agent from an agent's block list. No error if it is not on the list, or does not exist."""
        async with self._ledger.transaction() as tx:
            other = await find(tx, name)
            if other is None:
                return
            present = await lock(tx, agent.id)
            if await store.unblock(tx, agent.id, other.id):
                await audit.record(tx, [audit.event("agent_unblocked", now, actor=present.handle, object=other.handle)])

    async def block_list(
        self, agent: AgentRow, after: tuple[datetime, UUID] | None, limit: int
    ) -> tuple[list[BlockedAgent], int]:
        """Returns a page of an agent's block list, the oldest entry first, and how many entries there are."""
        async with self._ledger.reading() as tx:
            return await store.blocks(tx, agent.id, after, limit), await store.count_blocks(tx, agent.id)


async def find(tx: Tx, name: str) -> AgentRow | None:
    """Returns the agent of a handle or an id, in the caller's transaction."""
    if not valid_handle(name):
        return None
    found = await store.by_handle(tx, name)
    if found is None and (id_ := _as_uuid(name)) is not None:
        found = await store.by_id(tx, id_)
    return found


async def check_handles(tx: Tx, handles: Collection[str]) -> None:
    """NotFound unless each of these handles has an agent; the error names one that has none."""
    missing = set(handles) - await store.known_handles(tx, sorted(handles)) if handles else set()
    if missing:
        raise no_such_agent(min(missing))


async def blocked(tx: Tx, pairs: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns those of the pairs (sender, recipient) of handles whose recipient has blocked the sender."""
    return await store.blocked(tx, pairs) if pairs else set()


def no_such_agent(name: str) -> NotFound:
    return NotFound(f"there is no agent {name[:MAX_HANDLE]}", hint="a handle, which is lower case, or an agent's id")


async def lock(tx: Tx, agent_id: UUID) -> AgentRow:
    """Returns the agent, locked until the caller's transaction ends."""
    return _found(await store.lock(tx, agent_id))


async def fix_handle(tx: Tx, agent_id: UUID) -> None:
    """Makes the handle final: from its first bundle on, an agent's signatures name it."""
    await store.fix_handle(tx, agent_id)


async def end_former_keys(tx: Tx, agent_id: UUID) -> None:
    """Ends the validity of all former keys of an agent."""
    await store.end_former_keys(tx, agent_id)


async def replace_key(
    tx: Tx, agent_id: UUID, new_public_key: bytes, now: datetime, *, old_valid_for: timedelta
) -> AgentRow:
    """Gives an agent a new request key, which must be a sound one; the old key stays valid for `old_valid_for`.

    Zero is for emergencies: it also ends all former keys of the agent. After a Conflict the caller's transaction cannot
    go on. The transaction is one of `Agents.changing`.
    """
    agent = await lock(tx, agent_id)
    new_key_id = key_id(KeyType.ED25519, new_public_key)
    await store.lock_keys(tx, [agent.key_id, new_key_id])
    if await store.ever_used(tx, new_public_key):
        raise _used_key()
    if not old_valid_for:
        await end_former_keys(tx, agent_id)
    try:
        return await store.replace_key(tx, agent, new_public_key, new_key_id, now, now + old_valid_for)
    except UniqueViolation as error:
        raise _used_key() from error


async def register_batch(tx: Tx, wanted: Sequence[Registration]) -> list[RegistrationOutcome | AngeliaError]:
    """Registers keys, and returns the outcome or the error of each."""
    made, ids = await store.register(tx, wanted)
    results: list[RegistrationOutcome | AngeliaError] = []
    events = []
    for registration in wanted:
        id_ = ids.get(registration.public_key)
        if id_ is None:
            results.append(Conflict("this key was replaced by a newer one", hint="use the agent's present key"))
            continue
        # A key may occur twice in a batch: the first registration made the agent.
        new = registration.public_key in made
        made.discard(registration.public_key)
        results.append(RegistrationOutcome(id_, new))
        if new:
            detail = {"id": str(id_), "key_id": str(registration.key_id)}
            events.append(
                audit.event("agent_registered", registration.at, actor=str(id_), object=str(id_), detail=detail)
            )
    await audit.record(tx, events)
    return results


async def _by_key_ids(
    tx: Tx, asked: Sequence[tuple[UUID, datetime]]
) -> list[tuple[AgentRow, bytes] | AngeliaError | None]:
    """For each request key and time, the agent whose requests it signs then, and the key."""
    present = await store.by_key_ids(tx, [id_ for id_, _ in asked])
    found = {id_: (agent, agent.public_key) for id_, agent in present.items()}
    if others := [id_ for id_, _ in asked if id_ not in found]:
        found |= await store.by_former_key_ids(tx, others, max(now for _, now in asked))
    return [found.get(id_) for id_, _ in asked]


async def _claimed_before(tx: Tx, agent: AgentRow, handle: str) -> AgentRow:
    present = _found(await store.by_id(tx, agent.id))
    if present.handle == handle:
        return present
    hint = "a handle is claimed once, before the first key bundle, and is for ever"
    raise Conflict(f"this agent is {present.handle} already", hint=hint)


def _used_key() -> Conflict:
    return Conflict("this key is, or was, an agent's key", hint="make a new key pair; a key is used once")


def _found(agent: AgentRow | None) -> AgentRow:
    if agent is None:
        raise NotFound("agent not found")
    return agent


def _as_uuid(text: str) -> UUID | None:
    try:
        parsed = UUID(text)
    except ValueError:
        return None
    return parsed if str(parsed) == text else None
