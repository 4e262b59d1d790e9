"""Every SQL statement about agents' keys, and the hot tier's copy of their bundles."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from uuid import UUID

import msgspec

from angelia.envelope.bundles import Bundle, OneTimeKey
from angelia.envelope.ids import hot_tag
from angelia.envelope.json_form import to_text
from angelia.envelope.times import moment, unix_ms
from angelia.keys.model import CACHE, TYPE_NAMES, KeyChange, KeyRecord, LinkDocument, OneTimeKeyDocument, Rotation
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, record_of, statements
from angelia.stores.valkey import HotTier, Script

SQL = statements(__file__)
_PUT = Script.read(__file__, "bundle_put.lua")
_GET = Script.read(__file__, "bundle_get.lua")
_NEW_KEY = attrgetter("key_id", "key_type", "usage", "public_key", "created_at", "expires_at", "signer_id")


@dataclass(frozen=True, slots=True)
class NewestBundle:
    """An agent's newest bundle; `stamp` rises with every change that a reader must see."""

    link: LinkDocument
    bundle_hash: bytes
    stamp: int


async def newest(tx: Tx, agent_nhi: str) -> NewestBundle | None:
    row = await tx.fetchrow(SQL["newest"], agent_nhi)
    return None if row is None else NewestBundle(_link(row), row["bundle_hash"], row["stamp"])


async def links_since(tx: Tx, agent_nhi: str, version: int, limit: int) -> list[LinkDocument]:
    return [_link(row) for row in await tx.fetch(SQL["since"], agent_nhi, version, limit)]


async def add_bundle(tx: Tx, bundle: Bundle, document: LinkDocument, now: datetime) -> None:
    """Adds a bundle; `document` is its JSON form, with the statement about a new signing pair."""
    place = (bundle.agent_nhi, bundle.bundle_version, bundle.hash, bundle.prev_bundle_hash)
    times = (moment(bundle.issued_at), moment(bundle.expires_at), now)
    await tx.execute(SQL["add_bundle"], *place, *times, bundle.suites, document.bundle, document.rotation_statement)


async def signers(tx: Tx, wanted: Sequence[tuple[str, UUID, bool]]) -> Sequence[Row]:
    """How each signing pair stands, with its bytes unless they are known."""
    return await tx.fetch(SQL["signers"], *columns(wanted, 3))


async def pair(tx: Tx, agent_nhi: str, signer_id: UUID) -> list[KeyRecord]:
    """The two halves of a signing pair."""
    return [record_of(KeyRecord, row) for row in await tx.fetch(SQL["pair"], agent_nhi, signer_id)]


async def with_revoked_keys(tx: Tx, wanted: Sequence[tuple[str, UUID, str, UUID, datetime]]) -> set[int]:
    """The places of the envelopes with a revoked key; of each: recipient, key, sender, signer, time of acceptance."""
    return {row["n"] for row in await tx.fetch(SQL["with_revoked_keys"], *columns(wanted, 5))}


async def changed_since(tx: Tx, at: datetime, after: str, limit: int) -> list[str]:
    """Agents whose newest bundle or its revocations changed since a time; ordered by name, after a name."""
    return [row["agent_nhi"] for row in await tx.fetch(SQL["changed_since"], at, after, limit)]


async def add_records(tx: Tx, agent_nhi: str, new: Sequence[KeyRecord]) -> None:
    """Adds active keys of an agent."""
    await tx.execute(SQL["add_records"], agent_nhi, *columns([_NEW_KEY(one) for one in new], 7))


async def records(tx: Tx, agent_nhi: str, key_ids: Sequence[UUID]) -> dict[UUID, KeyRecord]:
    return {row["key_id"]: record_of(KeyRecord, row) for row in await tx.fetch(SQL["records"], agent_nhi, key_ids)}


async def living_records(tx: Tx, agent_nhi: str) -> list[KeyRecord]:
    """The agent's keys that are active or in grace."""
    return [record_of(KeyRecord, row) for row in await tx.fetch(SQL["living_records"], agent_nhi)]


async def revoked_signers(tx: Tx, agent_nhi: str) -> list[UUID]:
    """The signing pairs of an agent that are revoked."""
    return [row["signer_id"] for row in await tx.fetch(SQL["revoked_signers"], agent_nhi)]


async def to_grace(tx: Tx, agent_nhi: str, key_ids: Sequence[UUID], rotated_at: datetime) -> None:
    await tx.execute(SQL["to_grace"], agent_nhi, key_ids, rotated_at)


async def revoke(tx: Tx, agent_nhi: str, key_ids: Sequence[UUID], now: datetime, since: datetime) -> None:
    await tx.execute(SQL["revoke"], agent_nhi, key_ids, now, since)


async def renew(tx: Tx, agent_nhi: str, expiries: dict[UUID, datetime | None]) -> None:
    await tx.execute(SQL["renew"], agent_nhi, list(expiries), list(expiries.values()))


async def end_grace(tx: Tx, rotated_before: datetime, limit: int) -> list[tuple[str, UUID, str]]:
    rows = await tx.fetch(SQL["end_grace"], rotated_before, limit)
    return [(row["agent_nhi"], row["key_id"], row["key_type"]) for row in rows]


async def revoked_since(tx: Tx, at: datetime, after: KeyRecord | None, limit: int) -> list[KeyRecord]:
    last = (after.revoked_at, after.agent_nhi, after.key_id) if after else (None, None, None)
    return [record_of(KeyRecord, row) for row in await tx.fetch(SQL["revoked_since"], at, *last, limit)]


async def add_rotations(tx: Tx, agent_nhi: str, changes: Sequence[KeyChange], at: datetime, reason: str) -> None:
    rows = [(uuid.uuid4(), change.key_type, change.old, change.new) for change in changes]
    await tx.execute(SQL["add_rotations"], agent_nhi, at, reason, *columns(rows, 4))


async def rotations(tx: Tx, agent_nhi: str, before: tuple[datetime, UUID] | None, limit: int) -> list[Rotation]:
    at, id_ = before or (None, None)
    return [Rotation(**row) for row in await tx.fetch(SQL["rotations"], agent_nhi, at, id_, limit)]


async def add_one_time(tx: Tx, agent_nhi: str, signer_id: UUID, keys: Sequence[OneTimeKey]) -> int:
    """Adds one-time keys. Returns how many are new."""
    rows = []
    for one in keys:
        key, by = one.key, one.signatures
        rows.append((key.key_id, TYPE_NAMES[key.kind], key.raw, by.ed25519, by.ml_dsa, moment(one.created_at)))
    return len(await tx.fetch(SQL["add_one_time"], agent_nhi, signer_id, *columns(rows, 6)))


async def any_one_time_among(tx: Tx, agent_nhi: str, key_ids: Sequence[UUID]) -> bool:
    return bool(await tx.fetch(SQL["one_time_among"], agent_nhi, key_ids))


async def count_one_time(tx: Tx, agent_nhi: str, made_after: datetime) -> int:
    return int(await tx.fetchval(SQL["count_one_time"], agent_nhi, made_after))


async def free_one_time(tx: Tx, agent_nhi: str, made_after: datetime, signer_id: UUID, most: int) -> int:
    """The number of unused one-time keys that a signing pair signed, counted up to `most`."""
    return int(await tx.fetchval(SQL["free_one_time"], agent_nhi, made_after, signer_id, most))


async def few_one_time(tx: Tx, after: str, limit: int, made_after: datetime, most: int) -> list[tuple[str, int]]:
    """A page of agents by name, with the number of their unused one-time keys, counted up to `most`."""
    rows = await tx.fetch(SQL["few_one_time"], after, limit, made_after, most)
    return [(row["agent_nhi"], row["keys"]) for row in rows]


async def issued_to_since(tx: Tx, agent_nhi: str, requester: str, at: datetime) -> int:
    """How many one-time keys a requester was given since a time. Others of the pair wait for this transaction."""
    await tx.execute(SQL["lock_pair"], agent_nhi, requester)
    return int(await tx.fetchval(SQL["issued_to_since"], agent_nhi, requester, at))


async def take_one_time(
    tx: Tx,
    agent_nhi: str,
    requester: str,
    now: datetime,
    *,
    made_after: datetime,
    signer_id: UUID,
    key_types: Sequence[str],
) -> OneTimeKeyDocument | None:
    """Issues a one-time key that the signing pair signed to a requester; None if there is none."""
    row = await tx.fetchrow(SQL["take_one_time"], agent_nhi, requester, now, made_after, signer_id, key_types)
    if row is None:
        return None
    return OneTimeKeyDocument(
        agent_nhi=agent_nhi,
        signer_id=signer_id,
        key_id=row["key_id"],
        key_type=row["key_type"],
        created_at=unix_ms(row["created_at"]),
        public_key=to_text(row["public_key"]),
        signature_ed25519=to_text(row["signature_ed25519"]),
        signature_ml_dsa=to_text(row["signature_ml_dsa"]),
    )


async def drop_free_one_time(tx: Tx, agent_nhi: str) -> None:
    await tx.execute(SQL["drop_free_one_time"], agent_nhi)


async def drop_all_one_time(tx: Tx, agent_nhi: str) -> None:
    await tx.execute(SQL["drop_all_one_time"], agent_nhi)


async def drop_old_one_time(tx: Tx, made_before: datetime, limit: int) -> int:
    done = await tx.execute(SQL["drop_old_one_time"], made_before, limit)
    return int(done.rpartition(" ")[2])


class HotBundles:
    """The hot tier's copies of bundles, kept for an hour. A copy has a stamp, which only rises."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot

    async def get(self, agent_nhi: str) -> bytes | None:
        """The copy, or None if there is none."""
        found: bytes | None = await self._hot.run(_GET, [_key(agent_nhi)], [])
        return found or None

    async def put(self, agent_nhi: str, stamp: int, answer: bytes) -> None:
        """Stores a copy, unless there is a newer one. An empty answer only keeps out older copies."""
        await self._hot.run(_PUT, [_key(agent_nhi)], [stamp, answer, int(CACHE.total_seconds())])


def _key(agent_nhi: str) -> str:
    return f"ang:pk:{{{hot_tag(agent_nhi)}}}"


def _link(row: Row) -> LinkDocument:
    return msgspec.convert({name: row[name] for name in ("bundle", "rotation_statement")}, LinkDocument)
