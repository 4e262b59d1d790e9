"""Hostile bytes by the hundred thousand: none accepted, no other exception, never a second form of an envelope."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import fields as fields_of

import pytest

from angelia.envelope import json_form, wire
from angelia.envelope.merkle_batch import VerifiedRoots
from angelia.envelope.refusals import Refused
from angelia.envelope.wire import Envelope
from envelope.reference import Raw
from envelope.samples import CHANNEL, CORRELATION, ML_KEM, XWING, open_envelope, sealed, sealed_batch

ORIGINALS = [
    sealed(ML_KEM),
    sealed(XWING),
    sealed(ML_KEM, b"again " * 40, compression=1, padme=True),
    sealed(XWING, channel_id=CHANNEL, correlation_id=CORRELATION),
    sealed(XWING, b"\2", control=True),
    *sealed_batch(3, ML_KEM),
    *sealed_batch(5, XWING),
]
WIRES = {envelope.wire for envelope in ORIGINALS}
RAWS = [Raw.of(envelope) for envelope in ORIGINALS]
TEXTS = [json_form.encode(envelope) for envelope in ORIGINALS]
MEMBERS = [json.loads(text) for text in TEXTS]
NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 16, 127, 255, 256, 1088, 1120, 3309, 2**16 - 1, 2**31, 2**32 - 1, 2**53, 2**64 - 1]
NAMES = [field.name for field in fields_of(Raw)]

Mutator = Callable[[random.Random], bytes]


# Mutations of the wire form.


def flipped(chance: random.Random) -> bytes:
    content = bytearray(chance.choice(RAWS).wire)
    for _ in range(chance.choice([1, 1, 2, 8])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content)


def flipped_in_head(chance: random.Random) -> bytes:
    """Most bytes of an envelope are noise; these decide how the rest is read."""
    content = bytearray(chance.choice(RAWS).wire)
    for _ in range(chance.choice([1, 1, 2])):
        content[chance.randrange(140)] = chance.choice(NUMBERS) & 0xFF
    return bytes(content)


def cut_or_grown(chance: random.Random) -> bytes:
    content = chance.choice(RAWS).wire
    at = chance.randrange(len(content))
    some = chance.randbytes(chance.choice([1, 2, 16, 100]))
    return chance.choice(
        [
            *(content[:at], content[at:], content + some, some + content, content + content[at:]),
            *(content[:at] + some + content[at:], content[:at] + content[at + len(some) :]),
        ]
    )


def lengths_lied_about(chance: random.Random) -> bytes:
    raw = chance.choice(RAWS)
    content = bytearray(raw.wire)
    at_names, at_payload = 78, len(raw.head)
    at, size = chance.choice(
        [
            (at_names, 2),
            (at_names + 2 + len(raw.sender_nhi), 2),
            (at_payload - len(raw.wrapped_key) - 2, 2),
            (at_payload, 4),
            (at_payload + 4 + len(raw.encrypted_payload) + 16 + 64, 2),
        ]
    )
    true = int.from_bytes(content[at : at + size])
    lie = chance.choice([*NUMBERS, true - 1, true + 1, true ^ 0x100, chance.getrandbits(8 * size)])
    content[at : at + size] = (lie % 256**size).to_bytes(size)
    return bytes(content)


def spliced(chance: random.Random) -> bytes:
    one, other = chance.choice(RAWS).wire, chance.choice(RAWS).wire
    at = chance.randrange(len(one))
    until = chance.randrange(at, len(one))
    return chance.choice([one[:at] + other[at:], one[:at] + other[at:until] + one[until:]])


def fields_exchanged(chance: random.Random) -> bytes:
    one, other = chance.choice(RAWS), chance.choice(RAWS)
    names = chance.sample(NAMES, chance.choice([1, 1, 2, 3, 8]))
    return one.but(**{name: getattr(other, name) for name in names}).wire


BITS = {"version": 8, "suite": 8, "flags": 16, "created_at": 64, "expires_at": 64, "ttl_seconds": 32}


def fields_rewritten(chance: random.Random) -> bytes:
    raw = chance.choice(RAWS)
    for name in chance.sample(NAMES, chance.choice([1, 1, 1, 2, 3])):
        value = getattr(raw, name)
        if isinstance(value, int):
            size = BITS.get(name, 8)
            number = chance.choice([*NUMBERS, value + 1, value - 1, value ^ 1 << chance.randrange(size)])
            raw = raw.but(**{name: number % (1 << size)})
        else:
            lengths = [len(value), len(value), len(value) + 1, max(0, len(value) - 1), 0, 16, 32]
            raw = raw.but(**{name: chance.randbytes(chance.choice(lengths))})
    if chance.random() < 0.5:
        raw = raw.but(expires_at=(raw.created_at + 1000 * raw.ttl_seconds) % 2**64)
    return raw.wire


def noise(chance: random.Random) -> bytes:
    start = chance.choice([b"", b"AGLE", b"AGLE\1\2\0\0", chance.choice(RAWS).head])
    return start + chance.randbytes(chance.choice([0, 1, 50, 500, 6000]))


# Mutations of the JSON form.


def text_changed(chance: random.Random) -> bytes:
    text = bytearray(chance.choice(TEXTS))
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(text)) if chance.random() < 0.3 else chance.randrange(600)
        text[at : at + chance.choice([0, 1])] = bytes([chance.choice(b'"\\{}[],:01-.e \0\xff')])
    return bytes(text)


def text_cut(chance: random.Random) -> bytes:
    one, other = chance.choice(TEXTS), chance.choice(TEXTS)
    at = chance.randrange(len(one))
    return chance.choice([one[:at], one[at:], one[:at] + other[at:], one + other, b"\xef\xbb\xbf" + one, b"[" * at])


VALUES: list[object] = [None, True, False, 0, 1, 3, -1, 1.0, 1e300, "", "A", "AAAA", "=", [], {}, [[]], {"index": 0}]
VALUES += [*NUMBERS, "agent-bob-02", str(CHANNEL), "\ud800", "é", float("nan")]


def members_changed(chance: random.Random) -> bytes:
    members = dict(chance.choice(MEMBERS))
    other = chance.choice(MEMBERS)
    for name in chance.sample([*members, "batch", "control", "session", "x"], chance.choice([1, 1, 2])):
        how = chance.random()
        if how < 0.3 and name in other:
            members[name] = other[name]
        elif how < 0.5:
            members.pop(name, None)
        else:
            members[name] = chance.choice(VALUES)
    return json.dumps(members).encode()


def respelt(chance: random.Random) -> bytes:
    """The same values in other spellings: some are the same envelope, the others none."""
    members = list(chance.choice(MEMBERS).items())
    chance.shuffle(members)
    name, value = members[0]
    spelling = json.dumps(value)
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        spelling = chance.choice(
            [
                spelling[:-1] + '="',
                spelling[:-1] + '\\n"',
                json.dumps(value.upper()),
                json.dumps(value.replace("-", "+").replace("_", "/")),
                json.dumps(value[:-1] + chance.choice("AQgwBRhx")),
                json.dumps(value[:at])[:-1] + f"\\u{ord(value[at]):04x}" + json.dumps(value[at + 1 :])[1:],
                json.dumps(value[:at] + " " + value[at:]),
            ]
        )
    elif isinstance(value, int):
        spelling = chance.choice([f"{value}.0", f"{value}e0", f"-{value}", f"0{value}", f" {value} ", f'"{value}"'])
    rest = [f"{json.dumps(other)}:{json.dumps(content)}" for other, content in members[1:]]
    twice = [f"{json.dumps(name)}:{json.dumps(value)}"] if chance.random() < 0.2 else []
    comma = chance.choice([",", " , ", ",\n"])
    return ("{" + comma.join([f"{json.dumps(name)}:{spelling}", *rest, *twice]) + "}").encode()


ON_THE_WIRE: list[Mutator] = [
    *(flipped, flipped_in_head, cut_or_grown, lengths_lied_about),
    *(spliced, fields_exchanged, fields_rewritten, noise),
]
IN_JSON: list[Mutator] = [text_changed, text_cut, members_changed, respelt]


def attack(inputs: int, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    warm = VerifiedRoots()
    for envelope in ORIGINALS:
        open_envelope(envelope, roots=warm)
    seen: Counter[str] = Counter()
    for number in range(inputs):
        mutate = chance.choice(ON_THE_WIRE if number % 3 else IN_JSON)
        content = mutate(chance)
        assert isinstance(content, bytes)
        try:
            envelope = json_form.decode(content) if mutate in IN_JSON else wire.decode(content)
            check_form(envelope, content, in_json=mutate in IN_JSON)
            seen["parsed"] += 1
            open_envelope(envelope, roots=chance.choice([None, warm]))
        except Refused:
            seen["refused"] += 1
        else:
            assert envelope.wire in WIRES, (mutate.__name__, content)
            seen["original"] += 1
    print(dict(seen))
    assert seen["refused"] + seen["original"] == inputs
    # Mutations that are all stopped at the first check, or that change nothing, would test nothing.
    assert seen["parsed"] > inputs // 10
    assert seen["refused"] > inputs // 2


def check_form(envelope: Envelope, content: bytes, *, in_json: bool) -> None:
    if not in_json:
        assert envelope.wire == content
    again = wire.decode(envelope.wire)
    assert again == envelope
    assert again.replay_key == json_form.decode(json_form.encode(envelope)).replay_key


@pytest.mark.parametrize("part", range(10))
def test_no_changed_envelope_is_accepted(part: int) -> None:
    attack(10_000, part)


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(10))
def test_no_changed_envelope_is_accepted_for_long(part: int) -> None:
    attack(100_000, int.from_bytes(os.urandom(6)))
