"""The JSON form: one envelope behind every text, one spelling of every value, nothing that two parsers read apart."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.envelope import json_form, wire
from angelia.envelope.json_form import MAX_JSON
from angelia.envelope.refusals import Malformed, Refused, SuiteRefused
from angelia.envelope.wire import Envelope
from envelope.reference import Raw
from envelope.samples import CHANNEL, CORRELATION, ML_KEM, envelopes, sealed, sealed_batch

FULL = sealed(ML_KEM, channel_id=CHANNEL, correlation_id=CORRELATION)
PLAIN = sealed()
MEMBER = sealed_batch(5)[0]
INTEGERS = ("version", "suite", "created_at", "expires_at", "ttl_seconds", "priority", "compression")
UUIDS = ("message_id", "key_id", "sender_key_id", "channel_id", "correlation_id")
BYTES = ("nonce", "wrapped_key", "encrypted_payload", "auth_tag", "signature_ed25519", "signature_ml_dsa")
NAMES = ("sender_nhi", "recipient_nhi")
ALWAYS = (*INTEGERS, *UUIDS[:3], *NAMES, *BYTES)


def fields_of(envelope: Envelope = FULL) -> dict[str, object]:
    made = json.loads(json_form.encode(envelope))
    assert isinstance(made, dict)
    return made


def text_with(name: str, literal: str, envelope: Envelope = FULL) -> bytes:
    """The JSON of an envelope with one value spelt literally so."""
    mark = "\0the place\0"
    made = json.dumps({**fields_of(envelope), name: mark})
    return made.replace(json.dumps(mark), literal).encode()


def refused(content: bytes, why: type[Refused] = Malformed) -> None:
    with pytest.raises(why):
        json_form.decode(content)


def refused_fields(fields: dict[str, object], why: type[Refused] = Malformed) -> None:
    refused(json.dumps(fields).encode(), why)


# Round trips.


@given(envelopes())
def test_what_is_encoded_is_decoded_to_the_same_wire(envelope: Envelope) -> None:
    decoded = json_form.decode(json_form.encode(envelope))
    assert decoded == envelope
    assert decoded.replay_key == envelope.replay_key
    assert json_form.encode(decoded) == json_form.encode(envelope)


@given(envelopes(), st.randoms())
def test_order_and_white_space_are_free_and_change_nothing(envelope: Envelope, chance: random.Random) -> None:
    members = list(fields_of(envelope).items())
    chance.shuffle(members)
    space = chance.choice(["", " ", "\n\t", "\r\n  "])
    text = json.dumps(
        dict(members), separators=(f"{space},{space}", f"{space}:{space}"), indent=chance.choice([None, 2])
    )
    assert json_form.decode((space + text + space).encode()).replay_key == envelope.replay_key


def escaped(fields: dict[str, object]) -> str:
    def spelt(text: str) -> str:
        return '"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"'

    members = (
        spelt(name) + ":" + (spelt(value) if isinstance(value, str) else json.dumps(value))
        for name, value in fields.items()
    )
    return "{" + ",".join(members) + "}"


def test_escapes_in_texts_change_nothing() -> None:
    assert json_form.decode(escaped(fields_of()).encode()) == FULL


@pytest.mark.parametrize("envelope", [FULL, PLAIN, MEMBER], ids=["full", "plain", "batch"])
def test_the_members_are_those_of_the_format(envelope: Envelope) -> None:
    fields = fields_of(envelope)
    optional = {"channel_id", "correlation_id"} if envelope is FULL else {"batch"} if envelope is MEMBER else set()
    assert fields.keys() == {*ALWAYS, *optional}
    assert all(type(fields[name]) is int for name in INTEGERS)
    assert fields["sender_nhi"] == "agent-alice-01"
    assert str(UUID(str(fields["message_id"]))) == fields["message_id"]
    for name in BYTES:
        assert base64.urlsafe_b64decode(str(fields[name]) + "==") == getattr(Raw.of(envelope), name)


def test_a_batch_has_index_count_and_path() -> None:
    shown = fields_of(MEMBER)["batch"]
    assert isinstance(shown, dict)
    assert (shown["index"], shown["count"], len(shown["path"])) == (0, 5, 3)
    assert {len(one) for one in shown["path"]} == {43}


def test_control_is_true_or_absent() -> None:
    envelope = sealed(control=True)
    assert fields_of(envelope)["control"] is True
    assert json_form.decode(json_form.encode(envelope)).header.control
    for value in (False, 1, 0, "true", None, [], {}):
        refused_fields({**fields_of(), "control": value})


def test_what_is_empty_is_an_empty_text() -> None:
    raw = Raw.of(FULL).but(suite=4, recipient_nhi=b"", wrapped_key=b"")
    fields = fields_of(wire.decode(raw.wire))
    assert (fields["recipient_nhi"], fields["wrapped_key"]) == ("", "")
    assert json_form.decode(json.dumps(fields).encode()).wire == raw.wire


# Members.


@pytest.mark.parametrize("name", ALWAYS)
def test_a_missing_member_is_refused(name: str) -> None:
    fields = fields_of()
    del fields[name]
    refused_fields(fields)


@pytest.mark.parametrize("name", [*ALWAYS, "channel_id", "correlation_id", "batch", "control"])
def test_null_is_refused(name: str) -> None:
    refused_fields({**fields_of(), name: None})


@pytest.mark.parametrize(
    "name", ["x", "", "flags", "magic", "Version", "version ", "metadata", "\ud800", "a" * 100_000]
)
def test_an_unknown_member_is_refused(name: str) -> None:
    refused_fields({**fields_of(), name: 1})


@pytest.mark.parametrize("name", ALWAYS)
def test_a_member_twice_is_refused(name: str) -> None:
    text = json.dumps(fields_of())
    again = f"{json.dumps(name)}:{json.dumps(fields_of()[name])}"
    refused(("{" + again + "," + text[1:]).encode())
    refused((text[:-1] + "," + again + "}").encode())


def test_a_member_twice_by_escapes_is_refused() -> None:
    text = json.dumps(fields_of())
    for spelling in (r'"priorit\u0079"', r'"\u0070riority"', r'"\u0070\u0072iority"'):
        assert json.loads(spelling) == "priority"
        refused((text[:-1] + f",{spelling}:1}}").encode())


def test_a_member_of_the_batch_twice_is_refused() -> None:
    refused(json_form.encode(MEMBER).replace(b'"index":0', b'"index":0,"index":0'))
    refused(json_form.encode(MEMBER).replace(b'"index":0', b'"index":0,"inde\\u0078":0'))


@pytest.mark.parametrize("suite", [2, 3])
@pytest.mark.parametrize("value", [{}, {"ratchet_pk": ""}, None, True])
def test_a_session_is_refused(suite: int, value: object) -> None:
    refused_fields({**fields_of(), "suite": suite, "session": value}, SuiteRefused)


# Numbers.


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("spell", ["{}.0", "{}e0", "{}E0", "{}e-0", "-{}", "+{}", "0{}", "{}.", '"{}"', "[{}]", "0x{}"])
def test_a_number_has_one_spelling(name: str, spell: str) -> None:
    refused(text_with(name, spell.format(fields_of()[name])))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "literal", ["true", "false", "null", "NaN", "Infinity", "-Infinity", "-0", "-1", "1e400", "{}"]
)
def test_what_is_no_number_is_refused(name: str, literal: str) -> None:
    refused(text_with(name, literal))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("digits", [16, 19, 20, 21, 4299, 4301, 1_000_000])
def test_a_huge_number_is_refused(name: str, digits: int) -> None:
    refused(text_with(name, "9" * digits))


@pytest.mark.parametrize("value", [2**32, 2**53, 2**63, 2**64 - 1, 2**64])
@pytest.mark.parametrize("name", INTEGERS)
def test_a_number_out_of_the_range_of_its_field_is_refused(name: str, value: int) -> None:
    refused_fields({**fields_of(), name: value})


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused(version: int) -> None:
    refused_fields({**fields_of(), "version": version})


def test_unknown_suites_are_refused_and_the_reserved_one_by_its_name() -> None:
    for suite in (0, 5, 255):
        refused_fields({**fields_of(), "suite": suite})
    refused_fields({**fields_of(), "suite": 3}, SuiteRefused)


@pytest.mark.parametrize("name", ["expires_at", "ttl_seconds", "created_at"])
def test_times_that_do_not_agree_are_refused(name: str) -> None:
    value = fields_of()[name]
    assert isinstance(value, int)
    refused_fields({**fields_of(), name: value - 1})


def test_the_ceiling_of_the_ttl_is_an_argument() -> None:
    content = json_form.encode(sealed(ttl_seconds=61))
    assert json_form.decode(content, 61)
    with pytest.raises(Malformed):
        json_form.decode(content, 60)


# Texts.


@pytest.mark.parametrize("name", UUIDS)
@pytest.mark.parametrize(
    "spell",
    [
        str.upper,
        lambda text: text.replace("-", ""),
        lambda text: "{" + text + "}",
        lambda text: "urn:uuid:" + text,
        lambda text: text + "\n",
        lambda text: " " + text,
        lambda text: text[:-1],
        lambda text: text[:-1] + "g",
        lambda text: text[:-1] + "٣",
        lambda text: "",
    ],
    ids=[
        "upper case",
        "bare",
        "braces",
        "urn",
        "newline",
        "space",
        "short",
        "no hex",
        "digit of another script",
        "empty",
    ],
)
def test_a_uuid_has_one_spelling(name: str, spell: Callable[[str], str]) -> None:
    text = "abcdef01-2345-4789-abcd-ef0123456789"
    refused_fields({**fields_of(), name: spell(text)})
    json_form.decode(json.dumps({**fields_of(), name: text}).encode())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", ["", "Alice", "a..b", "a\n", "é", "а", "a\0", "\ud800", "a" * 256, 1, ["a"], {}, True]
)
def test_a_name_that_is_no_handle_is_refused(name: str, value: object) -> None:
    refused_fields({**fields_of(), name: value})


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize(
    "spell",
    [
        lambda text: text + "=",
        lambda text: text + "==",
        lambda text: text[:-1] + "+",
        lambda text: text[:-1] + "/",
        lambda text: text + "\n",
        lambda text: "\n" + text,
        lambda text: text[:4] + " " + text[4:],
        lambda text: text[:4] + "\r\n" + text[4:],
        lambda text: text[:4] + "." + text[4:],
        lambda text: text[:4] + "\0" + text[4:],
        lambda text: text[:4] + "é" + text[4:],
        lambda text: text + "A",
        lambda text: text + "AA",
        lambda text: text[:-1],
        lambda text: text[4:],
        lambda text: "",
        lambda text: "====",
    ],
    ids=range(17),
)
def test_bytes_have_one_spelling(name: str, spell: Callable[[str], str]) -> None:
    """The payload may grow or shrink; every other change of it is refused as well."""
    fields = fields_of()
    text = spell(str(fields[name]))
    fields[name] = text
    try:
        decoded = json_form.decode(json.dumps(fields).encode())
    except Malformed:
        return
    assert name == "encrypted_payload"
    assert base64.urlsafe_b64encode(decoded.ciphertext).decode().rstrip("=") == text


@pytest.mark.parametrize("name", ["auth_tag", "signature_ed25519", "encrypted_payload"])
def test_spare_bits_are_zero(name: str) -> None:
    fields = fields_of()
    text = str(fields[name])
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spare = {0: 0, 1: 4, 2: 2}[len(base64.urlsafe_b64decode(text + "==")) % 3]
    assert spare
    for bits in range(1, 1 << spare):
        other = text[:-1] + alphabet[alphabet.index(text[-1]) | bits]
        assert base64.urlsafe_b64decode(other + "==") == base64.urlsafe_b64decode(text + "==")
        refused_fields({**fields, name: other})


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("value", [None, 1, True, ["AAAA"], {"a": "AAAA"}])
def test_bytes_are_a_text(name: str, value: object) -> None:
    refused_fields({**fields_of(), name: value})


@pytest.mark.parametrize("moved", [-16, -1, 1, 16, 64])
def test_the_border_between_tag_and_signature_cannot_be_moved(moved: int) -> None:
    """Side by side they are the same bytes, so the wire would be the same: two JSON forms of one envelope."""
    joined = FULL.tag + FULL.signatures.ed25519
    tag, ed25519 = joined[: 16 + moved], joined[16 + moved :]
    refused_fields({**fields_of(), "auth_tag": json_form.to_text(tag), "signature_ed25519": json_form.to_text(ed25519)})


def test_no_border_of_any_two_byte_fields_can_be_moved() -> None:
    fields = fields_of()
    for one, other in pairwise(BYTES):
        first, second = (json_form.from_text(fields[name]) for name in (one, other))
        for moved in (-1, 1):
            joined = first + second
            texts = {one: joined[: len(first) + moved], other: joined[len(first) + moved :]}
            changed = json.dumps({**fields, **{name: json_form.to_text(raw) for name, raw in texts.items()}})
            refused(changed.encode())


# The batch.


@pytest.mark.parametrize(
    "change",
    [
        {"index": 5},
        {"index": -1},
        {"index": True},
        {"index": "0"},
        {"index": 65536},
        {"index": None},
        {"count": 0},
        {"count": 257},
        {"count": 65536},
        {"count": 5.0},
        {"count": True},
        {"path": None},
        {"path": "AAAA"},
        {"path": {}},
        {"path": []},
        {"path": [1, 2, 3]},
        {"path": ["AAAA"] * 3},
        {"path": ["A" * 42 + "B"] * 3},
        {"path": ["A" * 43] * 2},
        {"path": ["A" * 43] * 4},
        {"path": ["A" * 43] * 300},
        {"path": [["A" * 43]] * 3},
        {"depth": 3},
        {"x": 1},
    ],
    ids=json.dumps,
)
def test_a_batch_that_is_not_possible_is_refused(change: dict[str, object]) -> None:
    given_batch = fields_of(MEMBER)["batch"]
    assert isinstance(given_batch, dict)
    refused_fields({**fields_of(MEMBER), "batch": {**given_batch, **change}})


@pytest.mark.parametrize("value", [None, [], {}, True, 1, "batch", [{"index": 0}], {"index": 0, "count": 1}])
def test_what_is_no_batch_is_refused(value: object) -> None:
    refused_fields({**fields_of(MEMBER), "batch": value})


# The text itself.


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b"1",
        b"{",
        b"}",
        b"\xff",
        b"{\x80}",
        b"\x00",
        json_form.encode(FULL)[:-1],
        json_form.encode(FULL) + b"}",
        json_form.encode(FULL) + b"x",
        json_form.encode(FULL) * 2,
        b"[" + json_form.encode(FULL) + b"]",
        b"\xef\xbb\xbf" + json_form.encode(FULL),
        json_form.encode(FULL).decode().encode("utf-16"),
        json_form.encode(FULL).decode().encode("utf-32"),
        json_form.encode(FULL).replace(b",", b",,", 1),
        json_form.encode(FULL)[:-1] + b",}",
        json_form.encode(FULL).replace(b'"', b"'"),
        b"/* a comment */" + json_form.encode(FULL),
        json_form.encode(FULL) + b"\x0b",
        json_form.encode(FULL) + b"\xc2\xa0",
        json_form.encode(FULL).replace(b"agent-alice-01", b"agent-\xffalice"),
        json_form.encode(FULL).replace(b"agent-alice-01", b"agent-\xed\xa0\x80"),
        json_form.encode(FULL).replace(b"agent-alice-01", b"agent-\xc0\xaf"),
        json_form.encode(FULL).replace(b"agent-alice-01", b"agent-\nalice"),
    ],
    ids=range(30),
)
def test_what_is_not_one_json_object_in_utf8_is_refused(content: bytes) -> None:
    refused(content)


@pytest.mark.parametrize("levels", [2, 5, 100, 1_000, 100_000, 400_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'], ids=["lists", "objects"])
def test_deep_nesting_is_refused(levels: int, brackets: str) -> None:
    opening, closing = brackets[:-1], brackets[-1]
    nested = opening * levels + "1" + closing * levels
    refused(nested.encode())
    refused(text_with("nonce", nested))
    refused(text_with("x", nested))
    refused((opening * levels).encode())


def test_text_beyond_the_limit_is_refused() -> None:
    content = json_form.encode(FULL)
    assert json_form.decode(content.ljust(MAX_JSON)) == FULL
    with pytest.raises(Malformed, match="at most"):
        json_form.decode(content.ljust(MAX_JSON + 1))


@given(st.binary(max_size=200))
def test_no_random_bytes_are_an_envelope(content: bytes) -> None:
    refused(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_other_json_is_an_envelope(value: object) -> None:
    refused(json.dumps(value).encode())


@given(st.binary(max_size=100))
def test_base64url_comes_back(raw: bytes) -> None:
    assert json_form.from_text(json_form.to_text(raw)) == raw


@given(st.text("AQgw-_/+= \n", max_size=12))
def test_a_text_is_base64url_in_one_spelling_or_not_at_all(text: str) -> None:
    try:
        raw = json_form.from_text(text)
    except Malformed:
        return
    assert json_form.to_text(raw) == text
