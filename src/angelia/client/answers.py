"""What the answers of mail and channels have in common."""

from __future__ import annotations

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Members without a default are always there; the others may be left out by the server."""
