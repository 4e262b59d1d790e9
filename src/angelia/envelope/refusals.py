"""The errors for refused envelopes: one family, whose texts reveal nothing to an attacker."""

from __future__ import annotations

from angelia.errors import AngeliaError


class Refused(AngeliaError, code="open_failed"):
    """The envelope was refused"""


class Malformed(Refused, code="invalid_argument"):
    """These bytes are not an envelope"""


class WrongRecipient(Refused, code="wrong_recipient"):
    """The envelope is for somebody else"""


class UnknownKey(Refused, code="key_not_found"):
    """The envelope is sealed to a key that is not here"""


class SuiteRefused(Refused, code="suite_refused"):
    """The recipient does not take this suite"""


class StaleEnvelope(Refused, code="stale"):
    """The envelope is too old to be handed over"""


class FutureEnvelope(Refused, code="from_future"):
    """The envelope was made later than this clock allows"""


class Expired(Refused, code="message_expired"):
    """The envelope has expired"""


class Replayed(Refused, code="replay_rejected"):
    """The envelope was opened before"""


class IdConflict(Refused, code="message_id_conflict"):
    """The sender used this message id before, for another envelope"""


class NotAllowed(Refused, code="authorization_denied"):
    """The sender is not on the allowlist"""


class UnknownSigner(Refused, code="key_not_found"):
    """The keys that should have signed this are not known"""

    agent = ""  # the agent whose keys would have to be fetched


class SignatureFailed(Refused, code="signature_verification_failed"):
    """The signatures do not hold"""


class OpenFailed(Refused, code="open_failed"):
    """The envelope cannot be opened"""


class UnsupportedCompression(Refused, code="unsupported_compression"):
    """The message is compressed in a way that cannot be read here"""


class InvalidKey(Refused, code="invalid_key_format"):
    """A public key is not well formed"""
