"""Rotation schedules of agents. The server announces when one is due; the agent makes the key and reports it."""

from __future__ import annotations

import uuid
from datetime import datetime
from uuid import UUID

import msgspec

from angelia import metrics
from angelia.agents import service as agents_service
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.model import Detail, Event
from angelia.envelope.ids import MAX_HANDLE, hot_tag
from angelia.errors import InvalidArgument, KeyNotFound, NotFound, VersionConflict
from angelia.keys import schedules_store, store
from angelia.keys.field_encryption import FieldPlace, Fields
from angelia.keys.model import (
    DESTROY_AFTER,
    MOST_GRACE_KEYS,
    DataKeyPurpose,
    GraceKey,
    KeyStatus,
    RotationDue,
    RotationPolicy,
    RotationSchedule,
    ScheduleRecord,
)
from angelia.keys.service import Keys
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import Wake, encode_event, wake_topic

PURPOSE = DataKeyPurpose.GRACE_PERIOD_KEYS
_TICK_BATCH = 500
_GRACE_KEYS = msgspec.json.Decoder(list[GraceKey])


class Schedules:
    """An agent's schedules concern only its own rotations: the agent sets them, or an operator does.

    Only an agent that may read a peer's keys learns whether that peer exists."""

    def __init__(self, ledger: Ledger, keys: Keys, fields: Fields, wake: Wake) -> None:
        self._ledger = ledger
        self._keys = keys
        self._fields = fields
        self._wake = wake

    async def of_agent(self, agent: AgentRow, after: str, limit: int, now: datetime) -> list[ScheduleRecord]:
        """A page of an agent's schedules in the order of its peers, after a peer."""
        async with self._ledger.reading() as tx:
            held = await schedules_store.of_agent(tx, agent.handle, after, limit)
            return [await self._shown(tx, one, now) for one in held]

    async def put(
        self, agent: AgentRow, peer: str, policy: RotationPolicy, now: datetime, operator: str | None = None
    ) -> ScheduleRecord:
        """Makes or changes an agent's schedule with a peer; it begins with the agent's active key."""
        other = await self._keys.readable(peer, agent if operator is None else None, now)
        if other.id == agent.id:
            raise InvalidArgument("a schedule is between two agents")
        async with self._ledger.transaction() as tx:
            mine, _ = await _active_key(tx, agent.handle), await _active_key(tx, other.handle)
            held = await schedules_store.put(tx, agent.handle, other.handle, uuid.uuid4(), mine, policy, now)
            detail = {"session_id": str(held.session_id), "policy": policy.value}
            await audit.record(tx, [_changed(agent, other.handle, operator, detail, now)])
            return await self._shown(tx, held, now)

    async def remove(self, agent: AgentRow, peer: str, now: datetime, operator: str | None = None) -> None:
        async with self._ledger.transaction() as tx:
            named = await _handle(tx, peer)
            removed = await schedules_store.remove(tx, agent.handle, named)
            if removed is None:
                raise _none_with(peer)
            detail = {"session_id": str(removed), "policy": None}
            await audit.record(tx, [_changed(agent, named, operator, detail, now)])

    async def rotated(self, agent: AgentRow, peer: str, key_id: UUID, version: int, now: datetime) -> ScheduleRecord:
        """Sets the key that an agent made, unless another process of the agent reported this version or a later one."""
        async with self._ledger.transaction() as tx:
            named = await _handle(tx, peer)
            held = await schedules_store.lock(tx, agent.handle, named)
            if held is None:
                raise _none_with(peer)
            if (held.current_key_version, held.current_key_id) == (version, key_id):
                return await self._shown(tx, held, now)  # a repeated report, whose first answer was lost
            if version != held.current_key_version + 1:
                conflict = VersionConflict(f"the schedule is at version {held.current_key_version} already")
                at, id_ = held.current_key_version, str(held.current_key_id)
                conflict.members = {"current_key_version": at, "current_key_id": id_}
                raise conflict
            if key_id == held.current_key_id:
                raise InvalidArgument(f"{key_id} is the schedule's key already", hint="make a new key and rotate to it")
            record = (await store.records(tx, agent.handle, [key_id])).get(key_id)
            if record is None or record.status is not KeyStatus.ACTIVE or record.usage == "identity":
                raise InvalidArgument(f"{key_id} is not an active KEM key of {agent.handle}")
            present = (key_id, held.current_key_id)
            earlier = [one for one in await self._grace_keys(tx, held, now) if one.key_id not in present]
            grace = [*earlier, GraceKey(held.current_key_id, now + DESTROY_AFTER)][-MOST_GRACE_KEYS:]
            sealed = await self._fields.encrypt(tx, PURPOSE, _place(held), msgspec.json.encode(grace), now)
            changed = await schedules_store.rotated(tx, held, key_id, version, now, sealed)
            detail: Detail = {"session_id": str(held.session_id), "key_id": str(key_id), "version": version}
            event = audit.event("session_key_rotated", now, actor=agent.handle, object=named, detail=detail)
            await audit.record(tx, [event])
            return _record(changed, grace)

    async def announce_due(self, now: datetime) -> bool:
        """One tick: marks due schedules and tells their agents. Returns whether more wait."""
        async with self._ledger.transaction() as tx:
            due = await schedules_store.announce_due(tx, now, _TICK_BATCH)
        metrics.ROTATIONS_ANNOUNCED.inc(len(due))
        for one in due:
            said = msgspec.json.encode(msgspec.convert(one, RotationDue, from_attributes=True))
            await self._wake.tell(wake_topic("events", hot_tag(one.agent)), encode_event("rotation_due", said))
        return len(due) == _TICK_BATCH

    async def _shown(self, tx: Tx, held: RotationSchedule, now: datetime) -> ScheduleRecord:
        return _record(held, await self._grace_keys(tx, held, now))

    async def _grace_keys(self, tx: Tx, held: RotationSchedule, now: datetime) -> list[GraceKey]:
        if held.sealed_grace_keys is None:
            return []
        content = await self._fields.decrypt(tx, _place(held), held.sealed_grace_keys)
        return [key for key in _GRACE_KEYS.decode(content) if key.expires_at > now]


async def _active_key(tx: Tx, handle: str) -> UUID:
    active = [one for one in await store.living_records(tx, handle) if one.status is KeyStatus.ACTIVE]
    kem_keys = sorted((one for one in active if one.usage != "identity"), key=lambda one: one.key_type, reverse=True)
    if not kem_keys:
        raise KeyNotFound(f"{handle} has no key bundle", hint=f"{handle} runs `angelia key publish`")
    return kem_keys[0].key_id


async def _handle(tx: Tx, peer: str) -> str:
    """The handle of a peer; an unknown name stays as it is, so that it is answered like a peer without a schedule."""
    found = await agents_service.find(tx, peer)
    return peer if found is None else found.handle


def _changed(agent: AgentRow, peer: str, operator: str | None, detail: Detail, now: datetime) -> Event:
    if operator is not None:
        detail = {**detail, "agent_nhi": agent.handle}
    return audit.event("schedule_changed", now, actor=operator or agent.handle, object=peer, detail=detail)


def _record(held: RotationSchedule, grace_keys: list[GraceKey]) -> ScheduleRecord:
    return msgspec.convert({**msgspec.structs.asdict(held), "grace_period_keys": grace_keys}, ScheduleRecord)


def _place(held: RotationSchedule) -> FieldPlace:
    return FieldPlace("ratchet_states", held.session_id.bytes, "grace_period_keys")


def _none_with(peer: str) -> NotFound:
    named = peer[:MAX_HANDLE]
    return NotFound(f"there is no schedule with {named}", hint=f"PUT /v1/schedules/{named} makes one")
