"""Whether envelopes may be accepted and delivered, by the keys that they are sealed to and signed with.

The statements of mail ask `parts.sql` together with what they ask themselves; here the columns are judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from angelia.envelope.refusals import InvalidKey, SuiteRefused
from angelia.envelope.signing import VerifyingPair, parse_pair
from angelia.envelope.times import moment
from angelia.envelope.wire import Header
from angelia.errors import AngeliaError, KeyNotFound, KeyRevoked, KeyStale
from angelia.keys import store
from angelia.keys.model import KEM_TYPES, ONE_TIME_USE, KemStanding, KeyStatus, PairStanding
from angelia.keys.service import answer_of, no_bundle
from angelia.stores.ledger import Row, Tx

_MOST_PAIRS = 4_096


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether the key that an envelope is sealed to is good. A one-time key is still to be spent; the error for a stale
    key carries the present bundle, which `stale` looks up."""

    refusal: AngeliaError | None = None
    one_time: bool = False
    stale: bool = False


_GOOD, _ONE_TIME, _STALE = Standing(), Standing(one_time=True), Standing(stale=True)


@dataclass(frozen=True, slots=True)
class Signed:
    """The claim that an agent signed something: the agent, its signing pair, and the time."""

    agent: str
    signer_id: UUID
    at: datetime

    @classmethod
    def envelope(cls, header: Header) -> Signed:
        return cls(header.sender_nhi, header.sender_key_id, moment(header.created_at))


class EnvelopeKeys(NamedTuple):
    """The keys of an accepted envelope, by which it is checked again before delivery."""

    recipient: str
    key_id: UUID
    sender: str
    signer_id: UUID
    accepted_at: datetime


def standing(row: Row, header: Header, now: datetime) -> Standing:
    """Whether an envelope is sealed in a suite that its recipient accepts, and to a key that is good, by a row of the
    part `standing`."""
    recipient, wanted, suites = header.recipient_nhi, KEM_TYPES.get(header.suite), row["suites"]
    if suites is None:
        return Standing(no_bundle(recipient))
    if wanted is None or not suites & header.suite.bit:
        return Standing(SuiteRefused(f"{recipient} does not take suite {int(header.suite)}"))
    if row["key_status"] is None:
        issued_at = row["one_time_issued_at"]
        one_time = row["one_time_type"] == wanted and issued_at >= now - ONE_TIME_USE
        return _ONE_TIME if one_time else _STALE
    key = KemStanding(KeyStatus(row["key_status"]), row["key_expires_at"], row["key_rotated_at"])
    if key.status is KeyStatus.REVOKED:
        hint = "fetch its bundle and seal the message again"
        return Standing(KeyRevoked(f"this key of {recipient} was revoked", hint=hint))
    if row["key_type"] != wanted or not key.takes_envelope_of(moment(header.created_at), now):
        return _STALE
    return _GOOD


async def stale(tx: Tx, recipients: Iterable[str]) -> dict[str, AngeliaError]:
    """The errors for stale keys of recipients, with the present bundle, so that the sender can seal again without
    another request. Only for senders that may read the recipient's keys."""
    errors: dict[str, AngeliaError] = {}
    for recipient in recipients:
        newest = await store.newest(tx, recipient)
        if newest is None:
            errors[recipient] = no_bundle(recipient)
            continue
        error = bare_stale(recipient)
        error.hint = "seal the message again, to the bundle that comes with this answer"
        error.members = msgspec.to_builtins(await answer_of(tx, newest))
        errors[recipient] = error
    return errors


def bare_stale(recipient: str) -> KeyStale:
    """The same error without the bundle, for all other senders."""
    return KeyStale(f"this key of {recipient} is no longer the one to seal to", hint="fetch its bundle and seal again")


class Pairs:
    """Signing pairs that were read before, parsed. Their id is a hash of their bytes, so these never change; whether a
    pair may sign is asked each time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, UUID], VerifyingPair] = {}

    def known(self, signed: Signed) -> VerifyingPair | None:
        return self._known.get((signed.agent, signed.signer_id))

    def judged(
        self, row: Row, signed: Signed, known: VerifyingPair | None, accepted_at: datetime
    ) -> VerifyingPair | AngeliaError:
        """The pair to verify a claim with, or why there is none, by a row of the part `signer`; `known` is the pair
        whose bytes were not asked for."""
        if not row["pair_found"]:
            return KeyNotFound(f"{signed.agent} has no such signing pair", hint="publish them: angelia key publish")
        pair = PairStanding(row["pair_rotated_at"], row["pair_revoked_at"], row["pair_compromised_since"])
        if not pair.signs_envelope_of(signed.at, accepted_at):
            if pair.revoked_at is not None:
                return KeyRevoked(f"this signing pair of {signed.agent} was revoked")
            return KeyStale(f"this signing pair of {signed.agent} was replaced", hint="sign with the present one")
        if known is not None:
            return known
        parsed = parse_pair(row["ed25519"], row["ml_dsa"])
        if parsed.signer_id != signed.signer_id:
            return InvalidKey(f"what is stored of this signing pair of {signed.agent} is damaged")
        if len(self._known) >= _MOST_PAIRS:
            self._known.clear()
        self._known[signed.agent, signed.signer_id] = parsed
        return parsed


PAIRS = Pairs()


async def signers(tx: Tx, signed: Sequence[Signed], accepted_at: datetime) -> list[VerifyingPair | AngeliaError]:
    """For each claim the signing pair to verify it with, or why there is none."""
    known = [PAIRS.known(one) for one in signed]
    wanted = [(one.agent, one.signer_id, pair is not None) for one, pair in zip(signed, known, strict=True)]
    rows = await store.signers(tx, wanted)
    return [PAIRS.judged(row, one, pair, accepted_at) for row, one, pair in zip(rows, signed, known, strict=True)]


async def with_revoked_keys(tx: Tx, held: Sequence[EnvelopeKeys]) -> set[int]:
    """The places of the envelopes that must not be delivered, because a key of theirs was revoked since."""
    return await store.with_revoked_keys(tx, held)
