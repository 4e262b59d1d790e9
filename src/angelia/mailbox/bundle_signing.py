"""Makes an agent's next key bundle from its present one. Pure: keys and times come in, a signed link comes out."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from uuid import UUID

import msgspec

from angelia.envelope.bundles import (
    KEY_LIFE,
    MOST_KEM_KEYS,
    Bundle,
    KemEntry,
    KemKeyStatus,
    Link,
    UntrustedBundle,
    anchor_of,
    check_bundle,
    milliseconds,
    sign_bundle,
    sign_rotation,
)
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPrivateKey, KemPublicKey
from angelia.envelope.signing import SigningPair
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Suite
from angelia.errors import InvalidArgument
from angelia.keys.model import GRACE
from angelia.mailbox.keyfile import ED25519, ML_DSA, NEXT, SEED_LENGTHS, XWING, Seeds


class RotationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation changes."""

    kem: bool
    signer: bool
    emergency: bool
    suites: int
    # Of an emergency, for the process that finishes it: the reason, and since when the keys may be stolen.
    why: str = ""
    compromised_since: datetime | None = None

    @property
    def renews(self) -> bool:
        """Whether it replaces no key: the same keys are signed again, so that senders see that they are still valid."""
        return not self.kem and not self.signer

    def with_earlier(self, queued: RotationPlan | None) -> RotationPlan:
        """Returns this emergency merged with a queued one: it replaces the signing pair if either does, and takes the
        earlier time of compromise."""
        if queued is None:
            return self
        since = [one for one in (self.compromised_since, queued.compromised_since) if one is not None]
        return msgspec.structs.replace(
            self, signer=self.signer or queued.signer, compromised_since=min(since, default=None)
        )


def check_suites(suites: int) -> None:
    """Raises for a mask without X-Wing, whose key is always in the key file, or with unknown suites."""
    if not suites & Suite.XWING.bit or suites & ~(Suite.ML_KEM.bit | Suite.XWING.bit | Suite.CHANNEL.bit):
        raise InvalidArgument("the mask of suites has suite 2, and suites 1 and 4 if wanted", hint="suites 1, 2 and 4")


def first_link(
    pair: SigningPair, handle: str, seeds: Seeds, separate: KemPublicKey | None, suites: int, now: datetime
) -> Link:
    """Returns the first bundle of a chain."""
    at = unix_ms(now)
    keys = [xwing(seeds[XWING]).public, *([separate] if separate else [])]
    entries = tuple(_active(key, at) for key in keys)
    return Link(sign_bundle(pair, agent_nhi=handle, issued_at=at, kem_keys=entries, after=None, suites=suites))


def next_link(
    before: Bundle,
    pair: SigningPair,
    seeds: Seeds,
    separate: KemPublicKey | None,
    plan: RotationPlan,
    now: datetime,
    revoked: Collection[UUID] = (),
) -> Link:
    """Returns the bundle after `before`: new keys are active, replaced keys stay listed for their grace period."""
    at = unix_ms(now)
    old = {entry.key.key_id: entry for entry in before.kem_keys if entry.status is KemKeyStatus.ACTIVE}
    keys = [xwing(seeds[NEXT + XWING if plan.kem else XWING]).public, *([separate] if separate else [])]
    # A key that stays keeps its times: only a new key is valid for another year.
    active = [old.get(key.key_id) or _active(key, at) for key in keys]
    grace: list[KemEntry] = []
    if not plan.emergency:
        listed = {entry.key.key_id for entry in active}
        replaced = [entry for id_, entry in old.items() if id_ not in listed]
        grace = [replace(entry, status=KemKeyStatus.GRACE, rotated_at=at) for entry in replaced]
        grace += [
            e for e in before.kem_keys if e.status is KemKeyStatus.GRACE and at < e.rotated_at + milliseconds(GRACE)
        ]
        grace = [entry for entry in grace if entry.key.key_id not in revoked]
    signing = next_pair(seeds) if plan.signer else pair
    bundle = sign_bundle(
        signing,
        agent_nhi=before.agent_nhi,
        issued_at=at,
        # The newest come first; a key without room in the list still opens envelopes.
        kem_keys=tuple([*active, *grace][:MOST_KEM_KEYS]),
        after=anchor_of(before),
        suites=plan.suites,
    )
    return Link(bundle, sign_rotation(pair, signing, before.agent_nhi, at) if plan.signer else None)


def with_next(seeds: Seeds, plan: RotationPlan) -> dict[str, bytes]:
    """Returns the seeds with the `next.` seeds that the plan needs, and no others. Seeds of an interrupted attempt are
    used again, except in an emergency: a thief may have read the key file."""
    wanted = ([XWING] if plan.kem else []) + ([ED25519, ML_DSA] if plan.signer else [])
    made = {NEXT + name: os.urandom(SEED_LENGTHS[name]) for name in wanted}
    found = {} if plan.emergency else {name: seed for name, seed in seeds.items() if name in made}
    return without_next(seeds) | made | found


def without_next(seeds: Seeds) -> dict[str, bytes]:
    return {name: seed for name, seed in seeds.items() if not name.startswith(NEXT)}


def promoted(seeds: Seeds) -> dict[str, bytes]:
    """Returns the seeds with the `next.` seeds in the place of the current ones."""
    return without_next(seeds) | {
        name.removeprefix(NEXT): seed for name, seed in seeds.items() if name.startswith(NEXT)
    }


def same_keys(link: Link, accepted: Link | None) -> Link:
    """Returns the server's copy of a link, if given, else the link. The copy may differ only in its signatures."""
    if accepted is None:
        return link
    ours, theirs = link.bundle, accepted.bundle
    check_bundle(theirs)
    if _step(ours) != _step(theirs):
        raise UntrustedBundle("the server's bundle is not the one that this agent signed")
    return accepted


def separate_key(bundle: Bundle) -> KemPublicKey | None:
    """Returns the separate ML-KEM key of suite 1, if the bundle has one."""
    entry = bundle.active(KeyType.ML_KEM_768)
    return None if entry is None else entry.key


def xwing(seed: bytes) -> KemPrivateKey:
    return KemPrivateKey.from_seed(KeyType.XWING, seed)


def next_pair(seeds: Seeds) -> SigningPair:
    return SigningPair.from_seeds(seeds[NEXT + ED25519], seeds[NEXT + ML_DSA])


def _step(bundle: Bundle) -> tuple[object, ...]:
    """Returns what two signatures over the same step share; a key in grace may have left the list in between."""
    chained = (bundle.agent_nhi, bundle.bundle_version, bundle.prev_bundle_hash)
    return (*chained, bundle.signer.signer_id, bundle.suites, bundle.active_ids)


def _active(key: KemPublicKey, at: int) -> KemEntry:
    return KemEntry(key=key, status=KemKeyStatus.ACTIVE, created_at=at, expires_at=at + milliseconds(KEY_LIFE))
