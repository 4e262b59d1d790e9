"""Agents publish, rotate and revoke their keys; other agents fetch them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from angelia import metrics
from angelia.agents import service as agents_service
from angelia.agents.service import Agents
from angelia.api import AgentRow
from angelia.audit import service as audit
from angelia.envelope.bundles import Bundle, Link, OneTimeKey, check_bundle, check_one_time_key
from angelia.envelope.ids import MAX_HANDLE, hot_tag
from angelia.envelope.refusals import SignatureFailed
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import SKEW, moment
from angelia.errors import Conflict, Denied, InvalidArgument, KeyNotFound, NotFound, Unavailable
from angelia.keys import schedules_store, store
from angelia.keys.bundle_succession import Emergency, Succession, check_times
from angelia.keys.model import (
    CACHE,
    DESTROY_AFTER,
    KEM_TYPES,
    MOST_ONE_TIME,
    ONE_TIME_A_PAIR,
    ONE_TIME_ALERT,
    ONE_TIME_LIFE,
    ONE_TIME_USE,
    ONE_TIME_WINDOW,
    BundleAnswer,
    KeyChange,
    KeyRecord,
    KeyStatus,
    LinkDocument,
    PrekeysLow,
    Reason,
    Rotation,
    link_document,
    parse_bundle,
)
from angelia.keys.store import HotBundles, NewestBundle
from angelia.policy import service as policy_service
from angelia.policy.model import Action, Wish
from angelia.policy.service import Policy
from angelia.stores.ledger import Ledger, Tx
from angelia.stores.wake import Wake, encode_event, wake_topic

LINKS_A_PAGE = 100
_TICK_BATCH = 500


@dataclass(frozen=True, slots=True)
class PublishedBundle:
    """A bundle that was accepted. `new` is false if the same bundle was published before."""

    bundle_hash: bytes
    bundle_version: int
    one_time_keys: int
    new: bool


class Keys:
    """The public keys of all agents. Every change is one ledger transaction under the agent's own lock."""

    def __init__(self, ledger: Ledger, hot: HotBundles, agents: Agents, policy: Policy, wake: Wake) -> None:
        self._ledger = ledger
        self._hot = hot
        self._agents = agents
        self._policy = policy
        self._wake = wake
        self._to_invalidate: set[str] = set()
        self._counted_to, self._low = "", 0  # how far the search for agents with few one-time keys has come
        self._changed_after: str | None = ""  # how far the search for changes before this start has come

    async def accept(
        self,
        agent: AgentRow,
        link: Link,
        one_time: Sequence[OneTimeKey],
        now: datetime,
        reason: Reason | None = None,
        emergency: Emergency | None = None,
    ) -> PublishedBundle:
        """Accepts an agent's next bundle. With a reason it is a rotation; in an emergency old keys get no grace."""
        bundle = link.bundle
        await asyncio.to_thread(_check, link, one_time)
        async with self._agents.changing(agent.id) as tx:
            present = await agents_service.lock(tx, agent.id)
            if bundle.agent_nhi != present.handle:
                raise InvalidArgument(f"the bundle is for {bundle.agent_nhi}, and this agent is {present.handle}")
            newest = await store.newest(tx, present.handle)
            repeated = newest is not None and newest.bundle_hash == bundle.hash
            # A repeated request gets its first answer at any time, so the clock is checked only for a new bundle.
            step = Succession(present, link, now, reason, emergency)
            if repeated:
                await step.check_repeated(tx)
            else:
                check_times(link, now)
                if newest is None:
                    await step.first(tx)
                else:
                    await step.after(tx, parse_bundle(newest.link.bundle))
                await store.add_bundle(tx, bundle, link_document(link), now)
                await _add_one_time(tx, bundle, one_time, now)
                if emergency is not None:
                    await schedules_store.make_all_due(tx, present.handle, now)
                await audit.record(tx, [step.event()])
                await self._invalidate(tx, present.handle)
            held = await store.count_one_time(tx, present.handle, now - ONE_TIME_LIFE)
        if not repeated:
            metrics.BUNDLES_PUBLISHED.labels(reason.value if reason else "published").inc()
        return PublishedBundle(bundle.hash, bundle.bundle_version, held, new=not repeated)

    async def revoke(self, agent: AgentRow, id: UUID, now: datetime, compromised_since: datetime | None) -> KeyRecord:
        """Revokes one key, without grace. The active signing pair can only be replaced, not revoked alone."""
        async with self._agents.changing(agent.id) as tx:
            present = await agents_service.lock(tx, agent.id)
            found = (await store.records(tx, present.handle, [id])).get(id)
            if found is None:
                raise NotFound(f"{present.handle} has no key {id}")
            if found.status is KeyStatus.REVOKED:
                return found
            if found.signer_id is not None and found.status is KeyStatus.ACTIVE:
                raise Conflict(
                    "the active signing pair cannot be revoked alone: nothing could be signed after it",
                    hint="replace it: POST /v1/keys/emergency-rotate",
                )
            withdrawn = [found]
            if found.signer_id is not None:
                await agents_service.end_former_keys(tx, agent.id)
                withdrawn = await store.pair(tx, present.handle, found.signer_id)
            since = min(compromised_since or now, now)
            await store.revoke(tx, present.handle, [one.key_id for one in withdrawn], now, since)
            changes = [KeyChange(one.key_type, one.key_id, None) for one in withdrawn]
            await store.add_rotations(tx, present.handle, changes, now, "revoked")
            detail = {"key_id": str(id), "key_type": found.key_type}
            event = audit.event("key_revoked", now, actor=present.handle, object=present.handle, detail=detail)
            await audit.record(tx, [event])
            await self._invalidate(tx, present.handle)
        return dataclasses.replace(found, status=KeyStatus.REVOKED, revoked_at=now, compromised_since=since)

    async def add_one_time_keys(self, agent: AgentRow, keys: Sequence[OneTimeKey], now: datetime) -> tuple[int, int]:
        """Adds one-time keys of an agent. Returns how many are new, and how many unused ones there are."""
        async with self._ledger.reading() as tx:
            bundle = parse_bundle((await _newest(tx, agent.handle)).link.bundle)
        # Checking a hundred takes a while, so no lock is held; that the pair is still the same is checked below.
        await asyncio.to_thread(_check_one_time, bundle.signer, keys)
        async with self._ledger.transaction() as tx:
            present = await agents_service.lock(tx, agent.id)
            bundle = parse_bundle((await _newest(tx, present.handle)).link.bundle)
            for one in keys:
                _check_owner(one, bundle)
            added = await _add_one_time(tx, bundle, keys, now)
            return added, await store.count_one_time(tx, present.handle, now - ONE_TIME_LIFE)

    async def count_one_time_keys(self, agent: AgentRow, now: datetime) -> int:
        async with self._ledger.reading() as tx:
            return await store.count_one_time(tx, agent.handle, now - ONE_TIME_LIFE)

    async def agent(self, name: str) -> AgentRow:
        """The agent of a handle or id, for an operator that acts for it."""
        return await self._agents.named(name)

    async def bundle(self, name: str, reader: AgentRow | None, now: datetime) -> bytes:
        """The JSON of an agent's newest bundle: the hot tier's copy, which is made from the ledger if it is missing."""
        agent = await self.readable(name, reader, now)
        with contextlib.suppress(Unavailable):  # the ledger has it too
            if (held := await self._hot.get(agent.handle)) is not None:
                return held
        async with self._ledger.reading() as tx:
            newest = await _newest(tx, agent.handle)
            answer = msgspec.json.encode(await answer_of(tx, newest))
        with contextlib.suppress(Unavailable):
            await self._hot.put(agent.handle, newest.stamp, answer)
        return answer

    async def bundle_with_one_time_key(self, name: str, requester: AgentRow, now: datetime) -> BundleAnswer:
        """The newest bundle and a one-time key; without a key if none is left, or if the requester had its share."""
        agent = await self.readable(name, requester, now)
        async with self._ledger.transaction() as tx:
            newest = await _newest(tx, agent.handle)
            taken, suites = None, newest.link.bundle.suites
            made_after, signer_id = now - ONE_TIME_LIFE, newest.link.bundle.signer.signer_id
            had = await store.issued_to_since(tx, agent.handle, requester.handle, now - ONE_TIME_WINDOW)
            if had < ONE_TIME_A_PAIR:
                kinds = [name for suite, name in KEM_TYPES.items() if suites & suite.bit]
                taken = await store.take_one_time(
                    tx, agent.handle, requester.handle, now, made_after=made_after, signer_id=signer_id, key_types=kinds
                )
            left = await store.free_one_time(tx, agent.handle, made_after, signer_id, ONE_TIME_ALERT)
            if taken and not left:
                event = audit.event("prekey_exhausted", now, actor=requester.handle, object=agent.handle)
                await audit.record(tx, [event])
            answer = await answer_of(tx, newest)
        if left < ONE_TIME_ALERT:
            metrics.ONE_TIME_KEYS_LOW.inc()
        metrics.ONE_TIME_KEYS.labels("issued" if taken else "fell_back").inc()
        return msgspec.structs.replace(answer, one_time=taken is not None, one_time_key=taken)

    async def links_since(
        self, name: str, version: int, reader: AgentRow | None, now: datetime
    ) -> tuple[list[LinkDocument], bool, list[UUID]]:
        """A page of the bundles after a version, whether there are more, and the revoked keys of the newest."""
        agent = await self.readable(name, reader, now)
        async with self._ledger.reading() as tx:
            newest = await _newest(tx, agent.handle)
            links = await store.links_since(tx, agent.handle, version, LINKS_A_PAGE + 1)
            revoked = (await answer_of(tx, newest)).revoked
        return links[:LINKS_A_PAGE], len(links) > LINKS_A_PAGE, revoked

    async def history(
        self, name: str, before: tuple[datetime, UUID] | None, limit: int, reader: AgentRow | None, now: datetime
    ) -> list[Rotation]:
        """A page of the rotations of an agent's keys, newest first."""
        agent = await self.readable(name, reader, now)
        async with self._ledger.reading() as tx:
            return await store.rotations(tx, agent.handle, before, limit)

    async def end_grace(self, now: datetime) -> bool:
        """One tick: retires keys whose grace is over. Returns whether more wait."""
        async with self._ledger.transaction() as tx:
            ended = await store.end_grace(tx, now - DESTROY_AFTER, _TICK_BATCH)
            events = []
            for handle, id_, kind in ended:
                detail = {"key_id": str(id_), "key_type": kind}
                events.append(audit.event("key_retired", now, actor="angelia", object=handle, detail=detail))
            await audit.record(tx, events)
        return len(ended) == _TICK_BATCH

    async def drop_old_one_time_keys(self, now: datetime) -> bool:
        """One tick: deletes one-time keys that are too old. Returns whether more wait."""
        async with self._ledger.transaction() as tx:
            dropped = await store.drop_old_one_time(tx, now - ONE_TIME_LIFE - ONE_TIME_USE, _TICK_BATCH)
        return dropped == _TICK_BATCH

    async def alert_low_one_time_keys(self, now: datetime) -> bool:
        """One tick: counts a page of agents; those with few one-time keys are told on their event streams."""
        async with self._ledger.transaction() as tx:
            after, made_after = self._counted_to, now - ONE_TIME_LIFE
            page = await store.few_one_time(tx, after, _TICK_BATCH, made_after, ONE_TIME_ALERT)
        few = [(handle, keys) for handle, keys in page if keys < ONE_TIME_ALERT]
        for handle, keys in few:
            said = encode_event("prekeys_low", msgspec.json.encode(PrekeysLow(count=keys)))
            await self._wake.tell(wake_topic("events", hot_tag(handle)), said)
        self._low += len(few)
        if len(page) == _TICK_BATCH:
            self._counted_to = page[-1][0]
        else:
            metrics.ONE_TIME_KEYS_LOW_AGENTS.set(self._low)
            self._counted_to, self._low = "", 0
        return False

    async def repeat_invalidations(self, now: datetime) -> bool:
        """One tick: invalidates copies in the hot tier where that failed when the bundle changed. Returns whether more
        wait.

        A process that starts does not know what its predecessor left undone, so it first takes all agents whose bundle
        changed during the life of a copy."""
        if self._changed_after is not None:
            async with self._ledger.reading() as tx:
                changed = await store.changed_since(tx, now - CACHE - SKEW, self._changed_after, _TICK_BATCH)
            self._to_invalidate.update(changed)
            self._changed_after = changed[-1] if len(changed) == _TICK_BATCH else None
        for handle in tuple(self._to_invalidate):
            async with self._ledger.reading() as tx:
                newest = await store.newest(tx, handle)
            if newest is not None:  # the first publication may have been rolled back
                await self._hot.put(handle, newest.stamp, b"")
            self._to_invalidate.discard(handle)
        return self._changed_after is not None

    async def revoked_since(self, at: datetime, after: KeyRecord | None, limit: int) -> list[KeyRecord]:
        """A page of the keys revoked since a time, for the mail that was sealed to them or signed by them."""
        async with self._ledger.reading() as tx:
            return await store.revoked_since(tx, at, after, limit)

    async def readable(self, name: str, reader: AgentRow | None, now: datetime) -> AgentRow:
        """The agent of a name, if the rules let the reader read its keys. None is an operator, which always may.

        A reader that may not read a name's keys does not learn either whether there is such an agent."""
        wish: Wish | None = None
        async with self._ledger.reading() as tx:
            agent = await agents_service.find(tx, name)
            if reader is not None and (agent is None or agent.id != reader.id):
                asked = Wish(reader.handle, Action.READ_KEYS, name)
                wish = asked if agent is None else dataclasses.replace(asked, object=agent.handle)
                if not await self._allowed(tx, wish, now):
                    # An id is answered like an unknown one: the rules about the handle behind it must not show.
                    if wish == asked or not await self._allowed(tx, asked, now):
                        raise policy_service.denial(dataclasses.replace(asked, object=name[:MAX_HANDLE]))
                    agent, wish = None, asked
        if wish is not None:
            await self._policy.spend(wish, now)
        if agent is None:
            raise agents_service.no_such_agent(name)
        return agent

    async def meet(self, name: str, reader: AgentRow, now: datetime) -> None:
        """Raises Denied for a name whose keys the rules do not let an agent read, unless they let that name send to the
        agent. A name that no agent has is refused in the same words."""
        try:
            await self.readable(name, reader, now)
        except Denied:
            async with self._ledger.reading() as tx:
                agent = await agents_service.find(tx, name)
                sends = Wish(name[:MAX_HANDLE] if agent is None else agent.handle, Action.SEND, reader.handle)
                if not await self._allowed(tx, sends, now):
                    raise

    async def _allowed(self, tx: Tx, wish: Wish, now: datetime) -> bool:
        [refusal] = await self._policy.check(tx, [wish], now)
        return refusal is None

    async def _invalidate(self, tx: Tx, handle: str) -> None:
        """Invalidates the hot tier's copy before the commit, so that a crash after the commit leaves no old copy. An
        empty copy with the new stamp keeps out readers that still see the old bundle; later readers fill it."""
        newest = await _newest(tx, handle)
        try:
            await self._hot.put(handle, newest.stamp, b"")
        except Unavailable:
            self._to_invalidate.add(handle)


def _check(link: Link, one_time: Sequence[OneTimeKey]) -> None:
    check_bundle(link.bundle)
    for one in one_time:
        _check_owner(one, link.bundle)
    _check_one_time(link.bundle.signer, one_time)


def _check_owner(one: OneTimeKey, bundle: Bundle) -> None:
    if one.agent_nhi != bundle.agent_nhi:
        raise InvalidArgument("a one-time key is another agent's")
    if one.signer_id != bundle.signer.signer_id:
        raise SignatureFailed("a one-time key is not signed by the pair of the bundle")


def _check_one_time(signer: VerifyingPair, keys: Sequence[OneTimeKey]) -> None:
    for one in keys:
        check_one_time_key(one, signer)


async def _add_one_time(tx: Tx, bundle: Bundle, keys: Sequence[OneTimeKey], now: datetime) -> int:
    if not keys:
        return 0
    for one in keys:
        if abs(moment(one.created_at) - now) > SKEW:
            raise InvalidArgument("a one-time key is made when it is uploaded: its created_at is not now")
    if await store.records(tx, bundle.agent_nhi, [one.key.key_id for one in keys]):
        raise Conflict("a one-time key is also a key of the bundle", hint="make new keys for one-time use")
    added = await store.add_one_time(tx, bundle.agent_nhi, bundle.signer.signer_id, keys)
    if await store.count_one_time(tx, bundle.agent_nhi, now - ONE_TIME_LIFE) > MOST_ONE_TIME:
        raise Conflict(f"an agent has at most {MOST_ONE_TIME} unused one-time keys")
    return added


async def answer_of(tx: Tx, newest: NewestBundle) -> BundleAnswer:
    """The answer for a bundle, with the keys and signing pairs of it that were revoked since."""
    bundle = newest.link.bundle
    listed = await store.records(tx, bundle.agent_nhi, [entry.key_id for entry in bundle.kem_keys])
    revoked = [id_ for id_, record in listed.items() if record.status is KeyStatus.REVOKED]
    revoked += await store.revoked_signers(tx, bundle.agent_nhi)
    return BundleAnswer(
        bundle=bundle,
        bundle_id=newest.bundle_hash.hex(),
        rotation_statement=newest.link.rotation_statement,
        revoked=sorted(revoked),
    )


async def _newest(tx: Tx, handle: str) -> NewestBundle:
    newest = await store.newest(tx, handle)
    if newest is None:
        raise no_bundle(handle)
    return newest


def no_bundle(handle: str) -> KeyNotFound:
    return KeyNotFound(
        f"{handle} has no key bundle, so nothing can be sealed to it",
        hint=f"{handle} runs `angelia key publish`",
    )
