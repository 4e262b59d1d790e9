"""What an agent's next bundle does to its keys: which become active, go into grace, or are revoked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from angelia.agents import service as agents
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.audit.model import Event
from angelia.envelope.bundles import BUNDLE_LIFE, FIRST_PREVIOUS, Bundle, KemEntry, KemKeyStatus, Link, check_rotation
from angelia.envelope.ids import KeyType, key_id
from angelia.envelope.json_form import to_text
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment, unix_ms
from angelia.errors import ClockSkew, Conflict, InvalidArgument, VersionConflict
from angelia.keys import store
from angelia.keys.model import CACHE, TYPE_NAMES, KeyChange, KeyRecord, KeyStatus, Reason, parse_links
from angelia.stores.ledger import Tx

REQUEST_GRACE = timedelta(seconds=300)  # how long a replaced signing key still signs requests
_ROTATE = "a bundle with other active keys is a rotation: POST /v1/keys/rotate"


@dataclass(frozen=True, slots=True)
class Emergency:
    """Keys that may be stolen: the old ones get no grace."""

    why: str
    compromised_since: datetime
    operator: str | None  # acts for the agent; vouches for a new pair if the old one is lost


@dataclass(frozen=True, slots=True)
class Succession:
    """The next bundle of an agent's chain, in the transaction that accepts it."""

    agent: AgentRow
    link: Link
    now: datetime
    reason: Reason | None  # None: a publication, which replaces nothing
    emergency: Emergency | None = None

    @property
    def bundle(self) -> Bundle:
        return self.link.bundle

    async def first(self, tx: Tx) -> None:
        """Accepts the first bundle: its Ed25519 key must be the registered one. The handle is fixed from now on."""
        if self.bundle.bundle_version != 1 or self.bundle.prev_bundle_hash != FIRST_PREVIOUS:
            raise _conflict(None)
        if self.reason is not None:
            raise Conflict("there is nothing to rotate yet", hint="publish the first bundle: POST /v1/keys/bundle")
        if self.bundle.signer.ed25519 != self.agent.public_key:
            raise InvalidArgument("the first bundle must be signed by the key that the agent registered with")
        if any(entry.status is KemKeyStatus.GRACE for entry in self.bundle.kem_keys):
            raise InvalidArgument("a first bundle has no keys in grace")
        await agents.fix_handle(tx, self.agent.id)
        kem_keys = self._kem_records(self.bundle.kem_keys)
        await store.add_records(tx, self.agent.handle, [*self._signer_records(), *kem_keys])

    async def after(self, tx: Tx, before: Bundle) -> None:
        """Accepts a later bundle: it must link to the one before, and account for every key that it replaces."""
        if (self.bundle.bundle_version, self.bundle.prev_bundle_hash) != (before.bundle_version + 1, before.hash):
            raise _conflict(before)
        if self.bundle.issued_at < before.issued_at:
            raise InvalidArgument("the bundle is issued before the one that it follows")
        new_signer = await self._signer(tx, before)
        new_keys = await self._kem_keys(tx)
        if self.emergency is not None:
            await self._revoke_earlier_pairs(tx)
            await agents.end_former_keys(tx, self.agent.id)
        if self.reason is not None and not new_signer and not new_keys:
            raise InvalidArgument("this bundle rotates nothing", hint="to renew a bundle: POST /v1/keys/bundle")

    async def check_repeated(self, tx: Tx) -> None:
        """Raises Conflict for an emergency with a bundle that was accepted before as an ordinary one."""
        if self.emergency is None:
            return
        handle, version = self.agent.handle, self.bundle.bundle_version
        before = parse_links(await store.links_since(tx, handle, version - 2, 1))[0].bundle if version > 1 else None
        replaced: list[UUID] = []
        if before is not None:
            replaced += [entry.key.key_id for entry in before.kem_keys if entry.status is KemKeyStatus.ACTIVE]
            if before.signer.signer_id != self.bundle.signer.signer_id:
                replaced += [id_ for id_, _, _ in _halves(before.signer)]
        records = await store.records(tx, handle, replaced)
        if not records or any(one.status is not KeyStatus.REVOKED for one in records.values()):
            raise Conflict(
                "this bundle was taken before, and not in an emergency: the keys before it are not revoked",
                hint="make new keys: the next bundle, to POST /v1/keys/emergency-rotate",
            )

    def event(self) -> Event:
        """The audit event of this step."""
        kind = {None: "key_published", Reason.EMERGENCY: "emergency_key_rotation"}.get(self.reason, "key_rotated")
        detail: dict[str, str | int | bool | None] = {
            "bundle_version": self.bundle.bundle_version,
            "bundle_hash": to_text(self.bundle.hash),
            "signer_id": str(self.bundle.signer.signer_id),
        }
        if self.reason is not None:
            detail["reason"] = self.reason.value
        if self.emergency is not None:
            detail["why"] = self.emergency.why
        actor = (self.emergency and self.emergency.operator) or self.agent.handle
        return audit.event(kind, self.now, actor=actor, object=self.agent.handle, detail=detail)

    async def _signer(self, tx: Tx, before: Bundle) -> bool:
        """Accepts the signing pair; a new one needs a statement by the old one, and signs requests from now on. Returns
        whether it is new."""
        new, old = self.bundle.signer, before.signer
        if new.fingerprint == old.fingerprint:
            return False
        if self.reason is None:
            raise Conflict("the bundle has a new signing pair", hint=_ROTATE)
        if await store.records(tx, self.agent.handle, [one.key_id for one in self._signer_records()]):
            raise Conflict("a new signing pair has two new keys", hint="make both keys anew")
        if self.link.statement is not None:
            check_rotation(self.link.statement, old, new, self.agent.handle)
        elif self.emergency is None or self.emergency.operator is None:
            raise InvalidArgument(
                "a new signing pair needs a rotation statement, signed by the old pair and by the new one"
            )
        spare = timedelta(0) if self.emergency else REQUEST_GRACE
        await agents.replace_key(tx, self.agent.id, new.ed25519, self.now, old_valid_for=spare)
        halves = zip(_halves(old), _halves(new), strict=True)
        changes = [KeyChange(kind, replaced, by) for (replaced, kind, _), (by, _, _) in halves]
        await self._replace(tx, changes)
        await store.add_records(tx, self.agent.handle, self._signer_records())
        # One-time keys signed by the old pair would not verify by the pair of the new bundle.
        await store.drop_free_one_time(tx, self.agent.handle)
        return True

    async def _revoke_earlier_pairs(self, tx: Tx) -> None:
        """Revokes pairs that an earlier rotation left in grace: they may be stolen together with the present one."""
        living = await store.living_records(tx, self.agent.handle)
        earlier = [one for one in living if one.usage == "identity" and one.status is KeyStatus.GRACE]
        await self._replace(tx, [KeyChange(one.key_type, one.key_id, None) for one in earlier])

    async def _kem_keys(self, tx: Tx) -> bool:
        handle = self.agent.handle
        living = {one.key_id: one for one in await store.living_records(tx, handle) if one.usage != "identity"}
        active = {e.key.key_id: e for e in self.bundle.kem_keys if e.status is KemKeyStatus.ACTIVE}
        in_grace = {e.key.key_id: e for e in self.bundle.kem_keys if e.status is KemKeyStatus.GRACE}
        await self._check_grace(tx, in_grace, living)
        fresh = [entry for id_, entry in active.items() if id_ not in living]
        await self._refuse_used_before(tx, fresh)
        if any(living[id_].status is not KeyStatus.ACTIVE for id_ in active if id_ in living):
            raise Conflict("a key in grace does not become active again", hint="make a new key")
        gone = [one for id_, one in living.items() if one.status is KeyStatus.ACTIVE and id_ not in active]
        if self.emergency is not None:
            if len(fresh) != len(active) or in_grace:
                raise InvalidArgument("after an emergency every KEM key is new")
            gone = list(living.values())
        elif gone and self.reason is None:
            raise Conflict("the bundle leaves active keys out", hint=_ROTATE)
        by_type = {TYPE_NAMES[entry.key.kind]: entry.key.key_id for entry in fresh}
        changes = [KeyChange(one.key_type, one.key_id, by_type.get(one.key_type)) for one in gone]
        await self._replace(tx, changes)
        await store.add_records(tx, handle, self._kem_records(fresh))
        await store.renew(tx, handle, {id_: _expiry(e) for id_, e in active.items() if id_ in living})
        if self.emergency is not None:
            await store.drop_all_one_time(tx, handle)
        return bool(gone or fresh)

    async def _check_grace(self, tx: Tx, listed: dict[UUID, KemEntry], living: dict[UUID, KeyRecord]) -> None:
        records = await store.records(tx, self.agent.handle, list(listed))
        for id_, entry in listed.items():
            known = living.get(id_)
            if id_ in records and records[id_].status is KeyStatus.REVOKED:
                continue  # its owner may not know yet; the answer beside the bundle says so
            if known is None:
                raise InvalidArgument(f"the key {id_} in grace is not one of this agent's living keys")
            rotated_at = self.bundle.issued_at if known.rotated_at is None else unix_ms(known.rotated_at)
            if entry.rotated_at != rotated_at:
                raise InvalidArgument(
                    "the rotated_at of a key is the issued_at of the bundle that put it into grace",
                    hint=f"{rotated_at} for {id_}",
                )

    async def _refuse_used_before(self, tx: Tx, fresh: Sequence[KemEntry]) -> None:
        ids = [entry.key.key_id for entry in fresh]
        if await store.records(tx, self.agent.handle, ids):
            raise Conflict("a key that is retired or revoked does not come back", hint="make a new key")
        if await store.any_one_time_among(tx, self.agent.handle, ids):
            raise Conflict("a one-time key is good for one message only", hint="make a new key")

    async def _replace(self, tx: Tx, changes: Sequence[KeyChange]) -> None:
        if not changes:
            return
        handle, rotated_at, key_ids = self.agent.handle, moment(self.bundle.issued_at), [one.old for one in changes]
        assert self.reason is not None
        if self.emergency is not None:
            await store.revoke(tx, handle, key_ids, self.now, self.emergency.compromised_since)
        else:
            await store.to_grace(tx, handle, key_ids, rotated_at)
        await store.add_rotations(tx, handle, changes, rotated_at, self.reason.value)

    def _signer_records(self) -> list[KeyRecord]:
        return [
            KeyRecord(
                agent_nhi=self.agent.handle,
                key_id=id_,
                key_type=key_type,
                usage="identity",
                public_key=raw,
                status=KeyStatus.ACTIVE,
                created_at=moment(self.bundle.issued_at),
                signer_id=self.bundle.signer.signer_id,
            )
            for id_, key_type, raw in _halves(self.bundle.signer)
        ]

    def _kem_records(self, entries: Sequence[KemEntry]) -> list[KeyRecord]:
        return [
            KeyRecord(
                agent_nhi=self.agent.handle,
                key_id=entry.key.key_id,
                key_type=TYPE_NAMES[entry.key.kind],
                usage="signed",
                public_key=entry.key.raw,
                status=KeyStatus.ACTIVE,
                created_at=moment(entry.created_at),
                expires_at=_expiry(entry),
            )
            for entry in entries
        ]


def check_times(link: Link, now: datetime) -> None:
    """Raises for a bundle or statement from the future, since grace and admission count from its time.

    One from the past only shortens the grace of its own agent's keys. It may have expired, or have a longer life than
    is allowed now: an agent that first handed its bundles over as files publishes the chain later.
    """
    for issued_at in (link.bundle.issued_at, *((link.statement.issued_at,) if link.statement else ())):
        ahead = moment(issued_at) - now
        if ahead > SKEW:
            raise ClockSkew(
                f"issued_at is {ahead.total_seconds():.0f} s ahead of this server's clock",
                hint="run a time service on this machine",
            )
    issued, expires = moment(link.bundle.issued_at), moment(link.bundle.expires_at)
    if issued < now - CACHE:
        return
    if expires <= now:
        raise InvalidArgument("the bundle has expired already")
    if expires - issued > BUNDLE_LIFE:
        raise InvalidArgument(
            f"a bundle is good for at most {BUNDLE_LIFE.days} days", hint="sign it again every few days; update Angelia"
        )


def _conflict(before: Bundle | None) -> VersionConflict:
    version, hash_ = (before.bundle_version, before.hash) if before else (0, FIRST_PREVIOUS)
    error = VersionConflict(
        f"the bundle does not follow from version {version}", hint="fetch your own bundle and sign the next one"
    )
    error.members = {"bundle_version": version, "bundle_hash": to_text(hash_)}
    return error


def _expiry(entry: KemEntry) -> datetime | None:
    return moment(entry.expires_at) if entry.expires_at else None


def _halves(pair: VerifyingPair) -> list[tuple[UUID, str, bytes]]:
    """The id, type and bytes of each half of a signing pair."""
    halves = ((KeyType.ED25519, pair.ed25519), (KeyType.ML_DSA_65, pair.ml_dsa))
    return [(key_id(kind, raw), TYPE_NAMES[kind], raw) for kind, raw in halves]
