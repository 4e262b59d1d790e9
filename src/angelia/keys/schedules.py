"""Rotation schedules of agent pairs. The server only says when; the agents make the keys and report what they did."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from angelia import metrics
from angelia.agents.model import Agent
from angelia.agents.service import Agents
from angelia.audit import service as audit
from angelia.envelope.ids import hot_tag
from angelia.errors import InvalidArgument, KeyNotFound, NotFound, VersionConflict
from angelia.keys import schedules_store, store
from angelia.keys.fields import Fields, Place
from angelia.keys.model import DESTROY_AFTER, MOST_GRACE_KEYS, GraceKey, KeyStatus, Policy, Schedule
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import Wake, news, topic

PURPOSE = "grace_period_keys"
_TICK_BATCH = 500
_GRACE_KEYS = msgspec.json.Decoder(list[GraceKey])


@dataclass(frozen=True, slots=True)
class Shown:
    """A schedule with its grace keys readable."""

    schedule: Schedule
    grace_keys: list[GraceKey]


class Schedules:
    """Either of the two agents may make, change and remove their schedule."""

    def __init__(self, ledger: Ledger, agents: Agents, fields: Fields, wake: Wake) -> None:
        self._ledger = ledger
        self._agents = agents
        self._fields = fields
        self._wake = wake

    async def of_agent(self, agent: Agent, after: str, limit: int, now: datetime) -> list[Shown]:
        """An agent's schedules in the order of its peers, after one of them."""
        async with self._ledger.reading() as tx:
            held = await schedules_store.of_agent(tx, agent.handle, after, limit)
            return [await self._shown(tx, one, now) for one in held]

    async def put(self, agent: Agent, peer: str, policy: Policy, now: datetime) -> Shown:
        """Make or change the schedule with a peer; it begins with the caller's active key."""
        other = await self._agents.named(peer)
        if other.id == agent.id:
            raise InvalidArgument("a schedule is between two agents")
        async with self._ledger.transaction() as tx:
            mine, _ = await _active_key(tx, agent.handle), await _active_key(tx, other.handle)
            held = await schedules_store.put(tx, agent.handle, other.handle, uuid.uuid4(), mine, policy, now)
            detail = {"session_id": str(held.session_id), "policy": policy.value}
            event = audit.event("schedule_changed", now, actor=agent.handle, object=other.handle, detail=detail)
            await audit.record(tx, [event])
            return await self._shown(tx, held, now)

    async def remove(self, agent: Agent, peer: str, now: datetime) -> None:
        other = await self._agents.named(peer)
        async with self._ledger.transaction() as tx:
            removed = await schedules_store.remove(tx, agent.handle, other.handle)
            if removed is None:
                raise _none_with(other.handle)
            detail = {"session_id": str(removed), "policy": None}
            event = audit.event("schedule_changed", now, actor=agent.handle, object=other.handle, detail=detail)
            await audit.record(tx, [event])

    async def rotated(self, agent: Agent, peer: str, key_id: UUID, version: int, now: datetime) -> Shown:
        """An agent reports its new key: set only if nobody else reported this version, or a later one, before."""
        other = await self._agents.named(peer)
        async with self._ledger.transaction() as tx:
            held = await schedules_store.lock(tx, agent.handle, other.handle)
            if held is None:
                raise _none_with(other.handle)
            if (held.current_key_version, held.current_key_id) == (version, key_id):
                return await self._shown(tx, held, now)  # the answer to the first report was lost on its way
            if version != held.current_key_version + 1:
                raise _version_conflict(held)
            if key_id == held.current_key_id:
                raise InvalidArgument(f"{key_id} is the schedule's key already", hint="make a new key and rotate to it")
            record = (await store.records(tx, agent.handle, [key_id])).get(key_id)
            if record is None or record.status is not KeyStatus.ACTIVE or record.usage == "identity":
                raise InvalidArgument(f"{key_id} is not an active KEM key of {agent.handle}")
            named = (key_id, held.current_key_id)
            earlier = [one for one in await self._grace_keys(tx, held, now) if one.key_id not in named]
            grace = [*earlier, GraceKey(held.current_key_id, now + DESTROY_AFTER)][-MOST_GRACE_KEYS:]
            place, content = _place(held), msgspec.json.encode(grace)
            sealed = await self._fields.encrypt(tx, PURPOSE, place, content, now)
            interval = held.policy.interval
            following = None if interval is None else now + interval
            changed = await schedules_store.rotated(tx, held, key_id, version, now, following, sealed)
            detail: dict[str, str | int | bool | None] = {
                "session_id": str(held.session_id),
                "key_id": str(key_id),
                "version": version,
            }
            event = audit.event("session_key_rotated", now, actor=agent.handle, object=other.handle, detail=detail)
            await audit.record(tx, [event])
            return Shown(changed, grace)

    async def announce_due(self, now: datetime) -> bool:
        """One tick: mark what is due, so that both agents learn of it; whether more wait."""
        async with self._ledger.transaction() as tx:
            due = await schedules_store.announce_due(tx, now, _TICK_BATCH)
        metrics.ROTATIONS_ANNOUNCED.inc(len(due))
        for one in due:
            for agent in (one.agent_a_nhi, one.agent_b_nhi):
                said = {"peer": one.peer_of(agent), "session_id": one.session_id, "due_since": one.due_since}
                await self._wake.tell(topic("events", hot_tag(agent)), news("rotation_due", msgspec.json.encode(said)))
        return len(due) == _TICK_BATCH

    async def _shown(self, tx: Tx, held: Schedule, now: datetime) -> Shown:
        return Shown(held, await self._grace_keys(tx, held, now))

    async def _grace_keys(self, tx: Tx, held: Schedule, now: datetime) -> list[GraceKey]:
        if held.grace_period_keys is None:
            return []
        content = await self._fields.decrypt(tx, _place(held), held.grace_period_keys)
        return [key for key in _GRACE_KEYS.decode(content) if key.expires_at > now]


async def _active_key(tx: Tx, handle: str) -> UUID:
    active = [one for one in await store.living_records(tx, handle) if one.status is KeyStatus.ACTIVE]
    kem_keys = sorted((one for one in active if one.usage != "identity"), key=lambda one: one.key_type, reverse=True)
    if not kem_keys:
        raise KeyNotFound(f"{handle} has no key bundle", hint=f"{handle} runs `angelia key publish`")
    return kem_keys[0].key_id


def _place(held: Schedule) -> Place:
    return Place("ratchet_states", held.session_id.bytes, "grace_period_keys")


def _none_with(peer: str) -> NotFound:
    return NotFound(f"there is no schedule with {peer}", hint=f"PUT /v1/schedules/{peer} makes one")


def _version_conflict(held: Schedule) -> VersionConflict:
    error = VersionConflict(f"the schedule is at version {held.current_key_version} already")
    error.members = {
        "current_key_version": held.current_key_version,
        "current_key_id": str(held.current_key_id),
    }
    return error
