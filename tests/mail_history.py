"""A history of mail as its clients saw it, and the checker that says what in it no server may have done.

Clients write down when each message was first tried, when it was acknowledged, when and how often it was handed out and
opened, and which polls failed. Times are one machine's. What cannot be known for sure is taken in the server's
favour: a message counts as acknowledged when its sender has read the answer, and as tried when it began.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

TRANSIT = 2.0  # seconds that an answer may take from the server to a client on a busy machine


@dataclass(frozen=True, slots=True)
class Try:
    """A message that a sender tried to send. Messages of one `way` must arrive in order."""

    way: tuple[str, str, int]  # sender, recipient, priority
    at: float


@dataclass(frozen=True, slots=True)
class Handing:
    """A message in an answer."""

    recipient: str
    replay_key: str
    at: float
    expires_at: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Opening:
    """A message that its recipient opened, and the answer it was in."""

    handing: Handing
    body: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, in words; and how many were passed while an answer that held them was lost, which is allowed."""

    lost: list[str]
    doubled: list[str]
    invented: list[str]
    overtaken: list[str]
    late: list[str]
    redelivered: int
    after_failed_polls: (
        int  # of these, how many only a poll that was answered with an error, as its server died, explains
    )

    @property
    def violations(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.invented, *self.overtaken, *self.late]


@dataclass
class History:
    """What happened, as far as clients can tell. Several threads write; each list only grows."""

    tries: dict[bytes, Try] = field(default_factory=dict)  # by body: each is sent once only
    acknowledged: dict[str, float] = field(default_factory=dict)  # by replay key
    handings: list[Handing] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)
    unanswered: list[tuple[str, float]] = field(default_factory=list)  # polls: recipient, and end
    failed: list[tuple[str, float]] = field(default_factory=list)  # polls answered with an error: recipient, time
    deaths: list[tuple[float, float]] = field(default_factory=list)  # outages of a killed server or hot tier
    remarks: list[tuple[float, str]] = field(default_factory=list)  # other events, for the reader of a verdict

    def check(self, expired: Set[str], lease: float) -> Verdict:
        """Returns the server's violations. `expired` are the messages that, in the ledger, have ended unopened; `lease`
        is the time for which a delivered message is not delivered again."""
        opened = Counter(one.handing.replay_key for one in self.openings)
        overtaken, redelivered, after_failed_polls = self._overtaken(lease)
        return Verdict(
            lost=[
                f"{key[:8]} was acknowledged and never opened" for key in self.acknowledged.keys() - opened - expired
            ],
            doubled=[f"{key[:8]} was opened {count} times" for key, count in opened.items() if count > 1],
            invented=[f"{one.body!r} was never sent" for one in self.openings if one.body not in self.tries],
            overtaken=overtaken,
            late=[
                f"{one.replay_key[:8]} was handed out {one.at - one.expires_at:.1f} s after its end"
                for one in self.handings
                if one.at > one.expires_at + TRANSIT
            ],
            redelivered=redelivered,
            after_failed_polls=after_failed_polls,
        )

    def _overtaken(self, lease: float) -> tuple[list[str], int, int]:
        ways: dict[tuple[str, str, int], list[Opening]] = defaultdict(list)
        for one in self.openings:
            if one.body in self.tries:
                ways[self.tries[one.body].way].append(one)
        wrong, redelivered, after_failed_polls = [], 0, 0
        for way, openings in ways.items():
            for newer, older in self._passed(openings):
                pair = (newer.handing, older)
                if older.handing.attempt > 1 or self._was_leased(*pair, self.unanswered, lease):
                    redelivered += 1
                elif self._was_leased(*pair, self._died_under(), lease):
                    redelivered += 1
                    after_failed_polls += 1
                else:
                    ahead = self.tries[newer.body].at - self.acknowledged[older.handing.replay_key]
                    wrong.append(
                        f"{way}: {newer.body!r} passed {older.body!r}, acknowledged {ahead:.3f} s before it was sent; "
                        + self._told(newer, older)
                    )
        return wrong, redelivered, after_failed_polls

    def _died_under(self) -> list[tuple[str, float]]:
        """Polls that were answered with an error while the server or the hot tier was killed: their leases stay."""
        return [
            (who, at) for who, at in self.failed if any(since <= at <= until + TRANSIT for since, until in self.deaths)
        ]

    def _told(self, newer: Opening, older: Opening) -> str:
        """Returns the events between the two times."""
        since = self.acknowledged[older.handing.replay_key]
        happened = [
            (newer.handing.at, f"the newer one was handed out (attempt {newer.handing.attempt})"),
            (older.handing.at, f"the older one was handed out (attempt {older.handing.attempt})"),
            *self.remarks,
        ]
        return "; ".join(
            f"{at - since:+.2f} s {what}" for at, what in sorted(happened) if since - 10 <= at <= older.handing.at + 1
        )

    def _passed(self, openings: list[Opening]) -> Iterator[tuple[Opening, Opening]]:
        """Returns each message with those that were opened after it, though acknowledged before it was sent."""
        earliest = float("inf")
        for at in range(len(openings) - 1, -1, -1):
            tried = self.tries[openings[at].body].at
            if earliest < tried:
                for older in openings[at + 1 :]:
                    if self._acknowledged(older) < tried:
                        yield openings[at], older
            earliest = min(earliest, self._acknowledged(openings[at]))

    def _acknowledged(self, one: Opening) -> float:
        """When its sender got the answer; without one, the message may have been accepted at any time."""
        return self.acknowledged.get(one.handing.replay_key, float("inf"))

    def _was_leased(self, newer: Handing, older: Opening, polls: list[tuple[str, float]], lease: float) -> bool:
        """Whether the older one may have been leased before, by one of these polls, whose answer never came. That may
        have been before its sender had an answer: a killed server may have stored it, and answered a later try."""
        since = self.tries[older.body].at
        return any(
            who == newer.recipient and since < until <= newer.at <= until + lease + TRANSIT for who, until in polls
        )
