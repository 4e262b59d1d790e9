"""The relay that lies, where it does not lie: mail and streams go through it as they are."""

from __future__ import annotations

from contextlib import closing

import pytest

from angelia.client.mail_calls import LeasedMessage
from angelia.errors import RateLimited
from client.letters import bodies
from live_agents import Person
from lying_proxy import Liar, problem


def test_an_honest_relay_passes_mail_on(deceived: tuple[Person, Person], liar: Liar) -> None:
    alice, bob = deceived
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert bodies(bob) == [b"hello"]
    assert liar.count("POST", "/v1/messages") == 1


def test_a_lie_is_told_until_the_relay_is_honest_again(deceived: tuple[Person, Person], liar: Liar) -> None:
    alice, bob = deceived
    liar.instead("POST", "/v1/messages", problem(429, "rate_limited"))
    with pytest.raises(RateLimited):
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    liar.honest()
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    assert bodies(bob) == [b"hello"]


def test_events_of_a_stream_are_passed_on_as_they_come_and_can_be_rewritten(
    deceived: tuple[Person, Person], liar: Liar
) -> None:
    alice, bob = deceived
    liar.events(lambda event: event.replace(b'"attempt":1', b'"attempt":7'))
    with closing(bob.client.mail.stream()) as events:
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
        came = next(events)
    assert isinstance(came, LeasedMessage)
    assert came.attempt == 7
