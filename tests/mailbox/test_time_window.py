"""The time window, at its exact borders, for both ways that an envelope can come."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from angelia.envelope.refusals import Expired, FutureEnvelope, StaleEnvelope
from angelia.mailbox.time_window import DeliveryProfile, check_window

MADE = datetime(2026, 11, 15, 12, tzinfo=UTC)
MS, SKEW, WEEK = timedelta(milliseconds=1), timedelta(seconds=300), timedelta(days=7)


@dataclass(frozen=True)
class Times:
    """The two times of a header that the window looks at."""

    created_at: int
    expires_at: int


def check(profile: DeliveryProfile, now: datetime, ttl: timedelta = WEEK) -> None:
    created_at = int(MADE.timestamp() * 1000)
    check_window(Times(created_at, created_at + ttl // MS), profile, now)  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", DeliveryProfile)
def test_a_clock_that_is_300_seconds_behind_is_accepted_and_a_millisecond_more_is_not(profile: DeliveryProfile) -> None:
    check(profile, MADE - SKEW)
    with pytest.raises(FutureEnvelope, match=r"300\.001 s ahead"):
        check(profile, MADE - SKEW - MS)


def test_what_is_handed_over_is_at_most_300_seconds_old_to_the_millisecond() -> None:
    check(DeliveryProfile.DIRECT, MADE + SKEW)
    with pytest.raises(StaleEnvelope, match=r"300\.001 s ago"):
        check(DeliveryProfile.DIRECT, MADE + SKEW + MS)


def test_what_a_relay_kept_is_good_until_the_millisecond_in_which_it_expires() -> None:
    check(DeliveryProfile.RELAY, MADE + WEEK - MS)
    with pytest.raises(Expired):
        check(DeliveryProfile.RELAY, MADE + WEEK)


def test_a_short_life_ends_before_the_window_does() -> None:
    minute = timedelta(minutes=1)
    check(DeliveryProfile.DIRECT, MADE + minute - MS, minute)
    with pytest.raises(Expired):
        check(DeliveryProfile.DIRECT, MADE + minute, minute)


@pytest.mark.parametrize("profile", DeliveryProfile)
def test_a_clock_between_two_milliseconds_rounds_nothing_in(profile: DeliveryProfile) -> None:
    with pytest.raises(FutureEnvelope):
        check(profile, MADE - SKEW - timedelta(microseconds=1))
    with pytest.raises((StaleEnvelope, Expired)):
        check(profile, MADE + (SKEW if profile is DeliveryProfile.DIRECT else WEEK) + timedelta(microseconds=1))


def test_the_offset_of_another_time_zone_changes_nothing() -> None:
    from datetime import timezone

    check(DeliveryProfile.DIRECT, (MADE + SKEW).astimezone(timezone(timedelta(hours=9))))


def test_times_far_beyond_the_calendar_are_refused_and_not_a_crash() -> None:
    with pytest.raises(FutureEnvelope):
        check_window(Times(2**53 - 1, 2**53 - 1), DeliveryProfile.RELAY, MADE)  # type: ignore[arg-type]
