"""The senders whose mail is opened. An empty list admits none; entries name signing pairs, never claimed handles."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

import msgspec

from angelia.envelope.ids import valid_handle
from angelia.envelope.refusals import NotAllowed, UnknownSigner
from angelia.envelope.signing import VerifyingPair
from angelia.errors import InvalidArgument
from angelia.mailbox.database import MailboxDatabase, stamp
from angelia.mailbox.pinned_keys import Pin, PinnedKeys

MOST_LABEL = 256
_FINGERPRINT = re.compile(r"\A[A-Za-z0-9_-]{43}\Z")
_CALYX_FINGERPRINT = re.compile(r"\A[A-Za-z0-9+/]{22}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedSender:
    """A signing pair whose mail is opened."""

    fingerprint: str
    nhi: str
    label: str | None
    added_at: datetime


@dataclass(frozen=True, slots=True)
class AllowlistImport:
    """The outcome of an import: how many entries are new, and why others were refused."""

    added: int
    refused: tuple[str, ...]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: str
    nhi: str
    label: str | None = None
    added_at: str | None = None


class Allowlist:
    """The table `allowlist`."""

    def __init__(self, database: MailboxDatabase, pinned_keys: PinnedKeys) -> None:
        self._database = database
        self._pinned_keys = pinned_keys

    def check(self, pair: VerifyingPair, nhi: str) -> None:
        """Raises NotAllowed for a pair that is not listed."""
        if self._database.row("is_allowed", pair.fingerprint) is None:
            raise NotAllowed(f"{nhi} is not on the allowlist", hint=f"angelia mail allow {nhi}")

    def entries(self) -> list[AllowedSender]:
        return self._database.records(AllowedSender, "allowlist")

    def allow(self, nhi: str, now: datetime, label: str | None = None) -> AllowedSender:
        """Opens mail of an agent from now on, and returns its entry. Its signing pair must be pinned."""
        pin = self._pinned_keys.pin(nhi)
        if pin is None:
            raise UnknownSigner(
                f"{nhi} is not pinned yet, so its signing pair is not known", hint=f"angelia key pin {nhi}"
            )
        self._add([_checked(pin.fingerprint, nhi, label)], now)
        return next(entry for entry in self.entries() if entry.fingerprint == pin.fingerprint)

    def deny(self, nhi: str) -> int:
        """Opens no more mail of an agent, whichever pair signs it. Returns how many of its pairs were listed."""
        return len(self._database.write("deny", nhi))

    def export_json(self) -> bytes:
        """Returns the list as a JSON array."""
        documents = [_Document(one.fingerprint, one.nhi, one.label, stamp(one.added_at)) for one in self.entries()]
        return msgspec.json.format(msgspec.json.encode(documents)) + b"\n"

    def import_json(self, content: bytes, now: datetime) -> AllowlistImport:
        """Adds the entries of a JSON array: exported ones, or the 22-character fingerprints of a Calyx allowlist.

        A Calyx fingerprint covers the Ed25519 key alone and is cut to 128 bits, so it only selects among pinned pairs.
        """
        try:
            listed = msgspec.json.decode(content, type=list[_Document | str])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the allowlist is no JSON array of entries: {error}") from error
        pins = self._pinned_keys.pins()
        accepted, refused = list[_Document](), list[str]()
        for one in listed:
            try:
                accepted.append(
                    _from_calyx(one, pins) if isinstance(one, str) else _checked(one.fingerprint, one.nhi, one.label)
                )
            except InvalidArgument as error:
                refused.append(error.message)
        return AllowlistImport(self._add(accepted, now), tuple(refused))

    def _add(self, documents: list[_Document], now: datetime) -> int:
        known = {entry.fingerprint for entry in self.entries()}
        with self._database.transaction() as tx:
            for one in documents:
                tx.write("allow", one.fingerprint, one.nhi, one.label, now)
        return len({one.fingerprint for one in documents} - known)


def calyx_fingerprint(ed25519: bytes) -> str:
    """Returns Calyx's fingerprint of a public key."""
    return base64.b64encode(hashlib.sha256(ed25519).digest()[:16]).decode("ascii").rstrip("=")


def _from_calyx(short: str, pins: list[Pin]) -> _Document:
    if _CALYX_FINGERPRINT.match(short) is None:
        raise InvalidArgument(f"{short[:60]!r} is not a fingerprint of Calyx")
    found = next((pin for pin in pins if calyx_fingerprint(pin.signer.ed25519) == short), None)
    if found is None:
        raise InvalidArgument(f"{short!r} is no pinned agent's: pin the agent first, then import again")
    return _Document(found.fingerprint, found.nhi)


def _checked(fingerprint: str, nhi: str, label: str | None) -> _Document:
    if _FINGERPRINT.match(fingerprint) is None:
        raise InvalidArgument(f"{fingerprint[:60]!r} is not a fingerprint")
    if not valid_handle(nhi):
        raise InvalidArgument(f"{nhi[:60]!r} is not a handle")
    if label is not None and (len(label) > MOST_LABEL or not _encodable(label)):
        raise InvalidArgument(f"a label is text of at most {MOST_LABEL} characters")
    return _Document(fingerprint, nhi, label)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
