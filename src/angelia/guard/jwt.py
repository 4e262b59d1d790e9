"""JSON Web Tokens, when configured: HS256 by secret, RS256 and EdDSA by PEM file, or keys published as JWKS."""

from __future__ import annotations

import asyncio
from typing import Any

import jwt

from angelia.api import ROLES, Role
from angelia.errors import SettingsError, Unauthenticated, Unavailable
from angelia.settings import Settings

# The key decides the algorithms, so a public key can never be used as an HMAC secret.
_ASYMMETRIC = ["RS256", "RS384", "RS512", "EdDSA"]
_LEEWAY_SECONDS = 30


class JwtVerifier:
    """Verifies tokens by the keys that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._audience_optional = settings.jwt_audience_optional
        self._secret = settings.jwt_secret
        self._pem: str | None = None
        self._jwks = jwt.PyJWKClient(settings.jwt_jwks_url, timeout=5) if settings.jwt_jwks_url else None
        if self._secret is not None and len(self._secret) < 32:
            raise SettingsError("jwt_secret must have at least 32 characters")
        if settings.jwt_public_key is not None:
            try:
                self._pem = settings.jwt_public_key.read_text("utf-8")
            except OSError as error:
                raise SettingsError(f"jwt_public_key: {error.strerror}: {settings.jwt_public_key}") from error

    async def verify(self, token: str) -> tuple[str | None, Role]:
        """Returns the subject and role of a token; Unauthenticated if it does not verify."""
        try:
            claims = await self._claims(token)
        except jwt.PyJWKClientConnectionError as error:
            raise Unavailable("the keys of JSON Web Tokens cannot be fetched at the moment", retry_after=5) from error
        except jwt.PyJWTError as error:
            raise Unauthenticated("Authentication required", hint=f"the token was refused: {error}") from error
        subject = claims.get("sub")
        return subject if isinstance(subject, str) else None, _role(claims)

    async def _claims(self, token: str) -> dict[str, Any]:
        algorithm = jwt.get_unverified_header(token).get("alg")
        key: Any
        if algorithm == "HS256" and self._secret is not None:
            key, algorithms = self._secret, ["HS256"]
        elif self._pem is not None:
            key, algorithms = self._pem, _ASYMMETRIC
        elif self._jwks is not None:
            key, algorithms = await asyncio.to_thread(self._jwks.get_signing_key_from_jwt, token), _ASYMMETRIC
        else:
            raise jwt.InvalidAlgorithmError("no key is configured for this algorithm")
        # One that names an audience must name ours, also where none need be named.
        optional = self._audience_optional and "aud" not in jwt.decode(token, options={"verify_signature": False})
        return jwt.decode(
            token,
            key,
            algorithms=algorithms,
            audience=None if optional else self._audience,
            issuer=self._issuer,
            leeway=_LEEWAY_SECONDS,
            options={"require": ["exp"] if optional else ["exp", "aud"]},
        )


def _role(claims: dict[str, Any]) -> Role:
    named = claims.get("roles")
    names = [*named] if isinstance(named, list) else []
    names.append(claims.get("role"))
    return max((ROLES[name] for name in names if isinstance(name, str) and name in ROLES), default=Role.NONE)
