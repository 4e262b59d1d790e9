"""The state of a key rotation in the database: the pending rotation, and an emergency that is queued behind it."""

from __future__ import annotations

import msgspec

from angelia.envelope.bundles import Link
from angelia.keys.model import LinkDocument, link_document, parse_link
from angelia.mailbox.bundle_signing import RotationPlan
from angelia.mailbox.database import MailboxDatabase, MailboxTx

PENDING, QUEUED = "pending_rotation", "emergency_wanted"


class PendingRotation(msgspec.Struct, frozen=True, kw_only=True):
    """A rotation that was begun. Its keys are fixed, and once a server accepted it, it can only be finished."""

    plan: RotationPlan
    document: LinkDocument = msgspec.field(name="link")
    accepted: bool = False

    @property
    def link(self) -> Link:
        """The bundle to publish."""
        return parse_link(self.document)


def pending_rotation(database: MailboxDatabase) -> PendingRotation | None:
    """Returns the rotation that was begun and neither finished nor abandoned."""
    found = database.meta(PENDING)
    return None if found is None else msgspec.json.decode(found, type=PendingRotation)


def set_pending(tx: MailboxTx, plan: RotationPlan, link: Link, *, accepted: bool = False) -> None:
    pending = PendingRotation(plan=plan, document=link_document(link), accepted=accepted)
    tx.write("write_meta", PENDING, msgspec.json.encode(pending).decode())


def queued_emergency(database: MailboxDatabase) -> RotationPlan | None:
    """Returns the emergency that begins when the pending rotation is finished or abandoned."""
    found = database.meta(QUEUED)
    return None if found is None else msgspec.json.decode(found, type=RotationPlan)
