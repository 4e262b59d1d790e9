"""The object that a person meets first: found as the command line finds it, and as short to use blocking as awaited."""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import json
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import angelia
from angelia import (
    Agent,
    AngeliaError,
    AsyncAgent,
    ChannelMessage,
    DeadlineExceeded,
    InvalidArgument,
    NotAllowed,
    NotFound,
    Unauthenticated,
    Unreachable,
    WrongPassphrase,
)
from angelia.client import agent_verbs, delivery_status, event_stream, mail_calls, mail_listening, operation_requests
from angelia.client.agent import Opening
from angelia.client.api_errors import _FAMILY
from angelia.client.namespaces import Iteration, OwnVerb, Verb
from angelia.mailbox import identity
from angelia.mailbox.inbox import Inbox, Opened
from client.letters import now
from client.test_event_loop import watched
from client.test_mailbox_server import failing_first
from live_agents import Person

OpenAgent = Callable[[Person], Agent]


# Finding it.


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean environment whose home has no agents."""
    for name in list(os.environ):
        if name.startswith("ANGELIA_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANGELIA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANGELIA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def registered(home: Path, name: str, passphrase: str | None = None) -> None:
    made = identity.create(home, name, passphrase)
    identity.record_registration(home, made, id=made.key_id, handle=f"{name}-7", server="http://h")


def test_the_only_agent_of_the_home_needs_no_name(shell: Path) -> None:
    registered(shell / "home", "bob")
    with Agent.open() as bob:
        assert (bob.handle, bob.url) == ("bob-7", "http://localhost:8080")
        assert repr(bob) == "<Agent bob-7 at http://localhost:8080>"


def test_of_several_agents_one_is_named_by_its_name_its_handle_or_the_environment(
    shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice", "bob"):
        registered(shell / "home", name)
    for name in ("bob", "bob-7"):
        with Agent.open(name) as bob:
            assert bob.mailbox.identity.name == "bob"
    with pytest.raises(InvalidArgument, match=r"2 agents have keys in .*: alice, bob") as refused:
        Agent.open()
    assert refused.value.hint == 'say which: Agent.open("alice")'
    monkeypatch.setenv("ANGELIA_AS", "alice")
    with Agent.open() as alice:
        assert alice.mailbox.identity.name == "alice"


def test_a_home_that_is_named_comes_before_the_setting(shell: Path) -> None:
    registered(shell / "elsewhere", "carol")
    with Agent.open("carol", home=shell / "elsewhere", url="http://127.0.0.1:9") as carol:
        assert (carol.handle, carol.url) == ("carol-7", "http://127.0.0.1:9")


def test_a_missing_agent_is_an_error_that_says_how_to_make_it_and_nothing_is_made(shell: Path) -> None:
    with pytest.raises(NotFound, match="the agent bob has no keys in") as missing:
        Agent.open("bob")
    assert missing.value.hint == "angelia agent new bob --register"
    assert missing.value.__notes__ == ["hint: angelia agent new bob --register"]
    with pytest.raises(NotFound, match="no agent has keys in") as missing:
        Agent.open()
    assert missing.value.hint == "angelia agent new NAME --register"
    assert list(shell.iterdir()) == []
    registered(shell / "home", "alice")
    with pytest.raises(NotFound, match="here are: alice"):
        Agent.open("bob")


def test_an_agent_without_a_server_says_how_to_register(shell: Path) -> None:
    identity.create(shell / "home", "bob")
    with pytest.raises(Unauthenticated, match="bob is not registered with a server") as refused:
        Agent.open("bob")
    assert refused.value.hint == "angelia agent register --as bob"


async def test_a_passphrase_is_given_as_text_or_by_a_function_and_never_asked_for(shell: Path) -> None:
    registered(shell / "home", "bob", "geheim")
    for passphrase in ("geheim", lambda: "geheim"):
        Agent.open("bob", passphrase=passphrase).close()
        await (await AsyncAgent.open("bob", passphrase=passphrase)).close()
    with pytest.raises(WrongPassphrase, match="the key of bob has a passphrase, and none was given") as refused:
        Agent.open("bob")
    assert refused.value.hint == 'Agent.open("bob", passphrase=getpass.getpass) asks for it'
    with pytest.raises(WrongPassphrase):
        Agent.open("bob", passphrase="another")


def test_a_server_that_runs_here_is_found(shell: Path) -> None:
    registered(shell / "home", "bob")
    data = shell / "data"
    data.mkdir()
    runtime = {"pid": 1, "url": "http://localhost:9191", "database_url": "", "redis_url": "", "sockets": ""}
    (data / "runtime.json").write_text(json.dumps(runtime))
    with (data / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with Agent.open("bob") as bob:
            assert bob.url == "http://localhost:9191"


# Mail.


@pytest.fixture
def opened(shell: Path) -> Iterator[OpenAgent]:
    """Opens an agent of the real server, as another process would."""
    made: list[Agent] = []

    def make(person: Person) -> Agent:
        made.append(Agent.open(person.name, home=person.home, url=person.url))
        return made[-1]

    yield make
    for one in made:
        one.close()


def opened_async(person: Person) -> Opening:
    return AsyncAgent.open(person.name, home=person.home, url=person.url)


def test_a_question_is_answered_by_an_agent_that_listens(opened: OpenAgent, alice: Person, bob: Person) -> None:
    asking, answering = opened(alice), opened(bob)

    def answer() -> None:
        for message in answering.mail.listen():
            answering.mail.reply(message, message.text.upper())
            break

    thread = threading.Thread(target=answer)
    thread.start()
    said = asking.mail.ask(bob.name, "are you there?", timeout=30)
    thread.join()
    assert (said.text, said.body, said.sender) == ("ARE YOU THERE?", b"ARE YOU THERE?", bob.name)


async def test_the_same_is_awaited_and_leaves_the_event_loop_alone(shell: Path, alice: Person, bob: Person) -> None:
    with watched() as found:
        async with opened_async(alice) as asking, opened_async(bob) as answering:
            assert repr(answering) == f"<AsyncAgent {bob.name} at {bob.url}>"

            async def answer() -> None:
                async for message in answering.mail.listen():
                    await answering.mail.reply(message, message.text.upper())

            listening = asyncio.create_task(answer())
            assert (await asking.mail.ask(bob.name, "are you there?", timeout=30)).text == "ARE YOU THERE?"
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            assert [one.sender async for one in answering.mail.inbox()] == [alice.name]
            assert [one.recipient async for one in answering.mail.outbox()] == [alice.name]
            receipts = [(one.recipient, one.by) async for one in asking.mail.receipts()]
            assert (bob.name, "recipient") in receipts
    assert found == []


def test_text_and_bytes_are_sent_alike_and_shown_without_their_content(
    opened: OpenAgent, alice: Person, bob: Person
) -> None:
    sender, recipient = opened(alice), opened(bob)
    sender.mail.send(bob.name, "grüß dich")
    sender.mail.send(bob.name, b"\xff\xfe secret")
    text, raw = recipient.mail.receive(wait=10).messages
    assert (text.text, text.body) == ("grüß dich", "grüß dich".encode())
    assert (raw.text, raw.body) == ("\ufffd\ufffd secret", b"\xff\xfe secret")
    assert repr(raw) == f"<message {raw.message.replay_key[:12]} from {alice.name}, 9 bytes>"
    assert "secret" not in repr(recipient.mail.read(raw.message.replay_key[:12]))


def test_mail_of_an_agent_that_is_not_allowed_is_not_heard(
    opened: OpenAgent, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_listening, "WAIT", 0.0)
    sender, recipient = opened(alice), opened(bob)
    recipient.mail.deny(alice.name)
    assert recipient.mail.allowed() == []
    with pytest.raises(NotFound, match="is not on the allowlist"):
        recipient.mail.deny(alice.name)
    with pytest.raises(NotAllowed):
        recipient.mail.ask(alice.name, "would I hear the answer?")
    sender.mail.send(bob.name, "let me in")
    assert recipient.mail.receive().messages == ()
    assert recipient.mail.allow(alice.name, label="met in person").label == "met in person"
    assert next(recipient.mail.listen()).text == "let me in"


def test_an_answer_that_does_not_come_is_a_deadline(opened: OpenAgent, alice: Person, bob: Person) -> None:
    with pytest.raises(DeadlineExceeded):
        opened(alice).mail.ask(bob.name, "are you there?", timeout=0.5)


@pytest.mark.parametrize(
    ("how", "again"),
    [("asked for the next", False), ("left", False), ("failed", False), ("interrupted", True), ("killed", True)],
)
def test_a_loop_is_done_with_a_message_unless_it_was_cut_short(
    opened: OpenAgent, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, how: str, again: bool
) -> None:
    monkeypatch.setattr(mail_listening, "WAIT", 0.0)
    for number in ("first", "second"):
        opened(alice).mail.send(bob.name, number)
    ends: dict[str, type[BaseException]] = {"failed": ValueError, "interrupted": KeyboardInterrupt}

    def handle() -> None:
        for message in agent.mail.listen():
            assert message.text == "first"
            if how in ends:
                raise ends[how]
            break

    agent = opened(bob)
    if how == "killed":
        handle()
    elif how == "asked for the next":
        heard = agent.mail.listen()
        assert [next(heard).text, next(heard).text] == ["first", "second"]
    else:
        try:
            with agent:
                handle()
        except (ValueError, KeyboardInterrupt):
            pass
    assert next(opened(bob).mail.listen()).text == ("first" if again else "second")


def test_a_loop_that_begins_anew_is_given_what_the_one_before_was_not(
    opened: OpenAgent, alice: Person, bob: Person
) -> None:
    for number in ("first", "second"):
        opened(alice).mail.send(bob.name, number)
    agent = opened(bob)
    assert [next(agent.mail.listen()).text, next(agent.mail.listen()).text] == ["first", "second"]


async def test_a_loop_that_is_cancelled_while_it_waits_loses_nothing(shell: Path, alice: Person, bob: Person) -> None:
    async with opened_async(bob) as agent:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(agent.mail.listen()), 0.2)
        alice.client.mail.send(alice.mailbox, bob.name, b"hello")
        async with aclosing(agent.mail.listen()) as heard:
            assert (await anext(heard)).text == "hello"


async def test_a_message_that_is_opened_while_its_loop_is_cancelled_is_given_to_the_next_one(
    shell: Path, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    opening, go_on = threading.Event(), threading.Event()
    to_handle = Inbox.to_handle

    def held_up(inbox: Inbox, replay_key: str) -> Opened | None:
        opening.set()
        go_on.wait(10)
        return to_handle(inbox, replay_key)

    monkeypatch.setattr(Inbox, "to_handle", held_up)
    async with opened_async(bob) as agent:
        waiting = asyncio.ensure_future(anext(agent.mail.listen()))
        await asyncio.to_thread(opening.wait, 10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        go_on.set()
        async with aclosing(agent.mail.listen()) as heard:
            assert (await anext(heard)).text == "hello"


async def test_a_loop_that_is_cancelled_in_a_message_leaves_it_to_the_next_loop_of_the_same_agent(
    shell: Path, alice: Person, bob: Person
) -> None:
    alice.client.mail.send(alice.mailbox, bob.name, b"hello")
    async with opened_async(bob) as agent:

        async def handle(limit: asyncio.Timeout) -> None:
            async for _ in agent.mail.listen():
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await handle(limit)
        async with aclosing(agent.mail.listen()) as heard:
            assert (await anext(heard)).text == "hello"


async def test_a_loop_that_was_left_is_done_with_its_message(shell: Path, alice: Person, bob: Person) -> None:
    for text in (b"first", b"second"):
        alice.client.mail.send(alice.mailbox, bob.name, text)
    async with opened_async(bob) as agent:
        heard = []
        for _ in range(2):
            async for message in agent.mail.listen():
                heard.append(message.text)
                break
    assert heard == ["first", "second"]


def test_two_loops_of_one_agent_end_only_their_own_messages(opened: OpenAgent, alice: Person, bob: Person) -> None:
    opened(alice).mail.send(bob.name, "first")
    agent = opened(bob)
    one, other = agent.mail.listen(), agent.mail.listen()
    assert next(one).text == "first"
    opened(alice).mail.send(bob.name, "second")
    assert next(other).text == "second"
    assert len(bob.mailbox.inbox.unhandled()) == 2


def test_an_agent_that_is_closed_after_ctrl_c_gives_its_message_again(
    opened: OpenAgent, alice: Person, bob: Person
) -> None:
    opened(alice).mail.send(bob.name, "hello")
    agent = opened(bob)
    try:
        for _ in agent.mail.listen():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        agent.close()
    assert next(opened(bob).mail.listen()).text == "hello"


@pytest.mark.parametrize("when", ["polling", "beside it"])
def test_a_loop_outlives_what_passes(
    opened: OpenAgent, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(event_stream, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(mail_listening, "WAIT", 0.0)
    module, name = (mail_calls, "poll") if when == "polling" else (delivery_status, "update_outbox")
    verb, calls = failing_first(getattr(module, name), 2, Unreachable("gone"))
    agent = opened(bob)
    monkeypatch.setattr(module, name, verb)
    opened(alice).mail.send(bob.name, "hello")
    assert next(agent.mail.listen()).text == "hello"
    assert calls


def test_a_refusal_that_would_be_repeated_ends_a_loop(
    opened: OpenAgent, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = opened(bob)
    monkeypatch.setattr(mail_calls, "poll", failing_first(mail_calls.poll, 9, NotFound("no such route"))[0])
    with pytest.raises(NotFound):
        next(agent.mail.listen())


def test_a_loop_also_sends_the_outbox_and_fetches_receipts(
    opened: OpenAgent, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_listening, "ROUND", 0.0)
    waits = alice.client.mail.seal(alice.mailbox, bob.name, b"sealed, and not sent")
    alice.mailbox.outbox.retry_now(now())
    agent, other = opened(alice), opened(bob)
    other.mail.send(alice.name, "wake up")
    assert next(agent.mail.listen()).text == "wake up"
    (got,) = other.mail.receive(wait=10).messages
    assert got.message.replay_key == waits.replay_key
    other.mail.send(alice.name, "and again")
    assert next(agent.mail.listen()).text == "and again"
    assert next(agent.mail.outbox()).status == "delivered"


def test_every_page_of_receipts_is_gone_through_and_every_signature_checked(
    opened: OpenAgent, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_verbs, "_PAGE", 2)
    sender, recipient = opened(alice), opened(bob)
    sent = [sender.mail.send(bob.name, f"{number}").replay_key for number in range(5)]
    assert [one.replay_key for one in sender.mail.outbox()] == sent[::-1]
    for _ in range(4):
        recipient.mail.receive(most=1)
    found = [(one.replay_key, one.status, one.by) for one in sender.mail.receipts()]
    read = [(key, "delivered", "recipient") for key in sent[:4]]
    assert found == [(sent[4], "pending", ""), *read[::-1]]


def test_a_receipt_whose_signature_does_not_hold_is_called_unproven(
    opened: OpenAgent, alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, recipient = opened(alice), opened(bob)
    sender.mail.send(bob.name, "hello")
    recipient.mail.receive(wait=10)

    def forged(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
        page = yield from operation_requests.ask(*args, **options)
        (answer,) = page.receipts
        return replace(page, receipts=[replace(answer, receipt=replace(answer.receipt, status="read"))])

    monkeypatch.setattr(agent_verbs, "ask", forged)
    assert [one.by for one in sender.mail.receipts()] == ["unproven"]


# Channels and keys.


def test_a_channel_is_made_published_read_and_followed_by_its_name(
    opened: OpenAgent, alice: Person, bob: Person
) -> None:
    owner, reader = opened(alice), opened(bob)
    made = owner.channels.create("news", allow=[bob.name])
    assert made.policy == "allowlist"
    with pytest.raises(InvalidArgument, match="'closed' is no policy of a channel"):
        owner.channels.create("other", "closed")
    news = f"{alice.name}/news"
    reader.channels.subscribe(news)
    for text in ("build 418 is green", "build 419 is red"):
        owner.channels.publish("news", text)
    page = reader.channels.read(news)
    assert [one.text for one in page.messages if isinstance(one, ChannelMessage)] == [
        "build 418 is green",
        "build 419 is red",
    ]
    first = next(reader.channels.tail(news))
    assert isinstance(first, ChannelMessage)
    shown = f"<message 1 of channel {made.channel_id} from {alice.name}, 18 bytes>"
    assert (first.text, repr(first)) == ("build 418 is green", shown)
    reader.channels.commit(first)
    following = next(reader.channels.tail(news))
    assert following.offset == 2
    assert reader.channels.pause(news).status == "paused"
    assert reader.channels.resume(news).status == "active"


async def test_a_channel_is_followed_by_an_agent_that_is_awaited(shell: Path, alice: Person, bob: Person) -> None:
    with watched() as found:
        async with opened_async(alice) as owner, opened_async(bob) as reader:
            await owner.channels.create("news", allow=[bob.name])
            await reader.channels.subscribe(f"{alice.name}/news")
            await owner.channels.publish("news", "build 418 is green")
            async for message in reader.channels.tail(f"{alice.name}/news"):
                assert isinstance(message, ChannelMessage)
                await reader.channels.commit(message)
                break
            await owner.keys.rotate(signer=True)
            assert (await reader.keys.find(alice.name))[0].bundle.agent_nhi == alice.name
    assert found == []


def test_what_is_left_is_in_the_longer_form(opened: OpenAgent, alice: Person, bob: Person) -> None:
    agent = opened(alice)
    assert agent.client.agents.me().handle == alice.name
    agent.mail.block(bob.name)
    assert [one.agent for one in agent.mail.blocked().blocks] == [bob.name]
    agent.mail.unblock(bob.name)
    assert agent.mailbox.identity.handle == alice.name


# What it looks like.


@pytest.mark.parametrize(
    "namespace", [agent_verbs.AgentMail, agent_verbs.AgentChannels, agent_verbs.AgentDms, agent_verbs.AgentKeys]
)
def test_verbs_name_themselves_and_do_not_ask_for_the_mailbox(
    namespace: type, opened: OpenAgent, alice: Person
) -> None:
    agent = opened(alice)
    mine = next(one for one in (agent.mail, agent.channels, agent.dms, agent.keys) if isinstance(one, namespace))
    verbs = [name for name, kind in vars(namespace).items() if isinstance(kind, Verb | OwnVerb | Iteration)]
    assert verbs
    for name in verbs:
        method = getattr(mine, name)
        assert method.__doc__, name
        assert method.__name__ == name
        assert not {"mailbox", "self"} & set(inspect.signature(method).parameters), name


def test_every_error_can_be_imported_from_the_package() -> None:
    def below(kind: type[AngeliaError]) -> Iterator[type[AngeliaError]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    ours = re.compile(r"angelia\.(errors|envelope|mailbox|client)\b")
    wanted = {one for one in below(AngeliaError) if ours.match(one.__module__)}
    wanted -= set(_FAMILY.values())  # what a server's code stands for: each is of the class of that code, too
    assert len(wanted) > 50
    for one in wanted:
        assert getattr(angelia, one.__name__) is one


def test_what_is_not_there_is_said_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'angelia' has no attribute 'Nobody'"):
        getattr(angelia, "Nobody")  # noqa: B009
    with pytest.raises(AttributeError, match="module 'angelia' has no attribute 'nothing'"):
        getattr(angelia, "nothing")  # noqa: B009
    with pytest.raises(AttributeError):
        getattr(angelia, "ClassVar")  # noqa: B009 - a name that a module of ours only imports


def test_what_verbs_take_and_return_can_be_imported_from_the_package_and_is_listed() -> None:
    for name in ("Agent", "OutboxMessage", "OpenedPage", "PublishResult", "AllowedSender", "DeliveryStatus", "Side"):
        assert hasattr(angelia, name)
        assert name in dir(angelia)
