"""When an envelope may be opened, by its times and this clock. Pure; exact to the millisecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from angelia.envelope.refusals import Expired, FutureEnvelope, StaleEnvelope
from angelia.envelope.times import SKEW
from angelia.envelope.wire import Header

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SKEW = SKEW // timedelta(microseconds=1)


class DeliveryProfile(StrEnum):
    """How an envelope arrived: handed over directly, or through a server that may have kept it for days."""

    DIRECT = "direct"
    RELAY = "relay"


def check_window(header: Header, profile: DeliveryProfile, now: datetime) -> None:
    """Raises for an envelope outside its time window. Exactly 300 s off is accepted, a millisecond more is not."""
    # Whole microseconds: a clock between two milliseconds must not round an envelope in.
    present = (now - _EPOCH) // timedelta(microseconds=1)
    age = present - 1000 * header.created_at
    if age < -_SKEW:
        raise FutureEnvelope(
            f"the envelope was made {-age / 1e6:,.3f} s ahead of this clock, more than {SKEW.seconds} s",
            hint="run a time service on both machines",
        )
    if present >= 1000 * header.expires_at:
        raise Expired(f"the envelope expired {(present - 1000 * header.expires_at) / 1e6:,.3f} s ago")
    if profile is DeliveryProfile.DIRECT and age > _SKEW:
        raise StaleEnvelope(
            f"the envelope was made {age / 1e6:,.3f} s ago; handed over directly it may be {SKEW.seconds} s old",
            hint="the sender seals it again",
        )
