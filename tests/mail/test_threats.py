"""What an attacker tries against mail, and what comes of it: one test for each way."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from prometheus_client import REGISTRY

from angelia.envelope import json_form, sealing, wire
from angelia.envelope.ids import KeyType
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.refusals import SignatureFailed
from angelia.envelope.times import unix_ms
from angelia.envelope.wire import Compression, Envelope, Priority
from angelia.errors import Denied, Unavailable
from angelia.keys.bundle_succession import Emergency
from angelia.keys.model import Reason
from angelia.mail import model, service
from angelia.mail.model import HOLD
from angelia.policy.api import PolicyRuleBody
from angelia.policy.model import Action, Effect
from http_agents import Server
from keyholder import now_ms
from mail_agents import Correspondent, random_key
from mail_office import PostOffice, left, told
from store_probes import until_blocked

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NOTHING = {"envelopes": 0, "sent_ids": 0, "delivery_receipts": 0}
DENIED = "message_delivery_denied"
UNSIGNED = "signature_verification_failed"


async def post(server: Server, who: Correspondent, body: bytes) -> httpx.Response:
    return await server.send_signed(who, "POST", "/v1/messages", body)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# Copies.


async def test_a_replay_of_the_same_bytes_is_answered_and_delivered_once(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    for _ in range(3):
        assert (await alice.mail(server, envelope)).status_code == 200
    (got,) = await bob.poll(server)
    await bob.ack(server, got)
    assert (await alice.mail(server, envelope)).status_code == 200
    assert await bob.poll(server) == []


async def test_a_replay_by_another_than_its_sender_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    assert code(await carol.mail(server, envelope)) == (403, "authorization_denied")
    assert code(await bob.mail_binary(server, envelope.wire)) == (403, "authorization_denied")
    assert len(await bob.poll(server)) == 1


def respelled(envelope: Envelope) -> dict[str, bytes]:
    """One envelope, written in ways that a lax reader would take."""
    text, fields = json_form.encode(envelope).decode(), json_form.to_fields(envelope)
    signature = fields["signature_ed25519"]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = signature[:-1] + alphabet[alphabet.index(signature[-1]) ^ 1]
    return {
        "another order": json.dumps(dict(reversed(fields.items()))).encode(),
        "white space": json.dumps(fields, indent=4).encode(),
        "escapes": text.replace('"sender_nhi"', '"sender\\u005fnhi"').encode(),
        "an extra member": json.dumps({**fields, "trace": 1}).encode(),
        "a member twice": (text[:-1] + f',"priority":{fields["priority"]}' + "}").encode(),
        "padding": json.dumps({**fields, "signature_ed25519": signature + "=="}).encode(),
        "spare bits": json.dumps({**fields, "signature_ed25519": spare}).encode(),
        "a line break in bytes": json.dumps(
            {**fields, "auth_tag": fields["auth_tag"][:4] + "\n" + fields["auth_tag"][4:]}
        ).encode(),
        "the other alphabet": json.dumps(
            {**fields, "wrapped_key": fields["wrapped_key"].replace("-", "+").replace("_", "/")}
        ).encode(),
        "a null": json.dumps({**fields, "correlation_id": None}).encode(),
        "control false": json.dumps({**fields, "control": False}).encode(),
        "upper case": text.replace(fields["message_id"], fields["message_id"].upper()).encode(),
        "a float": text.replace(f'"priority":{fields["priority"]}', f'"priority":{fields["priority"]}.0').encode(),
        "a BOM": b"\xef\xbb\xbf" + text.encode(),
        "trailing bytes": text.encode() + b"{}",
    }


async def test_a_re_encoded_copy_is_the_same_message_or_none(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    envelope = alice.seal(bob, message_id=UUID("a" * 8 + "-aaaa-4aaa-aaaa-" + "a" * 12))
    await alice.mail(server, envelope)
    statuses = {}
    for way, body in respelled(envelope).items():
        statuses[way] = (await post(server, alice, body)).status_code
    same = {"another order", "white space", "escapes"}
    assert statuses == {way: 200 if way in same else 400 for way in statuses}
    for tail in (b"\0", b"\n", envelope.wire):
        assert (await alice.mail_binary(server, envelope.wire + tail)).status_code == 400
    assert (await left(connection))["envelopes"] == 1
    assert len(await bob.poll(server)) == 1


async def test_the_same_id_for_other_content_is_refused_and_the_first_stands(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    first = await alice.sent(server, bob, b"first")
    # Also the very same content, signed again: the signatures are other bytes.
    for body in (b"second", b"first"):
        other = alice.seal(bob, body, message_id=first.header.message_id, created_at=first.header.created_at)
        assert code(await alice.mail(server, other)) == (409, "message_id_conflict")
    (got,) = await bob.poll(server)
    assert got.envelope.wire == first.wire
    assert await told(connection, "message_id_conflict") == [("message_id_conflict", "alice", "bob")] * 2


async def test_an_id_that_was_used_stays_used_after_the_message_is_gone(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    first = await alice.sent(server, bob)
    (got,) = await bob.poll(server)
    await bob.ack(server, got)
    again = alice.seal(bob, b"second", message_id=first.header.message_id)
    assert code(await alice.mail(server, again)) == (409, "message_id_conflict")


# Forgery.


async def test_a_sender_that_is_not_the_caller_is_denied_and_that_is_on_record(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent, connection: asyncpg.Connection
) -> None:
    assert code(await carol.mail(server, alice.seal(bob))) == (403, "authorization_denied")
    forged = sealing.seal(carol.letter(bob), "alice", carol.pair)
    assert code(await carol.mail(server, forged)) == (403, "authorization_denied")
    assert await told(connection, DENIED) == [(DENIED, "carol", "bob")] * 2
    assert await left(connection) == NOTHING


async def test_an_envelope_signed_with_anothers_keys_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent, connection: asyncpg.Connection
) -> None:
    """Carol calls as herself, with an envelope in her name that alice's pair signed, or that says so."""
    moved = sealing.seal(carol.letter(bob), "carol", alice.pair)
    assert code(await carol.mail(server, moved)) == (404, "key_not_found")
    fields = json_form.to_fields(moved) | {"sender_key_id": str(carol.pair.public.signer_id)}
    assert code(await post(server, carol, json.dumps(fields).encode())) == (400, UNSIGNED)
    assert await told(connection, UNSIGNED) == [(UNSIGNED, "carol", "bob")]
    assert await left(connection) == NOTHING


TAMPERED: dict[str, Any] = {
    "priority": lambda f: {"priority": 3},
    "ttl_seconds": lambda f: {"ttl_seconds": f["ttl_seconds"] - 60, "expires_at": f["expires_at"] - 60_000},
    "created_at": lambda f: {"created_at": f["created_at"] + 1, "expires_at": f["expires_at"] + 1},
    "channel_id": lambda f: {"channel_id": str(uuid4())},
    "correlation_id": lambda f: {"correlation_id": str(uuid4())},
    "message_id": lambda f: {"message_id": str(uuid4())},
    "compression": lambda f: {"compression": int(Compression.GZIP)},
    "control": lambda f: {"control": True},
    "nonce": lambda f: {"nonce": json_form.to_text(bytes(12))},
    "wrapped_key": lambda f: {"wrapped_key": json_form.to_text(bytes(1120))},
    "encrypted_payload": lambda f: {"encrypted_payload": f["encrypted_payload"][:-4] + "AAAA"},
    "auth_tag": lambda f: {"auth_tag": json_form.to_text(bytes(16))},
    "signature_ed25519": lambda f: {"signature_ed25519": json_form.to_text(bytes(64))},
    "signature_ml_dsa": lambda f: {"signature_ml_dsa": json_form.to_text(bytes(3309))},
}


async def test_each_tampered_field_breaks_the_signatures(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    # Uneven lengths, so that the last group of text has no spare bits of its own to be wrong.
    fields = json_form.to_fields(alice.seal(bob, b"x" * 13, channel_id=uuid4(), correlation_id=uuid4()))
    for name, change in TAMPERED.items():
        answer = await post(server, alice, json.dumps(fields | change(fields)).encode())
        assert code(answer) == (400, UNSIGNED), name
    for name in ("channel_id", "correlation_id"):
        stripped = {key: value for key, value in fields.items() if key != name}
        assert code(await post(server, alice, json.dumps(stripped).encode())) == (400, UNSIGNED), name
    assert await left(connection) == NOTHING
    # What was tampered with did not use up the id.
    assert (await post(server, alice, json.dumps(fields).encode())).status_code == 201


async def test_a_key_id_or_a_recipient_that_was_changed_to_another_good_one_breaks_the_signatures(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    old = bob.kem[KeyType.XWING].public
    await bob.rotated(office, now)  # type: ignore[arg-type]
    envelope = alice.seal(bob, created_at=unix_ms(now))
    twin = Correspondent()
    twin.kem = bob.kem  # a recipient that published the very same key
    await twin.enter(office, "bobby", now)  # type: ignore[arg-type]
    for change in ({"key_id": str(old.key_id)}, {"recipient_nhi": "bobby"}):
        tampered = json_form.from_fields(json_form.to_fields(envelope) | change)
        with pytest.raises(SignatureFailed):
            await office.send(alice, tampered, now)


async def test_a_signature_of_one_envelope_does_not_serve_another(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    one, other = json_form.to_fields(alice.seal(bob)), json_form.to_fields(alice.seal(bob))
    both = {key: other[key] for key in ("signature_ed25519", "signature_ml_dsa")}
    for taken in (both, {"signature_ed25519": both["signature_ed25519"]}):
        assert code(await post(server, alice, json.dumps(one | taken).encode())) == (400, UNSIGNED)


DOWNGRADES: list[Any] = [
    {"version": 0},
    {"version": 2},
    {"suite": 0},
    {"suite": 1},
    {"suite": 3},
    {"suite": 4},
    {"suite": 5},
    {"signature_ml_dsa": ""},
    {"signature_ed25519": ""},
    {"priority": 4},
    {"compression": 3},
]


async def test_a_downgrade_or_a_missing_signature_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    for change in DOWNGRADES:
        fields = json_form.to_fields(alice.seal(bob)) | change
        answer = await post(server, alice, json.dumps(fields).encode())
        assert answer.status_code == 400
        for name in change:
            fields.pop(name)
        assert (await post(server, alice, json.dumps(fields).encode())).status_code == 400


MISFITS: list[Any] = [
    {"expires_at": 1},
    {"ttl_seconds": 0},
    {"ttl_seconds": 604_801},
    {"ttl_seconds": 2**32},
    {"ttl_seconds": -1},
    {"created_at": 2**53},
    {"created_at": 2**64},
    {"expires_at": 2**64},
    {"created_at": 1.5},
    {"created_at": True},
    {"created_at": "1"},
]


async def test_times_that_do_not_fit_together_are_refused(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    for change in MISFITS:
        fields = json_form.to_fields(alice.seal(bob)) | change
        assert code(await post(server, alice, json.dumps(fields).encode())) == (400, "invalid_argument")
        assert await bob.poll(server) == []


async def test_a_time_to_live_longer_than_the_server_allows_is_refused(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    long = sealing.seal(alice.letter(bob, ttl_seconds=604_801), "alice", alice.pair, ttl_max=2_592_000)
    assert code(await alice.mail(server, long)) == (400, "invalid_argument")
    assert code(await alice.mail_binary(server, long.wire)) == (400, "invalid_argument")


async def test_an_envelope_from_the_far_future_or_the_past_is_skewed(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    for at in (now_ms() + 10**10, now_ms() - 10**8, 0, 2**50):
        answer = await alice.mail(server, alice.seal(bob, created_at=at))
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] in ("clock_skew", "invalid_argument")
    assert await left(connection) == NOTHING


# Text that is no envelope.


MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep arrays": b"[" * 200_000,
    "NaN": b'{"version": NaN}',
    "a huge number": b'{"version": ' + b"9" * 100_000 + b"}",
    "an exponent": b'{"version": 1e400}',
    "invalid UTF-8": b'{"version": "\xff"}',
    "half a surrogate": b'{"sender_nhi": "\\ud800"}',
    "a list": b"[]",
    "a string": b'"envelope"',
    "many members": b"{" + b",".join(b'"%d":1' % n for n in range(20_000)) + b"}",
}


async def test_deep_double_and_odd_json_is_refused_before_any_signature_is_looked_at(
    server: Server, alice: Correspondent, bob: Correspondent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("a signature was looked at")

    monkeypatch.setattr(service.sealing, "verify", never)
    nested = json_form.to_fields(alice.seal(bob)) | {"batch": {"index": 0, "count": 1, "path": [[[["x"]]]]}}
    for name, body in {**MALFORMED, "depth 5": json.dumps(nested).encode()}.items():
        answer = await post(server, alice, body)
        assert answer.status_code in (400, 415), (name, answer.text)
        many = await server.send_signed(alice, "POST", "/v1/messages/batch", b'{"messages":[' + body + b"]}")
        assert many.status_code in (200, 400), (name, many.text)
        if many.status_code == 200:
            assert all(one["problem"]["code"] == "invalid_argument" for one in many.json()["results"]), name


async def test_bytes_that_are_no_envelope_are_refused(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    whole = alice.seal(bob).wire
    lying = bytearray(whole)
    lying[78:80] = b"\xff\xff"  # the length of the sender's handle
    for body in (b"\0", whole[:-1], whole[:100], bytes(5000), whole + b"\0", bytes(lying), secrets.token_bytes(5000)):
        assert code(await alice.mail_binary(server, body)) == (400, "invalid_argument")


HANDLES = [
    "Alice",
    "alice ",
    "аlice",
    "alice\n",
    "alice\0",
    "a..b",
    ".alice",
    "a/b",
    "alice'--",
    "{alice}",
    "*",
    "a" * 256,
]


async def test_a_handle_that_is_none_is_refused_at_every_entry(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    for handle in HANDLES:
        fields = json_form.to_fields(alice.seal(bob))
        for name in ("sender_nhi", "recipient_nhi"):
            assert code(await post(server, alice, json.dumps(fields | {name: handle}).encode())) == (
                400,
                "invalid_argument",
            )
        answer = await server.get(f"/v1/dead-letters?agent={quote(handle)}", headers=server.admin)
        assert answer.status_code in (400, 404)


INJECTIONS = ["' OR 1=1 --", "'; DROP TABLE envelopes; --", "$1", "%", "\\", "{x}:ready", "\r\nSET a b\r\n"]


async def test_syntax_in_filters_cursors_and_names_is_only_text(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    await alice.sent(server, bob)
    before = await left(connection)
    for text in INJECTIONS:
        value = quote(text, safe="")
        cursor = base64.urlsafe_b64encode(f"2026-01-01T00:00:00+00:00 {text}".encode()).decode()
        for url in (
            f"/v1/receipts?status={value}",
            f"/v1/receipts?since={value}",
            f"/v1/receipts?cursor={value}",
            f"/v1/receipts?cursor={cursor}",
            f"/v1/receipts?limit={value}",
            f"/v1/receipts/{value}",
            f"/v1/messages/{value}",
            f"/v1/messages?channel_id={value}",
            f"/v1/messages?correlation_id={value}",
            f"/v1/messages?min_priority={value}",
            f"/v1/dead-letters?cursor={cursor}",
            f"/v1/dead-letters?limit={value}",
        ):
            answer = await bob.get(server, url)
            assert code(answer) == (400, "invalid_argument"), url
        for item in ({"replay_key": text}, {"lease_token": text}):
            body = {"replay_key": "0" * 64, "lease_token": "0" * 64, **item}
            assert code(await bob.post(server, "/v1/messages/acknowledge", {"acks": [body]}))[0] == 400
    assert await left(connection) == before
    assert len(await bob.poll(server)) == 1


ENDS: list[Any] = ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00Z"]


async def test_a_time_at_the_end_of_the_calendar_is_no_fault_of_the_server(server: Server, bob: Correspondent) -> None:
    for at in ENDS:
        cursor = base64.urlsafe_b64encode(f"{at.replace('Z', '+00:00')} {uuid4()}".encode()).decode()
        for url in (
            f"/v1/receipts?since={quote(at)}",
            f"/v1/receipts?cursor={cursor}",
            f"/v1/dead-letters?cursor={cursor}",
        ):
            assert (await bob.get(server, url)).status_code in (200, 400), url


async def test_a_handle_never_becomes_part_of_a_name_in_the_hot_tier(
    office: PostOffice, alice: Correspondent, now: datetime
) -> None:
    odd = Correspondent()
    await odd.enter(office, "a.b-c_d", now)  # type: ignore[arg-type]
    await office.sent(alice, odd, now)
    await office.poll(odd, now)
    names = [name.decode() for name in await office.hot._redis.keys("ang:mail:*")]
    assert names
    assert not any("a.b" in name or "alice" in name for name in names)


# Who may.


async def test_a_token_without_an_agent_does_nothing_with_mail(server: Server, bob: Correspondent) -> None:
    key = random_key()
    made = await server.post("/v1/tokens", json={"role": "read-write"}, headers=server.admin)
    for token in (server.admin, {"authorization": f"Bearer {made.json()['token']}"}):
        for method, url, body in [
            ("POST", "/v1/messages", {}),
            ("POST", "/v1/messages/batch", {"messages": [{}]}),
            ("GET", "/v1/messages", None),
            ("GET", "/v1/messages/stream", None),
            ("GET", f"/v1/messages/{key}", None),
            ("DELETE", f"/v1/messages/{key}", None),
            ("POST", "/v1/messages/acknowledge", {"acks": [{"replay_key": key, "lease_token": key}]}),
            ("POST", "/v1/messages/nack", {"nacks": [{"replay_key": key, "lease_token": key}]}),
            ("GET", "/v1/receipts", None),
            ("GET", f"/v1/receipts/{key}", None),
            ("POST", "/v1/receipts", {}),
            ("GET", "/v1/dead-letters", None),
        ]:
            answer = await server.request(method, url, headers=token, **({} if body is None else {"json": body}))
            assert code(answer) == (403, "authorization_denied"), (method, url)


async def test_a_read_only_token_receives_nothing_since_a_lease_is_a_write(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    envelope = await alice.sent(server, bob)
    made = await server.post("/v1/tokens", json={"role": "read-only", "agent": "bob"}, headers=server.admin)
    token = {"authorization": f"Bearer {made.json()['token']}"}
    key = random_key()
    for method, url, body in [
        ("GET", "/v1/messages", None),
        ("GET", "/v1/messages/stream", None),
        ("POST", "/v1/messages/acknowledge", {"acks": [{"replay_key": key, "lease_token": key}]}),
        ("POST", "/v1/messages/nack", {"nacks": [{"replay_key": key, "lease_token": key}]}),
        ("DELETE", f"/v1/messages/{envelope.replay_key}", None),
        ("POST", f"/v1/dead-letters/{envelope.replay_key}/requeue", None),
        ("POST", "/v1/receipts", {}),
        ("POST", "/v1/messages", {}),
    ]:
        answer = await server.request(method, url, headers=token, **({} if body is None else {"json": body}))
        assert code(answer) == (403, "authorization_denied"), (method, url)
    assert (await server.get(f"/v1/messages/{envelope.replay_key}", headers=token)).status_code == 200
    assert (await server.get("/v1/receipts", headers=token)).status_code == 200


async def test_a_token_bound_to_an_agent_is_that_agent_and_no_other(
    server: Server, alice: Correspondent, bob: Correspondent
) -> None:
    made = await server.post("/v1/tokens", json={"role": "read-write", "agent": "bob"}, headers=server.admin)
    token = {"authorization": f"Bearer {made.json()['token']}"}
    await alice.sent(server, bob)
    assert len((await server.get("/v1/messages", headers=token)).json()["messages"]) == 1
    refused = await server.post("/v1/messages", json=json_form.to_fields(alice.seal(bob)), headers=token)
    assert code(refused) == (403, "authorization_denied")
    taken = await server.post("/v1/messages", json=json_form.to_fields(bob.seal(alice)), headers=token)
    assert taken.status_code == 201


async def test_mail_for_one_agent_is_given_to_no_other(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent
) -> None:
    thread = uuid4()
    await alice.sent(server, bob, correlation_id=thread)
    for other in (alice, carol):
        assert await other.poll(server) == []
        assert await other.poll(server, correlation_id=thread) == []


async def test_somebody_unknown_and_somebody_forbidden_answer_alike(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    for rule in (await office.policy.rules(None, 100))[0]:
        if rule.action is Action.SEND:
            await office.policy.remove("op", rule.rule_id, now)
    nobody, keyless = Correspondent(), Correspondent()
    nobody.handle = "nobody"
    await keyless.exist(office, "keyless", now)  # type: ignore[arg-type]
    answers = []
    for recipient in (bob, nobody, keyless):
        told_ = (await alice.mail(server, alice.seal(recipient))).json()
        del told_["request_id"]
        answers.append(json.loads(json.dumps(told_).replace(recipient.handle, "somebody")))
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0]["status"], answers[0]["code"]) == (403, "authorization_denied")


async def test_a_withdrawn_permission_stops_the_next_delivery_and_a_restored_one_lets_it_through(
    office: PostOffice, another, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    elsewhere: PostOffice = await another()
    await office.sent(alice, bob, now)
    assert len(await elsewhere.poll(bob, now, lease_seconds=5)) == 1  # allowed, and remembered as such
    rule = await office.policy.add("op", PolicyRuleBody(Effect.DENY, Action.SEND, "alice", "*"), now)
    with pytest.raises(Denied):
        await elsewhere.sent(alice, bob, now)
    at = now + 10 * SECOND
    assert await elsewhere.poll(bob, at) == []
    assert await told(connection, DENIED) == [(DENIED, "alice", "bob")] * 2
    await office.policy.remove("op", rule.rule_id, at)
    (got,) = await elsewhere.poll(bob, at + HOLD)
    assert got.attempt == 2  # what was withheld was no attempt


async def test_what_may_not_be_delivered_is_not_shown_by_its_name_either(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    agent = await office.agent(bob)

    async def shown(envelope: Envelope, at: datetime) -> bool:
        _, row = await office.in_transit.status(agent, bytes.fromhex(envelope.replay_key), at)
        assert row is not None
        return row.wire == envelope.wire

    short = await office.sent(alice, bob, now, ttl_seconds=60)
    assert (await shown(short, now), await shown(short, now + MINUTE)) == (True, False)
    envelope = await office.sent(alice, bob, now)
    rule = await office.policy.add("op", PolicyRuleBody(Effect.DENY, Action.SEND, "alice", "*"), now)
    assert not await shown(envelope, now)
    await office.policy.remove("op", rule.rule_id, now)
    assert await shown(envelope, now)
    await office.agents.block(agent, "alice", now)
    assert not await shown(envelope, now)
    await office.agents.unblock(agent, "alice", now)
    assert await shown(envelope, now)
    link = bob.rotation(at=unix_ms(now + SECOND), grace=False)
    await bob.accepted(  # type: ignore[arg-type]
        office, link, reason=Reason.EMERGENCY, emergency=Emergency("stolen", now, None)
    )
    assert not await shown(envelope, now + MINUTE)


async def test_a_block_stops_what_waits_as_well(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    await office.sent(alice, bob, now)
    assert (await bob.put(server, "/v1/blocks/alice", None)).status_code == 204
    assert await office.poll(bob, now) == []
    assert (await bob.delete(server, "/v1/blocks/alice")).status_code == 204
    assert len(await office.poll(bob, now + HOLD)) == 1


async def test_withheld_mail_does_not_hide_what_stands_behind_it(
    office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, now: datetime
) -> None:
    for _ in range(12):
        await office.sent(alice, bob, now, priority=Priority.CRITICAL)
    await office.sent(carol, bob, now)
    await office.policy.add("op", PolicyRuleBody(Effect.DENY, Action.SEND, "alice", "*"), now)
    async with asyncio.timeout(5):
        (got,) = await office.poll(bob, now, wait_timeout_seconds=5, max_messages=10)
    assert got.row.sender == "carol"


async def test_rules_that_cannot_be_read_are_503_and_nothing_is_stored_or_handed_over(
    server: Server, alice: Correspondent, bob: Correspondent, connection: asyncpg.Connection
) -> None:
    await alice.sent(server, bob)
    before = await left(connection)
    await connection.execute("ALTER TABLE policy_version RENAME TO policy_version_away")
    try:
        envelope = alice.seal(bob)
        answer = await alice.mail(server, envelope)
        assert code(answer) == (503, "unavailable")
        assert "retry-after" in answer.headers
        assert (await bob.get(server, "/v1/messages")).status_code == 503
        assert await left(connection) == before
    finally:
        await connection.execute("ALTER TABLE policy_version_away RENAME TO policy_version")
    assert (await alice.mail(server, envelope)).status_code == 201
    # Nobody got it, so it is given at once.
    assert [one.attempt for one in await bob.poll(server)] == [1, 1]


# Floods.


async def test_a_flood_fills_half_a_queue_and_evicts_nothing(
    server: Server, alice: Correspondent, bob: Correspondent, carol: Correspondent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "QUEUE_MAX", 8)
    first = await carol.sent(server, bob, b"was there first")
    answers = [await alice.mail(server, alice.seal(bob)) for _ in range(7)]
    assert [one.status_code for one in answers] == [201] * 4 + [429] * 3
    assert answers[-1].json()["code"] == "queue_full"
    assert (await bob.poll(server))[0].replay_key == first.replay_key
    await carol.sent(server, bob, b"and has room")


async def test_failures_fill_the_audit_with_ten_events_a_minute_and_a_count(
    office: PostOffice, alice: Correspondent, bob: Correspondent, carol: Correspondent, connection: asyncpg.Connection
) -> None:
    minute = datetime.now(UTC).replace(second=0, microsecond=0)
    for n in range(25):
        with pytest.raises(Denied):
            await office.send(carol, alice.seal(bob), minute + n * SECOND)
    with pytest.raises(Denied):
        await office.send(bob, alice.seal(bob), minute)  # another source has its own count
    assert len(await told(connection, DENIED)) == 11
    await office.failures.summarise(minute + 59 * SECOND)
    assert len(await told(connection, DENIED)) == 11
    for _ in range(2):
        await office.failures.summarise(minute + MINUTE + SECOND)
    rows = await connection.fetch("SELECT actor_nhi, detail FROM audit_events WHERE detail ? 'failures'")
    assert [(row["actor_nhi"], json.loads(row["detail"])) for row in rows] == [
        ("carol", {"minute": minute.isoformat(), "failures": 25, "recorded": 10})
    ]
    # The next minute begins anew.
    with pytest.raises(Denied):
        await office.send(carol, alice.seal(bob), minute + MINUTE)
    assert len(await told(connection, DENIED)) == 13


async def test_a_sender_whose_signatures_fail_often_raises_an_alarm(
    office: PostOffice, now: datetime, captured_log: list[Any]
) -> None:
    def alarms(kind: str) -> float:
        return REGISTRY.get_sample_value("angelia_signature_alerts_total", {"level": kind}) or 0

    before = alarms("failures"), alarms("suspected_compromise")
    seen = []
    for _ in range(101):
        await office.failures.record(UNSIGNED, "mallory", now)
        seen.append((alarms("failures") - before[0], alarms("suspected_compromise") - before[1]))
    assert (seen[9], seen[10], seen[99], seen[100]) == ((0, 0), (1, 0), (1, 0), (1, 1))
    assert [one["log_level"] for one in captured_log if one.get("sender") == "mallory"] == ["warning", "error"]


# Words.


async def test_secrets_are_compared_in_constant_time(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    digest = secrets.compare_digest

    def compare(a: str, b: str) -> bool:
        compared.append(b)
        return digest(a, b)

    await office.sent(alice, bob, now)
    (got,) = await office.poll(bob, now)
    wrong = replace(got, token=got.token._replace(secret="0" * 32))
    monkeypatch.setattr(model.secrets, "compare_digest", compare)
    assert getattr(await office.ack(bob, wrong, now), "code", None) == "lease_lost"
    assert getattr(await office.nack(bob, wrong, now), "code", None) == "lease_lost"
    assert compared == ["0" * 32] * 2


async def test_the_relay_cannot_invent_a_receipt(
    server: Server, office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    """What the relay says on its own is marked as its word; what is marked as the recipient's carries signatures."""
    mail = [await office.sent(alice, bob, now, ttl_seconds=60 if n == 0 else 600) for n in range(3)]
    got = {one.row.replay_key.hex(): one for one in await office.poll(bob, now)}
    await office.ack(bob, got[mail[1].replay_key], now)
    await office.ack(bob, got[mail[2].replay_key], now, bob.receipt(mail[2]))
    await office.background.expire(now + MINUTE)
    seen = [await alice.receipt_of(server, one.replay_key) for one in mail]
    assert [(one["status"], one["attested_by"], one["receipt"] is None) for one in seen] == [
        ("expired", "relay", True),
        ("delivered", "relay", True),
        ("delivered", "recipient", False),
    ]


async def test_no_plaintext_is_anywhere_on_the_server(
    server: Server,
    office: PostOffice,
    alice: Correspondent,
    bob: Correspondent,
    connection: asyncpg.Connection,
    captured_log: list[Any],
) -> None:
    marker = b"the treasure lies under the oak"
    await alice.sent(server, bob, marker)
    (got,) = await bob.poll(server)
    assert bob.opened(got) == marker
    tables = await connection.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname !~ '^(pg|sql)_'")
    for (table,) in tables:
        for row in await connection.fetch(f"SELECT t FROM {table} AS t"):  # noqa: S608
            assert marker not in repr(row["t"]).encode()
    for name in await office.hot._redis.keys("*"):
        if await office.hot._redis.type(name) == b"string":
            assert marker not in await office.hot._redis.get(name)
    said = json.dumps(captured_log, default=repr)
    # Nor does the log have what opens a lease, or the bytes of an envelope.
    assert marker.decode() not in said
    assert got.lease_token not in said
    assert json_form.to_text(got.envelope.signatures.ed25519) not in said


async def test_refusals_say_nothing_about_the_server(server: Server, alice: Correspondent, bob: Correspondent) -> None:
    for body in (b"{", json.dumps(json_form.to_fields(alice.seal(bob)) | {"priority": 3}).encode()):
        text = (await post(server, alice, body)).text
        for word in ("Traceback", "asyncpg", "src/", "SELECT", "policy_version"):
            assert word not in text


async def test_a_hot_tier_that_was_emptied_neither_delivers_twice_nor_loses(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime
) -> None:
    kept, settled = await office.sent(alice, bob, now), await office.sent(alice, bob, now)
    got = {one.row.replay_key.hex(): one for one in await office.poll(bob, now)}
    await office.ack(bob, got[settled.replay_key], now)
    await office.forget_everything()
    assert not (await office.send(alice, settled, now)).new  # a replay meanwhile
    await office.rebuild("new")
    assert [one.row.replay_key.hex() for one in await office.poll(bob, now)] == [kept.replay_key]


async def test_the_ledger_being_away_is_503_and_no_answer_is_given_before_its_commit(
    office: PostOffice, alice: Correspondent, bob: Correspondent, now: datetime, connection: asyncpg.Connection
) -> None:
    envelope = alice.seal(bob, created_at=unix_ms(now))
    async with connection.transaction():
        # In the way of the commit, not of the checks before it.
        await connection.execute("LOCK TABLE delivery_receipts IN SHARE MODE")
        sending = asyncio.create_task(office.send(alice, envelope, now))
        await until_blocked(connection)
        assert not sending.done()
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
        )
        with pytest.raises(Unavailable):
            await sending
    assert await office.poll(bob, now) == []
    assert (await office.send(alice, envelope, now)).new


def test_the_media_type_and_the_largest_envelope_are_those_of_the_contract() -> None:
    assert (MEDIA_TYPE, wire.MAX_ENVELOPE) == ("application/vnd.angelia.envelope", 1_122_304)
