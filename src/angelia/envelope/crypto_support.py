"""Checks that the installed cryptography has the algorithms of envelopes; a build with an old OpenSSL has not."""

from __future__ import annotations

from cryptography.hazmat.backends.openssl import backend

from angelia.errors import AngeliaError


class UnsupportedCryptography(AngeliaError, code="unsupported_cryptography"):
    """The installed cryptography package lacks ML-KEM or ML-DSA"""


def require() -> None:
    """Raises without the post-quantum algorithms: there is no mode without them."""
    missing = [
        name
        for name, there in (("ML-KEM", backend.mlkem_supported()), ("ML-DSA", backend.mldsa_supported()))
        if not there
    ]
    if missing:
        raise UnsupportedCryptography(
            f"the installed cryptography lacks {' and '.join(missing)} (it uses {backend.openssl_version_text()})",
            hint="install its wheel: pip install --only-binary :all: 'cryptography>=50,<51'",
        )
