"""Whom this agent believes to be in a channel: the newest roster of each that its owner signed, pinned."""

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
from angelia.keys.model import moment
from angelia.mailbox.database import SQL, Database, Tx, stamp
from angelia.mailbox.rotation import OwnKeys
from angelia.mailbox.trust import Trust

# As many versions a pair that was replaced may be ahead of the pin. A server counts one by one, so the owner's next
# roster would be out of reach.
MOST_AHEAD = 1_000
# Ten thousand members take 30 ms to read, and every message asks for them.
_decoded = functools.lru_cache(maxsize=16)(decode_roster)


class Rosters:
    """The table `channel_rosters`."""

    def __init__(self, database: Database, own: OwnKeys, trust: Trust) -> None:
        self._database = database
        self._own = own
        self._trust = trust

    def pinned(self, channel_id: UUID) -> Roster | None:
        """The roster that was believed last, whatever became of the pair that signed it."""
        found = self._database.row("pinned_roster", str(channel_id))
        return None if found is None else _decoded(found[0])

    def believed(self, channel_id: UUID) -> Roster | None:
        """The pinned roster, unless its owner has revoked the pair that signed it."""
        pinned = self.pinned(channel_id)
        return pinned if pinned is not None and self._stands(pinned) else None

    def named(self, name: str) -> Roster | None:
        """The roster of the channel that an `owner/name` stands for."""
        found = self._database.row("named_roster", name)
        return None if found is None else _decoded(found[0])

    def signed_by_former(self) -> list[Roster]:
        """The rosters of this agent's own channels that its present pair has not signed."""
        own = self._own.identity
        rows = self._database.rows("rosters_of_former_pairs", own.handle, str(own.pair.public.signer_id))
        return [_decoded(row[0]) for row in rows]

    def names_present_pair(self, roster: Roster) -> bool:
        """Whether a roster says that this agent's present pair signed it; `pin` checks that it did."""
        own = self._own.identity
        return (roster.owner_nhi, roster.signer_id) == (own.handle, own.pair.public.signer_id)

    def check_own(self, roster: Roster) -> None:
        """Whether some pair that this agent has or had signed a roster of its own; a stolen one may have."""
        pairs = [self._own.identity.pair.public, *(link.bundle.signer for link in self._own.chain())]
        pair = next((one for one in pairs if one.signer_id == roster.signer_id), None)
        if pair is None:
            raise UnknownSigner("no pair of this agent signed the roster")
        check_roster(roster, pair)

    def pin(self, roster: Roster, now: datetime) -> None:
        """Believe a roster: signed by a pair of its owner that is believed, and not older than what was seen before.

        A pin whose pair was revoked holds no later roster back: whoever stole the pair may have signed it, under any
        version. It still says whose the channel is: that a pair was revoked is the server's word alone.
        Another channel takes a name over only with a later roster, as after its owner deleted it and made it anew."""
        check_roster(roster, self._signer(roster))
        with self._database.transaction() as tx:
            self._pin(tx, roster, now)

    def pin_own(self, roster: Roster, now: datetime) -> None:
        """Pin what was signed here, unless another process of this agent has signed a later one by now."""
        with self._database.transaction() as tx:
            before, *_ = _read(tx, roster.channel_id)
            if before is None or before.version < roster.version or not self.names_present_pair(before):
                self._pin(tx, roster, now)

    def is_spent(self, channel_id: UUID, epoch: int) -> bool:
        """Whether the key of an epoch was given to somebody who is off the roster by now, whatever a server says."""
        found = self._database.row("keys_after", str(channel_id))
        return found is not None and epoch <= found[0]

    def _pin(self, tx: Tx, roster: Roster, now: datetime) -> None:
        channel_id = str(roster.channel_id)
        before, keys_after, keys_since = _read(tx, roster.channel_id)
        if before is not None:
            check_same_channel(roster, before)
            if self._stands(before):
                check_follows(roster, before)
                self._check_successor(roster, before)
        _take_name(tx, roster)
        # Somebody may have come and gone on the rosters in between.
        unseen = before is None or roster.version > before.version + 1
        if unseen or (before is not None and roster.takes_keys_from(before)):
            (newest,) = tx.execute(SQL["newest_epoch"], (channel_id, self._own.identity.handle)).fetchone()
            keys_after = max(keys_after, newest or 0)
            keys_since = 0 if before is None else roster.version
        pinned = (
            channel_id,
            roster.name,
            roster.owner_nhi,
            str(roster.signer_id),
            roster.version,
            keys_after,
            keys_since,
        )
        tx.execute(SQL["pin_roster"], (*pinned, encode_roster(roster), stamp(now)))

    def _check_successor(self, roster: Roster, before: Roster) -> None:
        """A pair that was replaced may be in other hands, and can date what it signs back: it takes no place of what a
        later pair signed, and drives no version out of its owner's reach."""
        former, later = self._replaced_at(roster), self._replaced_at(before)
        if former is None:
            return
        if later is None or former < later or roster.version > before.version + MOST_AHEAD:
            raise UntrustedRoster(
                f"version {roster.version} of the roster of {roster.name} is signed by a pair that "
                f"{roster.owner_nhi} has replaced",
                hint=f"{roster.owner_nhi} signs it with its present pair: angelia channel sign {roster.channel_name}",
            )

    def _replaced_at(self, roster: Roster) -> str | None:
        """When the owner replaced the pair that signed; None for its present one."""
        former = self._database.row("former", roster.owner_nhi, str(roster.signer_id))
        return None if former is None else former[2]

    def _stands(self, pinned: Roster) -> bool:
        try:
            self._signer(pinned)
        except Refused:
            return False
        return True

    def _signer(self, roster: Roster) -> VerifyingPair:
        own = self._own.identity
        if roster.owner_nhi != own.handle:
            return self._trust.signer(roster.owner_nhi, roster.signer_id, moment(roster.issued_at))
        if roster.signer_id != own.pair.public.signer_id:
            raise UnknownSigner("an earlier pair of this agent signed the roster")
        return own.pair.public


def _read(tx: Tx, channel_id: UUID) -> tuple[Roster | None, int, int]:
    found = tx.execute(SQL["pinned_roster"], (str(channel_id),)).fetchone()
    return (None, 0, 0) if found is None else (_decoded(found[0]), found[1], found[2])


def _take_name(tx: Tx, roster: Roster) -> None:
    found = tx.execute(SQL["named_roster"], (roster.name,)).fetchone()
    if found is None:
        return
    other = _decoded(found[0])
    if other.channel_id == roster.channel_id:
        return
    if roster.issued_at <= other.issued_at:
        raise UntrustedRoster(
            f"{roster.name} is another channel than before, and its roster is the older one",
            hint=f"ask {roster.owner_nhi} which of them it is: {other.channel_id} or {roster.channel_id}",
        )
    tx.execute(SQL["forget_roster"], (str(other.channel_id),))
