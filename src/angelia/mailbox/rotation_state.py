"""The state of a key rotation in the database: the pending rotation, and an emergency that is queued behind it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from angelia.envelope.bundles import Link
from angelia.keys.model import LinkDocument, link_document, parse_link
from angelia.mailbox.bundle_signing import RotationPlan
from angelia.mailbox.database import MailboxDatabase, MailboxTx

_PENDING, _QUEUED = "pending_rotation", "emergency_wanted"


class _PendingRow(msgspec.Struct, frozen=True, kw_only=True):
    plan: RotationPlan
    link: LinkDocument
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class PendingRotation:
    """A rotation that was begun. Its keys are fixed, and once a server accepted it, it can only be finished."""

    plan: RotationPlan
    link: Link
    accepted: bool


def pending_rotation(database: MailboxDatabase) -> PendingRotation | None:
    """Returns the rotation that was begun and neither finished nor abandoned."""
    found = database.meta(_PENDING)
    if found is None:
        return None
    row = msgspec.json.decode(found, type=_PendingRow)
    return PendingRotation(row.plan, parse_link(row.link), row.accepted)


def set_pending(tx: MailboxTx, pending: PendingRotation) -> None:
    row = _PendingRow(plan=pending.plan, link=link_document(pending.link), accepted=pending.accepted)
    tx.write("write_meta", _PENDING, msgspec.json.encode(row).decode())


def drop_pending(tx: MailboxTx) -> None:
    tx.write("drop_meta", _PENDING)


def queued_emergency(database: MailboxDatabase) -> RotationPlan | None:
    """Returns the emergency that begins when the pending rotation is finished or abandoned."""
    found = database.meta(_QUEUED)
    return None if found is None else msgspec.json.decode(found, type=RotationPlan)


def queue_emergency(tx: MailboxTx, plan: RotationPlan) -> None:
    tx.write("write_meta", _QUEUED, msgspec.json.encode(plan).decode())


def drop_queued(tx: MailboxTx) -> None:
    tx.write("drop_meta", _QUEUED)
