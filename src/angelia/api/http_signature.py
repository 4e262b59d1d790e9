"""The profile of RFC 9421 that signs requests: fixed components, Ed25519, a nonce per request.

Pure, and shared by the server's guard and the SDK. A signature that covers less, or has another label, does not parse,
so a weaker signature is never verified.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.errors import Unauthenticated

REQUIRED = ("@method", "@authority", "@path", "@query", "content-digest")
ROOM_KEY = "x-aicq-room-key"
_WITH_ROOM_KEY = (*REQUIRED, ROOM_KEY)
TAG = "angelia-v1"
NONCE_MIN, NONCE_MAX = 22, 128

# The order in which the SDK writes components and parameters. What fits it needs no other check of its form; any other
# order is read piece by piece, which takes 9 µs more.
_USUAL = re.compile(
    r'sig=(\("@method" "@authority" "@path" "@query" "content-digest"( "x-aicq-room-key")?\);created=([0-9]{1,15})'
    rf';nonce="([\x21\x23-\x5b\x5d-\x7e]{{{NONCE_MIN},{NONCE_MAX}}})";keyid="([^"\\]*)";alg="ed25519";tag="{TAG}")'
)
_INPUT = re.compile(
    r'sig=(?P<params>\((?P<components>"[^"\\]+"(?: "[^"\\]+")*)\)(?P<rest>(?:;[a-z]+=(?:[0-9]+|"[^"\\]*"))*))'
)
_PARAM = re.compile(r';([a-z]+)=(?:([0-9]{1,15})|"([^"\\]*)")')
_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_SIGNATURE = re.compile(r"sig=:([A-Za-z0-9+/]{86}==):")
_DIGEST = re.compile(r"(?:\A|,\s*)sha-256=:([A-Za-z0-9+/]{43}=):")
_DIGEST_OF_NOTHING = f"sha-256=:{base64.b64encode(hashlib.sha256().digest()).decode()}:"


class Target(msgspec.Struct, frozen=True):
    """The signed parts of a request besides its body; each exactly as sent."""

    method: str
    authority: str
    path: str
    query: str
    content_digest: str
    room_key: str | None = None


class Presented(msgspec.Struct, frozen=True):
    """A signature as received, well formed but not verified."""

    components: tuple[str, ...]
    params: str
    created: int
    nonce: str
    key_id: UUID
    signature: bytes

    def base(self, target: Target) -> bytes:
        """The signature base: the bytes that were signed (RFC 9421 section 2.5)."""
        return _base(self.components, self.params, target)


def digest(body: bytes) -> str:
    """The Content-Digest of a body (RFC 9530); also of an empty one."""
    if not body:
        return _DIGEST_OF_NOTHING
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def digest_matches(header: str, body: bytes) -> bool:
    """Whether a Content-Digest header holds the SHA-256 of this body; other algorithms are ignored."""
    expected = digest(body)
    if header == expected:
        return True
    found = _DIGEST.search(header)
    return found is not None and found[1] == expected[len("sha-256=:") : -1]


def sign(key: Ed25519PrivateKey, key_id: UUID, target: Target, *, created: int, nonce: str) -> dict[str, str]:
    """Signs a request. Returns the three headers that prove it."""
    components = REQUIRED if target.room_key is None else _WITH_ROOM_KEY
    listed = " ".join(f'"{name}"' for name in components)
    params = f'({listed});created={created};nonce="{nonce}";keyid="{key_id}";alg="ed25519";tag="{TAG}"'
    signature = base64.b64encode(key.sign(_base(components, params, target))).decode()
    return {
        "content-digest": target.content_digest,
        "signature-input": f"sig={params}",
        "signature": f"sig=:{signature}:",
    }


def parse(signature_input: str, signature: str, *, room_key_sent: bool) -> Presented:
    """Parses the two headers; the error names the rule that they break."""
    usual = _USUAL.fullmatch(signature_input)
    if usual is None or (usual[2] is not None) != room_key_sent:
        return _parse_any_order(signature_input, signature, room_key_sent=room_key_sent)
    params, _, created, nonce, key_id = usual.groups()
    components = _WITH_ROOM_KEY if room_key_sent else REQUIRED
    return Presented(components, params, int(created), nonce, _key_id(key_id), _signature(signature.strip()))


def _parse_any_order(signature_input: str, signature: str, *, room_key_sent: bool) -> Presented:
    given = _INPUT.fullmatch(signature_input.strip())
    if given is None:
        raise _refused("Signature-Input must hold one signature, labelled sig")
    components = tuple(part.strip('"') for part in given["components"].split('" "'))
    wanted = {*REQUIRED, ROOM_KEY} if room_key_sent else set(REQUIRED)
    if len(components) != len(wanted) or set(components) != wanted:
        raise _refused(f"the signature must cover exactly {' '.join(sorted(wanted))}")
    pairs = [(name, number or text) for name, number, text in _PARAM.findall(given["rest"])]
    params = dict(pairs)
    if len(pairs) != 5 or params.keys() != {"created", "nonce", "keyid", "alg", "tag"}:
        raise _refused("the signature's parameters must be created, nonce, keyid, alg and tag")
    if params["alg"] != "ed25519" or params["tag"] != TAG:
        raise _refused(f'the signature must be alg="ed25519" with tag="{TAG}"')
    nonce = params["nonce"]
    if not NONCE_MIN <= len(nonce) <= NONCE_MAX or not _NONCE.fullmatch(nonce):
        raise _refused(f"the nonce must have {NONCE_MIN} to {NONCE_MAX} printable characters")
    if not params["created"].isdecimal():
        raise _refused("created must be whole Unix seconds")
    return Presented(
        components=components,
        params=given["params"],
        created=int(params["created"]),
        nonce=nonce,
        key_id=_key_id(params["keyid"]),
        signature=_signature(signature.strip()),
    )


def _base(components: tuple[str, ...], params: str, target: Target) -> bytes:
    values = {
        "@method": target.method,
        "@authority": target.authority,
        "@path": target.path,
        "@query": f"?{target.query}",
        "content-digest": target.content_digest,
        ROOM_KEY: target.room_key,
    }
    lines = [f'"{name}": {values[name]}' for name in components]
    return "\n".join([*lines, f'"@signature-params": {params}']).encode("latin-1")


@lru_cache(maxsize=10_000)
def _key_id(text: str) -> UUID:
    try:
        parsed = UUID(text)
    except ValueError as error:
        raise _refused("keyid must be the key_id of an Ed25519 key") from error
    if str(parsed) != text:
        raise _refused("keyid must be a lower-case UUID with dashes")
    return parsed


def _signature(text: str) -> bytes:
    found = _SIGNATURE.fullmatch(text)
    if found is None:
        raise _refused("Signature must hold sig as base64 of 64 bytes")
    if (
        found[1][85] not in "AQgw"
    ):  # 64 bytes end with four bits that are not theirs; these are the characters with 0000
        raise _refused("Signature must hold canonical base64")
    return base64.b64decode(found[1])


def _refused(why: str) -> Unauthenticated:
    return Unauthenticated(why, hint="see the signature profile in /docs")
