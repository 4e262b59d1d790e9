"""Hostile credentials: whatever is changed in a signed request, it is refused, and nothing breaks."""

from __future__ import annotations

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
