"""Every SQL statement about agents' keys, and the hot tier's copy of their bundles."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.envelope.ids import hot_tag
from angelia.keys.model import (
    CACHE,
    BundleDocument,
    Change,
    KeyRecord,
    KeyStatus,
    LinkDocument,
    NewRecord,
    OneTimeRow,
    Rotation,
    RotationDocument,
)
from angelia.stores.ledger import Row, Tx
from angelia.stores.sql import columns, statements
from angelia.stores.valkey import HotTier, Script

SQL = statements(__file__)
_PUT = Script.read(__file__, "bundle_put.lua")
_GET = Script.read(__file__, "bundle_get.lua")


@dataclass(frozen=True, slots=True)
class Newest:
    """An agent's newest bundle; `stamp` rises with every change that a reader must see."""

    link: LinkDocument
    bundle_hash: bytes
    stamp: int


async def newest(tx: Tx, agent_nhi: str) -> Newest | None:
    row = await tx.fetchrow(SQL["newest"], agent_nhi)
    return None if row is None else Newest(_link(row), row["bundle_hash"], row["stamp"])


async def links_since(tx: Tx, agent_nhi: str, version: int, limit: int) -> list[LinkDocument]:
    return [_link(row) for row in await tx.fetch(SQL["since"], agent_nhi, version, limit)]


async def add_bundle(
    tx: Tx, link: LinkDocument, bundle_hash: bytes, prev_hash: bytes, issued: datetime, expires: datetime, now: datetime
) -> None:
    bundle, statement = link.bundle, link.rotation_statement
    await tx.execute(
        SQL["add_bundle"],
        bundle.agent_nhi,
        bundle.bundle_version,
        bundle_hash,
        prev_hash,
        issued,
        expires,
        now,
        bundle.suites,
        bundle,
        statement,
    )


async def standings(tx: Tx, wanted: Sequence[tuple[str, UUID, datetime]]) -> list[tuple[int | None, KeyRecord | None]]:
    """For each recipient, key and time: the suites that the recipient took then, and the record of the key."""
    rows = await tx.fetch(SQL["standings"], *columns(wanted, 3))
    return [(row["suites"], None if row["agent_nhi"] is None else _record(row)) for row in rows]


async def one_time_issued(
    tx: Tx, wanted: Sequence[tuple[str, UUID, str]], issued_after: datetime
) -> dict[tuple[str, UUID], str]:
    """The types of those keys that were issued to their senders and not used yet."""
    rows = await tx.fetch(SQL["one_time_issued"], *columns(wanted, 3), issued_after)
    return {(row["agent_nhi"], row["key_id"]): row["key_type"] for row in rows}


async def spend_one_time(
    tx: Tx, wanted: Sequence[tuple[str, UUID, str]], now: datetime, issued_after: datetime
) -> set[tuple[str, UUID]]:
    """Use up keys that were issued to these senders; those that were."""
    rows = await tx.fetch(SQL["spend_one_time"], *columns(wanted, 3), now, issued_after)
    return {(row["agent_nhi"], row["key_id"]) for row in rows}


async def signers(tx: Tx, wanted: Sequence[tuple[str, UUID]]) -> dict[tuple[str, UUID], dict[str, KeyRecord]]:
    """The two halves of each signing pair, by type."""
    pairs: dict[tuple[str, UUID], dict[str, KeyRecord]] = {}
    for row in await tx.fetch(SQL["signers"], *columns(wanted, 2)):
        pairs.setdefault((row["agent_nhi"], row["signer_id"]), {})[row["key_type"]] = _record(row)
    return pairs


async def fallen(
    tx: Tx,
    recipients: Sequence[str],
    key_ids: Sequence[UUID],
    senders: Sequence[str],
    signer_ids: Sequence[UUID],
    accepted_at: Sequence[datetime],
) -> set[int]:
    rows = await tx.fetch(SQL["fallen"], recipients, key_ids, senders, signer_ids, accepted_at)
    return {row["n"] for row in rows}


async def changed_since(tx: Tx, at: datetime, after: str, limit: int) -> list[str]:
    """Agents whose newest bundle, or what is revoked of it, changed since then; in order, after a name."""
    return [row["agent_nhi"] for row in await tx.fetch(SQL["changed_since"], at, after, limit)]


async def add_records(tx: Tx, agent_nhi: str, new: Sequence[NewRecord]) -> None:
    await tx.execute(
        SQL["add_records"],
        agent_nhi,
        [one.key_id for one in new],
        [one.key_type for one in new],
        [one.usage for one in new],
        [one.public_key for one in new],
        [one.created_at for one in new],
        [one.expires_at for one in new],
        [one.signer_id for one in new],
    )


async def records(tx: Tx, agent_nhi: str, key_ids: Sequence[UUID]) -> dict[UUID, KeyRecord]:
    return {row["key_id"]: _record(row) for row in await tx.fetch(SQL["records"], agent_nhi, key_ids)}


async def living_records(tx: Tx, agent_nhi: str) -> list[KeyRecord]:
    """The agent's keys that are active or in grace."""
    return [_record(row) for row in await tx.fetch(SQL["living_records"], agent_nhi)]


async def revoked_signers(tx: Tx, agent_nhi: str) -> list[UUID]:
    """The signing pairs that an agent withdrew."""
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
    return [_record(row) for row in await tx.fetch(SQL["revoked_since"], at, *last, limit)]


async def add_rotations(tx: Tx, agent_nhi: str, changes: Sequence[Change], at: datetime, reason: str) -> None:
    await tx.execute(
        SQL["add_rotations"],
        agent_nhi,
        at,
        reason,
        [uuid.uuid4() for _ in changes],
        [change.key_type for change in changes],
        [change.old for change in changes],
        [change.new for change in changes],
    )


async def rotations(tx: Tx, agent_nhi: str, before: tuple[datetime, UUID] | None, limit: int) -> list[Rotation]:
    at, id_ = before or (None, None)
    rows = await tx.fetch(SQL["rotations"], agent_nhi, at, id_, limit)
    return [
        Rotation(
            event_id=row["event_id"],
            key_type=row["key_type"],
            old_key_id=row["old_key_id"],
            new_key_id=row["new_key_id"],
            rotated_at=row["rotated_at"],
            reason=row["reason"],
        )
        for row in rows
    ]


async def add_one_time(tx: Tx, agent_nhi: str, signer_id: UUID, keys: Sequence[OneTimeRow]) -> int:
    rows = await tx.fetch(
        SQL["add_one_time"],
        agent_nhi,
        signer_id,
        [one.key_id for one in keys],
        [one.key_type for one in keys],
        [one.public_key for one in keys],
        [one.signature_ed25519 for one in keys],
        [one.signature_ml_dsa for one in keys],
        [one.created_at for one in keys],
    )
    return len(rows)


async def any_one_time_among(tx: Tx, agent_nhi: str, key_ids: Sequence[UUID]) -> bool:
    return bool(await tx.fetch(SQL["one_time_among"], agent_nhi, key_ids))


async def count_one_time(tx: Tx, agent_nhi: str, made_after: datetime) -> int:
    return int(await tx.fetchval(SQL["count_one_time"], agent_nhi, made_after))


async def free_one_time(tx: Tx, agent_nhi: str, made_after: datetime, signer_id: UUID, most: int) -> int:
    """How many unused keys of a pair there are, counted up to `most`."""
    return int(await tx.fetchval(SQL["free_one_time"], agent_nhi, made_after, signer_id, most))


async def few_one_time(tx: Tx, after: str, limit: int, made_after: datetime, most: int) -> list[tuple[str, int]]:
    """A page of agents by name, with the number of their unused keys, counted up to `most`."""
    rows = await tx.fetch(SQL["few_one_time"], after, limit, made_after, most)
    return [(row["agent_nhi"], row["keys"]) for row in rows]


async def issued_to_since(tx: Tx, agent_nhi: str, requester: str, at: datetime) -> int:
    """How many one-time keys a requester has had since then; nobody else asks for this pair until we are done."""
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
) -> OneTimeRow | None:
    row = await tx.fetchrow(SQL["take_one_time"], agent_nhi, requester, now, made_after, signer_id, key_types)
    if row is None:
        return None
    return OneTimeRow(
        key_id=row["key_id"],
        key_type=row["key_type"],
        public_key=row["public_key"],
        signature_ed25519=row["signature_ed25519"],
        signature_ml_dsa=row["signature_ml_dsa"],
        created_at=row["created_at"],
    )


async def drop_free_one_time(tx: Tx, agent_nhi: str) -> None:
    await tx.execute(SQL["drop_free_one_time"], agent_nhi)


async def drop_all_one_time(tx: Tx, agent_nhi: str) -> None:
    await tx.execute(SQL["drop_all_one_time"], agent_nhi)


async def drop_old_one_time(tx: Tx, made_before: datetime, limit: int) -> int:
    done = await tx.execute(SQL["drop_old_one_time"], made_before, limit)
    return int(done.rpartition(" ")[2])


class HotBundles:
    """The hot tier's copies of bundles, kept for an hour. A copy is told by its stamp, which only ever rises."""

    def __init__(self, hot: HotTier) -> None:
        self._hot = hot

    async def get(self, agent_nhi: str) -> bytes | None:
        """The copy, or None where there is none."""
        found: bytes | None = await self._hot.run(_GET, [_key(agent_nhi)], [])
        return found or None

    async def put(self, agent_nhi: str, stamp: int, answer: bytes) -> None:
        """Keep a copy, unless a newer one is there. An empty answer keeps older ones out."""
        await self._hot.run(_PUT, [_key(agent_nhi)], [stamp, answer, int(CACHE.total_seconds())])


def _key(agent_nhi: str) -> str:
    return f"ang:pk:{{{hot_tag(agent_nhi)}}}"


def _link(row: Row) -> LinkDocument:
    statement = row["rotation_statement"]
    return LinkDocument(
        bundle=msgspec.convert(row["bundle"], BundleDocument),
        rotation_statement=None if statement is None else msgspec.convert(statement, RotationDocument),
    )


def _record(row: Row) -> KeyRecord:
    return KeyRecord(
        agent_nhi=row["agent_nhi"],
        key_id=row["key_id"],
        key_type=row["key_type"],
        usage=row["usage"],
        public_key=row["public_key"],
        status=KeyStatus(row["status"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        rotated_at=row["rotated_at"],
        revoked_at=row["revoked_at"],
        compromised_since=row["compromised_since"],
        signer_id=row["signer_id"],
    )
