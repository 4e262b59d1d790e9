"""Direct messages from Python, on a real server."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from uuid import UUID

import httpx
import pytest

from angelia import Agent, AsyncAgent, BadAnswer, Denied, InvalidArgument, NotFound, UntrustedBundle
from angelia.client import Client
from angelia.client.dm_calls import MOST_TEXT
from live_agents import Person
from lying_proxy import Liar


@pytest.fixture
def ann(join: Callable[..., Person]) -> Person:
    return join("ann", publishes=False)


@pytest.fixture
def ben(join: Callable[..., Person]) -> Person:
    return join("ben", publishes=False)


def test_a_message_goes_to_a_handle_or_an_id_and_only_its_recipient_opens_it(ann: Person, ben: Person) -> None:
    by_handle = ann.client.dms.send(ann.mailbox, ben.name, "are you there? ✓")
    by_id = ann.client.dms.send(ann.mailbox, ben.mailbox.identity.id or "", "hello?")
    newest, first = ben.client.dms.read(ben.mailbox)
    assert (first.id, first.sender, first.text) == (by_handle.id, ann.mailbox.identity.id, "are you there? ✓")
    assert (newest.id, newest.text) == (by_id.id, "hello?")
    assert "there" not in first.body
    assert ben.client.dms.read(ann.mailbox)[0].text is None, "with another key it stays closed"


def test_reading_removes_nothing_and_deleting_does(ann: Person, ben: Person) -> None:
    sent = [ann.client.dms.send(ann.mailbox, ben.name, str(number)) for number in range(3)]
    assert [one.text for one in ben.client.dms.read(ben.mailbox, limit=2)] == ["2", "1"]
    assert [one.text for one in ben.client.dms.read(ben.mailbox, before=sent[1].ts)] == ["0"]
    ben.client.dms.delete(sent[1].id)
    assert [one.text for one in ben.client.dms.read(ben.mailbox)] == ["2", "0"]
    for id_ in (sent[1].id, "nonsense"):
        with pytest.raises(NotFound):
            ben.client.dms.delete(id_)


def test_a_text_that_is_empty_or_too_long_is_refused_before_it_is_sent(ann: Person, ben: Person) -> None:
    assert MOST_TEXT == 6084
    for size in (0, 6085):
        with pytest.raises(InvalidArgument, match=f"1 to 6,084 bytes, and this one has {size:,}"):
            ann.client.dms.send(ann.mailbox, ben.name, "x" * size)
    ann.client.dms.send(ann.mailbox, ben.name, "é" * 3042)
    assert ben.client.dms.read(ben.mailbox)[0].text == "é" * 3042


def test_agents_that_are_unknown_or_have_blocked_the_sender_get_none(ann: Person, ben: Person) -> None:
    for unknown in (f"nobody-{secrets.token_hex(4)}", UUID(int=7), "Not A Handle", "../ben"):
        with pytest.raises(NotFound):
            ann.client.dms.send(ann.mailbox, unknown, "hello?")
    ben.client.agents.block(ann.name)
    with pytest.raises(Denied):
        ann.client.dms.send(ann.mailbox, ben.name, "hello?")


def test_what_is_not_sealed_is_shown_as_it_is(ann: Person, ben: Person) -> None:
    from angelia.client.operation_requests import ask
    from angelia.rooms import api

    ann.client.run(ask(api.SEND_DM, ben.mailbox.identity.id, body=api.DmBody("plain \x1b[31mwords")))
    (message,) = ben.client.dms.read(ben.mailbox)
    assert (message.text, message.body) == (None, "plain \x1b[31mwords")


def test_a_server_that_shows_another_key_for_a_pinned_agent_is_not_believed(
    alice: Person, bob: Person, liar: Liar
) -> None:
    stolen = base64.b64encode(alice.mailbox.identity.public_key).decode()
    liar.lie("GET", "/v1/agents/.*/profile", lambda asked, answer: answer.changed(public_key=stolen))
    with Client(liar.url, identity=alice.mailbox) as client:
        with pytest.raises(UntrustedBundle):
            client.dms.send(alice.mailbox, bob.name, "to whom?")
        liar.honest()
        liar.lie("GET", "/v1/agents/.*/profile", lambda asked, answer: answer.changed(handle=alice.name))
        with pytest.raises(BadAnswer):
            client.dms.send(alice.mailbox, bob.name, "to whom?")
    assert liar.count("POST", "/dm/.*") == 0


def test_a_pinned_agent_that_rotated_its_pair_is_followed(alice: Person, bob: Person) -> None:
    alice.client.dms.send(alice.mailbox, bob.name, "before")
    bob.client.keys.rotate(bob.mailbox, signer=True)
    bob.reopen()
    alice.client.dms.send(alice.mailbox, bob.name, "after")
    after, before = bob.client.dms.read(bob.mailbox)
    assert (after.text, before.text) == ("after", None), "an earlier key is gone with its pair"


async def test_both_agents_have_the_verbs(ann: Person, ben: Person) -> None:
    with Agent.open(ann.name, home=ann.home, url=ann.url) as sender:
        sender.dms.send(ben.name, "hello")
    async with AsyncAgent.open(ben.name, home=ben.home, url=ben.url) as recipient:
        (message,) = await recipient.dms.read()
        assert message.text == "hello"
        await recipient.dms.delete(message.id)
        assert await recipient.dms.read() == []


def test_a_public_profile_has_the_handle_once_it_is_claimed(ann: Person, ben: Person) -> None:
    id_ = str(ann.mailbox.identity.id)
    assert httpx.get(f"{ann.url}/who/{id_}").json()["handle"] == ann.name
    assert str(ben.client.agents.find(ann.name).id) == id_
    assert ben.client.agents.find(id_).handle == ann.name
    assert httpx.get(f"{ann.url}/v1/agents/{ann.name}/profile").status_code == 401
