"""The errors for refused envelopes: one family, whose texts reveal nothing to an attacker."""

from __future__ import annotations

from angelia.errors import AngeliaError


class Refused(AngeliaError):
    """The envelope was refused"""

    code = "open_failed"


class Malformed(Refused):
    """These bytes are not an envelope"""

    code = "invalid_argument"


class WrongRecipient(Refused):
    """The envelope is for somebody else"""

    code = "wrong_recipient"


class UnknownKey(Refused):
    """The envelope is sealed to a key that is not here"""

    code = "key_not_found"


class SuiteRefused(Refused):
    """The recipient does not take this suite"""

    code = "suite_refused"


class StaleEnvelope(Refused):
    """The envelope is too old to be handed over"""

    code = "stale"


class FutureEnvelope(Refused):
    """The envelope was made later than this clock allows"""

    code = "from_future"


class Expired(Refused):
    """The envelope has expired"""

    code = "message_expired"


class Replayed(Refused):
    """The envelope was opened before"""

    code = "replay_rejected"


class IdConflict(Refused):
    """The sender used this message id before, for another envelope"""

    code = "message_id_conflict"


class NotAllowed(Refused):
    """The sender is not on the allowlist"""

    code = "authorization_denied"


class UnknownSigner(Refused):
    """The keys that should have signed this are not known"""

    code = "key_not_found"
    agent = ""  # the agent whose keys would have to be fetched


class SignatureFailed(Refused):
    """The signatures do not hold"""

    code = "signature_verification_failed"


class OpenFailed(Refused):
    """The envelope cannot be opened"""

    code = "open_failed"


class UnsupportedCompression(Refused):
    """The message is compressed in a way that cannot be read here"""

    code = "unsupported_compression"


class InvalidKey(Refused):
    """A public key is not well formed"""

    code = "invalid_key_format"
