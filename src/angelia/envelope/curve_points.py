"""Which 32 bytes are a safe Ed25519 or X25519 public key: canonical, and not of small order."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

_P = 2**255 - 19
# The curve of Ed25519: -x² + y² = 1 + d·x²·y² over the field of p elements.
_D = -121665 * pow(121666, -1, _P) % _P
# y of the eight points whose order divides 8 (RFC 7748 section 6 warns of them): signatures for such a "key" are forged
# without a private half.
_SMALL_ORDER_Y = {
    0,
    1,
    _P - 1,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
}
# Any scalar reveals a point of small order: clamping makes it a multiple of 8, so the shared secret is zero.
_ANY_SCALAR = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def sound_ed25519(raw: bytes) -> bool:
    """Whether these bytes are the one encoding of a point of the curve that is not of small order."""
    y = int.from_bytes(raw, "little") & (1 << 255) - 1
    if len(raw) != 32 or y >= _P or y in _SMALL_ORDER_Y:
        return False
    x_squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    return pow(x_squared, (_P - 1) // 2, _P) == 1


def sound_x25519(raw: bytes) -> bool:
    """Whether these bytes are the one encoding of a u-coordinate that is not of small order."""
    if len(raw) != 32 or int.from_bytes(raw, "little") >= _P:
        return False
    try:
        _ANY_SCALAR.exchange(X25519PublicKey.from_public_bytes(raw))
    except ValueError:
        return False
    return True


def montgomery_u(ed25519: bytes) -> bytes:
    """The X25519 public key of a sound Ed25519 public key (RFC 7748 section 4.1)."""
    y = int.from_bytes(ed25519, "little") & (1 << 255) - 1
    return ((1 + y) * pow(1 - y, -1, _P) % _P).to_bytes(32, "little")
