"""When a request is sent again, and when it is not. No network and no waiting: the steps are taken by hand."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from angelia.client import Client, Unreachable, transport
from angelia.client.exchange import Exchange, Request, Response
from angelia.client.transport import PAUSE_AFTER_STALE, Failed, Line, Outcome, Pause, Send
from angelia.errors import AngeliaError, NotFound, RateLimited, Stale, Unavailable
from angelia.mailbox import identity
from angelia.mailbox.mailbox import Mailbox
from client.letters import now
from client.recorder import Recorder
from client.test_verbs import NODE, TOKEN, server, tokens

STALE = (401, {"title": "too old", "code": "stale"}, {})
AWAY = {"title": "later", "code": "unavailable"}
BUSY = (503, AWAY, {})
FOUND = (200, NODE, {})
MADE = (201, {**TOKEN, "token": "agt_x"}, {})


@dataclass
class World:
    """A network that answers in turn, and a clock that moves only when somebody pauses."""

    told: list[tuple[int, object, dict[str, str]] | Failed]
    now: float = 1_800_000_000.0
    sent: list[Send] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def run(self, call: Exchange[Any], timeout: float = 30.0) -> Any:
        line = Line("http://h", token="t", timeout=timeout, clock=lambda: self.now, stopwatch=lambda: self.now)
        steps = line.run(call)
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                return done.value
            outcome = self._take(step)

    def _take(self, step: Send | Pause) -> Outcome:
        if isinstance(step, Pause):
            self.pauses.append(step.seconds)
            self.now += step.seconds
            return None
        self.sent.append(step)
        told = self.told.pop(0) if len(self.told) > 1 else self.told[0]
        if isinstance(told, Failed):
            return told
        status, body, headers = told
        return Response(step.method, "/p", status, headers, json.dumps(body).encode())


@pytest.mark.parametrize("trouble", [(502, {}, {}), BUSY, (504, {}, {}), Failed("broke")])
def test_a_passing_trouble_is_outlived_with_growing_pauses(trouble: Any) -> None:
    world = World([trouble, trouble, FOUND])
    assert world.run(server.node()).public_key
    assert len(world.sent) == 3
    first, second = world.pauses
    assert 0.2 <= first <= 0.4 <= second <= 0.8


def test_three_tries_are_all() -> None:
    world = World([BUSY])
    with pytest.raises(Unavailable):
        world.run(server.node())
    assert len(world.sent) == 3


@pytest.mark.parametrize("trouble", [BUSY, (502, {}, {}), Failed("broke")])
def test_what_may_have_been_done_is_not_done_twice(trouble: Any) -> None:
    world = World([trouble, MADE])
    with pytest.raises(AngeliaError):
        world.run(tokens.create("admin"))
    assert len(world.sent) == 1


def test_a_lost_answer_leaves_a_doubt_that_is_said() -> None:
    with pytest.raises(Unreachable, match="whether the request was carried out is not known"):
        World([Failed("broke off")]).run(tokens.create("admin"))


def test_a_stale_refusal_did_nothing_so_even_a_new_token_is_asked_for_again() -> None:
    world = World([STALE, MADE])
    assert world.run(tokens.create("admin")).token == "agt_x"
    assert world.pauses == [PAUSE_AFTER_STALE]


def test_a_clock_that_is_wrong_will_be_wrong_again() -> None:
    world = World([(401, STALE[1], {"date": "Fri, 15 Jan 2027 07:58:00 GMT"})])
    with pytest.raises(Stale, match="too old"):
        world.run(server.node())
    assert len(world.sent) == 1


def test_retry_after_is_honoured() -> None:
    world = World([(503, AWAY, {"retry-after": "4"}), FOUND])
    world.run(server.node())
    assert world.pauses == [4]


def test_no_pause_reaches_beyond_the_timeout() -> None:
    world = World([(503, AWAY, {"retry-after": "400"}), FOUND])
    with pytest.raises(Unavailable) as refused:
        world.run(server.node(), timeout=10)
    assert refused.value.retry_after == 400
    assert world.pauses == []


def test_the_time_of_all_tries_together_is_bounded() -> None:
    world = World([(503, AWAY, {"retry-after": "4"})])
    with pytest.raises(Unavailable):
        world.run(server.node(), timeout=7)
    assert [round(send.timeout) for send in world.sent] == [7, 3]


def test_a_limit_is_reported_not_fought() -> None:
    world = World([(429, {"title": "slow down", "code": "rate_limited"}, {"retry-after": "9"})])
    with pytest.raises(RateLimited) as refused:
        world.run(server.node())
    assert refused.value.retry_after == 9
    assert len(world.sent) == 1


def test_a_call_may_know_better_than_an_error() -> None:
    def first_or_second() -> Exchange[str]:
        try:
            yield Request("GET", "/first")
        except NotFound:
            answer = yield Request("GET", "/second")
            return f"second: {answer.status}"
        return "first"

    world = World([(404, {"error": "no"}, {}), FOUND])
    assert world.run(first_or_second()) == "second: 200"
    assert [send.url for send in world.sent] == ["http://h/first", "http://h/second"]


CHANNEL = UUID("c9a3a2e0-1234-5678-9abc-def012345678")
SIGNED_BY_THE_PRESENT_PAIR: dict[str, Callable[[Client, Mailbox], object]] = {
    "channels.read": lambda client, box: client.channels.read(box, CHANNEL),
    "channels.tail": lambda client, box: next(iter(client.channels.tail(box, CHANNEL))),
    "channels.subscribe": lambda client, box: client.channels.subscribe(box, CHANNEL),
    "channels.unsubscribe": lambda client, box: client.channels.unsubscribe(box, CHANNEL),
    "channels.list": lambda client, box: client.channels.list(),
    "mail.receive": lambda client, box: client.mail.receive(box),
    "mail.receipts": lambda client, box: client.mail.receipts(),
    "keys.find": lambda client, box: client.keys.find(box, "carol"),
    "agents.me": lambda client, box: client.agents.me(),
}


@pytest.fixture
def rotated_elsewhere(tmp_path: Path, boxes: Callable[[str], Mailbox]) -> Iterator[tuple[Mailbox, Mailbox]]:
    """A mailbox of bob, and the same one in another process that has rotated his signing pair since."""
    here = boxes("bob")
    with Mailbox(tmp_path, identity.load(tmp_path, "bob", lambda: ""), now()) as other:
        other.key_rotation.begin(now(), signer=True)
        other.key_rotation.finish(now())
        yield here, other


@pytest.mark.parametrize("verb", SIGNED_BY_THE_PRESENT_PAIR)
def test_every_verb_signs_with_the_pair_that_another_process_rotated_to(
    recorder: Recorder, rotated_elsewhere: tuple[Mailbox, Mailbox], verb: str
) -> None:
    here, other = rotated_elsewhere
    assert here.key_id != other.key_id
    with Client(recorder.url, identity=here) as client, pytest.raises(NotFound):
        SIGNED_BY_THE_PRESENT_PAIR[verb](client, here)
    assert recorder.seen
    for seen in recorder.seen:
        assert re.search('keyid="([^"]+)"', seen.headers["signature-input"])[1] == str(other.key_id)  # type: ignore[index]


def test_a_key_file_that_cannot_be_read_is_a_fault_that_an_exchange_may_recover_from(
    tmp_path: Path, boxes: Callable[[str], Mailbox]
) -> None:
    def exchange() -> Exchange[str]:
        try:
            yield Request("GET", "/v1/agents/me")
        except OSError:
            return "recovered"
        return "not reached"

    line = Line("http://h", signer=boxes("bob"))
    (tmp_path / "bob" / "key").unlink()
    with pytest.raises(StopIteration) as done:
        next(line.run(exchange()))
    assert done.value.value == "recovered"


def trusted(url: str) -> list[object]:
    """The certificate authorities that a connection to a URL trusts; httpx's own choice is [True]."""
    context = transport.connecting(url)["verify"]
    return context.get_ca_certs() if isinstance(context, ssl.SSLContext) else [context]


@pytest.mark.parametrize("proxy", [None, "http_proxy", "https_proxy", "all_proxy"])
def test_only_a_connection_that_has_no_tls_gets_a_context_without_authorities(
    proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    if proxy is not None:
        monkeypatch.setenv(proxy, "https://proxy.example")
    assert trusted("http://127.0.0.1:8080") == trusted("http://[::1]:8080") == trusted("http://localhost") == []
    assert trusted("https://localhost:8080") == trusted("https://angelia.example") == [True]
    assert trusted("http://angelia.example") == ([] if proxy is None else [True])


def test_a_context_without_authorities_believes_no_certificate() -> None:
    context = transport.connecting("http://localhost")["verify"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
