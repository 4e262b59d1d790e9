"""Hostile credentials: whatever is changed in a signed request, it is refused, and nothing breaks."""

from __future__ import annotations

import base64
import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angelia.api import http_signature
from angelia.errors import Unauthenticated
from angelia.guard import aicq_signature
from guarded_routes import Gate
from http_agents import Agent

HEADERS = ("signature-input", "signature", "content-digest")
CHARACTERS = string.printable.strip() + " é"


async def change_and_send(gate: Gate, rounds: int) -> None:
    chance = random.Random(rounds)
    agent = await gate.agent()
    for _ in range(rounds):
        headers = agent.signed("POST", "/v1/signed?a=1", b'{"x": 1}')
        name = chance.choice(HEADERS)
        text = headers[name]
        at = chance.randrange(len(text))
        changed = chance.choice(
            [
                text[:at] + chance.choice(CHARACTERS) + text[at + 1 :],
                text[:at] + text[at + 1 :],
                text[:at] + chance.choice(CHARACTERS) + text[at:],
                text[:at],
                text + text[at:],
            ]
        )
        if changed.strip() == text:
            continue
        headers[name] = changed
        raw = {key: value.encode("latin-1") for key, value in headers.items()}
        answer = await gate.client.post("/v1/signed?a=1", content=b'{"x": 1}', headers=raw)
        assert answer.status_code == 401, (name, changed, answer.text)
    assert gate.executed == []


async def test_a_changed_character_anywhere_in_the_proof_is_refused(gate) -> None:
    await change_and_send(gate(limits={"register": "off", "unproven": "off"}), 400)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
async def test_many_changes_in_the_proof_are_refused(gate) -> None:
    await change_and_send(gate(limits={"register": "off", "unproven": "off"}), 50_000)


def outcome(signature_input: str, signature: str) -> str:
    try:
        return str(http_signature.parse(signature_input, signature, room_key_sent=False).key_id)
    except Unauthenticated as error:
        return error.hint


_signed = Agent().signed("GET", "/")
_pieces = st.sampled_from([*_signed.values(), "sig=(", ")", ";", '"', ":", "=", "created=", "nonce=", "keyid="])
_texts = st.lists(_pieces | st.text(max_size=8), max_size=8).map("".join)


@given(_texts, _texts)
def test_no_text_breaks_the_parser(signature_input: str, signature: str) -> None:
    assert outcome(signature_input, signature)


@pytest.mark.fuzz
@settings(max_examples=100_000, deadline=None)
@given(_texts, _texts)
def test_no_text_breaks_the_parser_for_long(signature_input: str, signature: str) -> None:
    assert outcome(signature_input, signature)


@given(
    st.dictionaries(st.sampled_from([f"x-aicq-{n}" for n in ("agent", "nonce", "timestamp", "signature")]), st.text())
)
def test_no_random_aicq_header_is_well_formed(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        aicq_signature.parse(headers, 1_794_767_869_659, 30_000, 5_000)


def read(parse: object, text: str, signature: str, *, room_key_sent: bool) -> object:
    """What a parser makes of the headers: the record, or the words of its refusal."""
    try:
        return parse(text, signature, room_key_sent=room_key_sent)  # type: ignore[operator]
    except Unauthenticated as error:
        return error.message


@settings(max_examples=500)
@given(st.data())
def test_the_usual_order_is_read_as_any_other_is(data: st.DataObject) -> None:
    """There is a short way for what the SDK sends; whatever takes it must come out as on the long way."""
    room_key = data.draw(st.sampled_from([None, "key"]))
    target = http_signature.Target("GET", "localhost", "/", "", http_signature.digest(b""), room_key)
    nonce = data.draw(st.text(string.ascii_letters + string.digits + '-_!"\\~ é', min_size=20, max_size=130))
    created = data.draw(st.integers(0, 10**16))
    agent = Agent()
    headers = http_signature.sign(agent.key, agent.key_id, target, created=created, nonce=nonce)
    text, signature = headers["signature-input"], headers["signature"]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.sampled_from(["", *CHARACTERS])) + text[at + data.draw(st.integers(0, 1)) :]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(signature) - 1))
        signature = signature[:at] + data.draw(st.sampled_from(["", *CHARACTERS])) + signature[at + 1 :]
    for sent in (False, True):
        short = read(http_signature.parse, text, signature, room_key_sent=sent)
        assert short == read(http_signature._parse_any_order, text, signature, room_key_sent=sent)


@given(st.binary(min_size=64, max_size=64), st.integers(0, 63))
def test_a_signature_has_one_spelling(raw: bytes, last: int) -> None:
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"
    right = base64.b64encode(raw).decode()
    spelt = right[:85] + alphabet[last] + "=="
    accepted = True
    try:
        assert http_signature._signature(f"sig=:{spelt}:") == base64.b64decode(spelt)
    except Unauthenticated:
        accepted = False
    assert accepted == (base64.b64encode(base64.b64decode(spelt)).decode() == spelt)
