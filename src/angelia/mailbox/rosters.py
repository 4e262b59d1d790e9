"""Pinned rosters: of each channel the newest one that its owner signed, which names its members."""

from __future__ import annotations

import functools
from datetime import datetime
from uuid import UUID

from angelia.envelope.refusals import Refused, UnknownSigner
from angelia.envelope.rosters import (
    Roster,
    UntrustedRoster,
    check_follows,
    check_roster,
    check_same_channel,
    decode_roster,
    encode_roster,
)
from angelia.envelope.signing import VerifyingPair
from angelia.envelope.times import moment
from angelia.mailbox.database import MailboxDatabase, MailboxTx
from angelia.mailbox.own_keys import OwnKeys
from angelia.mailbox.pinned_keys import PinnedKeys

# Ten thousand members take 30 ms to read, and every message asks for them.
_decoded = functools.lru_cache(maxsize=16)(decode_roster)


class PinnedRosters:
    """The table `channel_rosters`."""

    def __init__(self, database: MailboxDatabase, own_keys: OwnKeys, pinned_keys: PinnedKeys) -> None:
        self._database = database
        self._own_keys = own_keys
        self._pinned_keys = pinned_keys

    def pinned(self, channel_id: UUID) -> Roster | None:
        """Returns the roster that was pinned last, even if the pair that signed it was revoked since."""
        return _known(self._database.row("pinned_roster", channel_id))

    def believed(self, channel_id: UUID) -> Roster | None:
        """Returns the pinned roster, unless its owner has revoked the pair that signed it."""
        pinned = self.pinned(channel_id)
        return pinned if pinned is not None and self._stands(pinned) else None

    def named(self, name: str) -> Roster | None:
        """Returns the pinned roster of the channel `owner/name`."""
        return _known(self._database.row("named_roster", name))

    def seen(self, channel_id: UUID) -> Roster | None:
        """Returns the roster that was pinned last, also of a forgotten channel."""
        return _seen(self._database.row("pinned_roster", channel_id))

    def seen_as(self, name: str) -> Roster | None:
        """Returns the roster that was pinned last under `owner/name`, also of a forgotten channel."""
        return _seen(self._database.row("named_roster", name))

    def forget(self, channel_id: UUID) -> None:
        """Forgets a channel's owner and members. If it turns out to be the same owner's, its version still does not go
        back."""
        self._database.write("forget_roster", channel_id)

    def signed_by_former(self) -> list[Roster]:
        """Returns the rosters of this agent's own channels that an earlier pair signed."""
        own = self._own_keys.identity
        rows = self._database.rows("rosters_of_former_pairs", own.handle, own.pair.public.signer_id)
        return [_decoded(row[0]) for row in rows]

    def names_present_pair(self, roster: Roster) -> bool:
        """Whether a roster names its owner's present pair as its signer; `pin` checks the signature. Another process
        may have replaced this agent's pair since its identity was read."""
        own = self._own_keys.identity
        if roster.owner_nhi != own.handle:
            pin = self._pinned_keys.pin(roster.owner_nhi)
            return pin is not None and pin.signer.signer_id == roster.signer_id
        if roster.signer_id != own.pair.public.signer_id:
            return False
        newest = self._own_keys.newest()
        if newest is None or newest.bundle.signer.signer_id == roster.signer_id:
            return True
        # A pair that is not in the chain yet is the next one, of a rotation that is just being finished.
        return not self.knows_as_earlier(roster, roster.signer_id)

    def knows_as_earlier(self, roster: Roster, signer_id: UUID) -> bool:
        """Whether a pair is an earlier one of the roster's owner than the one that signed the roster."""
        if roster.owner_nhi != self._own_keys.identity.handle:
            return self._database.row("was_pair", roster.owner_nhi, signer_id) is not None
        return any(link.bundle.signer.signer_id == signer_id for link in self._own_keys.chain())

    def check_own(self, roster: Roster) -> None:
        """Raises unless a present or earlier pair of this agent, perhaps a stolen one, signed its roster."""
        pair = self._own_keys.signing_pairs().get(roster.signer_id)
        if pair is None:
            raise UnknownSigner("no pair of this agent signed the roster")
        check_roster(roster, pair)

    def pin(self, roster: Roster, now: datetime) -> None:
        """Pins a roster: signed by its owner's present pair, and not older than what that pair signed before.

        A thief may have a replaced pair, and can backdate what it signs: that pair confirms the pinned roster, and
        nothing else. A roster of a new pair may have any version. Another channel takes over a name only with a later
        roster, as after its owner deleted the channel and created it again."""
        check_roster(roster, self._signer(roster))
        with self._database.transaction() as tx:
            self._pin(tx, roster, now)

    def pin_own(self, roster: Roster, now: datetime) -> bool:
        """Pins a roster that was signed here, unless another process of this agent has signed a later one. Returns
        False if that process has replaced the pair, so that members would refuse this roster."""
        with self._database.transaction() as tx:
            if not self.names_present_pair(roster):
                return False
            before, _ = _read(tx, roster.channel_id)
            if before is None or before.signer_id != roster.signer_id or before.version < roster.version:
                self._pin(tx, roster, now)
            return True

    def _pin(self, tx: MailboxTx, roster: Roster, now: datetime) -> None:
        before, forgotten = _read(tx, roster.channel_id)
        if before is None or roster.hash != before.hash:
            self._check_present_pair(roster)
        if before is not None and not (forgotten and before.name != roster.name):
            check_same_channel(roster, before)
            if roster.signer_id == before.signer_id:
                check_follows(roster, before)
        self._take_name(tx, roster)
        named = (roster.channel_id, roster.name, roster.owner_nhi, roster.signer_id)
        decided = (roster.policy, roster.version, roster.keys_since, encode_roster(roster))
        tx.write("pin_roster", *named, *decided, now)

    def _take_name(self, tx: MailboxTx, roster: Roster) -> None:
        found = tx.row("named_roster", roster.name)
        if found is None or (other := _decoded(found[0])).channel_id == roster.channel_id:
            return
        self._check_present_pair(roster)
        if roster.issued_at <= other.issued_at and roster.signer_id == other.signer_id:
            raise UntrustedRoster(
                f"{roster.name} is another channel than before, and its roster is the older one",
                hint=f"ask {roster.owner_nhi} which of them it is: {other.channel_id} or {roster.channel_id}",
            )
        tx.write("drop_roster", other.channel_id)

    def _check_present_pair(self, roster: Roster) -> None:
        if not self.names_present_pair(roster):
            raise UntrustedRoster(
                f"version {roster.version} of the roster of {roster.name} is signed by a pair that "
                f"{roster.owner_nhi} has replaced",
                hint=f"{roster.owner_nhi} signs it with its present pair: angelia channel sign {roster.channel_name}",
            )

    def _stands(self, pinned: Roster) -> bool:
        try:
            self._signer(pinned)
        except Refused:
            return False
        return True

    def _signer(self, roster: Roster) -> VerifyingPair:
        own = self._own_keys.identity
        if roster.owner_nhi != own.handle:
            return self._pinned_keys.signer(roster.owner_nhi, roster.signer_id, moment(roster.issued_at))
        if roster.signer_id != own.pair.public.signer_id:
            raise UnknownSigner("an earlier pair of this agent signed the roster")
        return own.pair.public


def _read(tx: MailboxTx, channel_id: UUID) -> tuple[Roster | None, bool]:
    """Returns the pinned roster of a channel, and whether the channel was forgotten."""
    found = tx.row("pinned_roster", channel_id)
    return (None, False) if found is None else (_decoded(found[0]), bool(found[1]))


def _known(row: tuple[bytes, int] | None) -> Roster | None:
    return None if row is None or row[1] else _decoded(row[0])


def _seen(row: tuple[bytes, int] | None) -> Roster | None:
    return None if row is None else _decoded(row[0])
