"""Envelopes that are properly signed, with headers that an honest sender would not write."""

from __future__ import annotations

import dataclasses

from angelia.envelope import sealing, wire
from angelia.envelope.wire import Envelope
from angelia.mailbox.mailbox import Mailbox


def forged(envelope: Envelope, sender: Mailbox, **changes: object) -> bytes:
    """Returns the envelope with some header fields changed, signed by `sender`'s pair."""
    header = dataclasses.replace(envelope.header, **changes)  # type: ignore[arg-type]
    head = wire.encode_head(header)
    pair = sender.identity.pair
    digest = wire.signed_digest(head, envelope.ciphertext, envelope.tag)
    signatures = pair.sign(sealing.Purpose.ENVELOPE, digest)
    return wire.assemble(header, head, envelope.ciphertext, envelope.tag, signatures).wire
