"""Verification in words: sound, or the exact entry that is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.audit.model import GENESIS, Event, checkpoint_bytes, entry_hash
from angelia.envelope.ids import KeyType, key_id
from cli.running import Angelia
from client.recorder import Recorder

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SIGNED = NOON + timedelta(hours=1)


def plain(record: object) -> Any:
    return msgspec.to_builtins(record)


@dataclass
class Ledger:
    """A chain of so many events, as the server would give it out."""

    count: int
    entries: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    strays: list[dict[str, Any]] = field(default_factory=list)
    tail: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        previous = GENESIS
        for position in range(1, self.count + 1):
            event = self.event(position)
            previous = entry_hash(previous, position, bytes.fromhex(event["event_hash"]))
            self.entries.append(
                {"position": position, "event_id": event["event_id"], "entry_hash": previous.hex(), "event": event}
            )
        if self.count:
            signature = KEY.sign(checkpoint_bytes(self.count, previous, SIGNED)).hex()
            named = str(key_id(KeyType.ED25519, PUBLIC))
            self.checkpoints.append(
                {"position": self.count, "entry_hash": previous.hex(), "node_key_id": named,
                 "signed_at": plain(SIGNED), "signature": signature}
            )  # fmt: skip

    def event(self, number: int) -> dict[str, Any]:
        event = Event(
            event_id=UUID(int=number),
            occurred_at=NOON + timedelta(seconds=number),
            event_type="token_created",
            actor="alice",
            object="3f0c9d1e-7d31-4a52-9f4e-2b7c51d0aa10",
            detail={"label": "x\x1b", "n": number},
        )
        return {**plain(event), "event_hash": event.hash().hex(), "redacted_at": None, "position": number}

    def tell(self, server: Recorder) -> None:
        server.tell("GET", "/v1/node", {"key_id": str(key_id(KeyType.ED25519, PUBLIC)), "public_key": plain(PUBLIC)})
        server.tell("GET", "/v1/audit/checkpoints", {"checkpoints": self.checkpoints})
        server.tell("GET", "/v1/audit/checkpoints", {"checkpoints": []})
        half = len(self.entries) // 2
        server.tell("GET", "/v1/audit/chain", {"entries": self.entries[:half], "sealed_to": self.count})
        server.tell("GET", "/v1/audit/chain", {"entries": self.entries[half:], "sealed_to": self.count})
        server.tell("GET", "/v1/audit/unsealed", {"strays": self.strays, "tail": self.tail})


def test_a_sound_chain_is_counted(server: Recorder, angelia: Angelia) -> None:
    ledger = Ledger(10)
    ledger.tail.append({**ledger.event(11), "position": None})
    ledger.tell(server)
    ended = angelia("audit", "verify")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "10 entries sound, 1 checkpoint, 1 not sealed yet\n"
    assert [seen.query for seen in server.asked("GET", "/v1/audit/chain")] == [
        "after=0&limit=1000",
        "after=5&limit=1000",
    ]


@pytest.mark.parametrize("what", ["checkpoints", "chain"])
def test_a_server_that_repeats_itself_is_not_asked_for_ever(server: Recorder, angelia: Angelia, what: str) -> None:
    Ledger(10).tell(server)
    server.told["GET", f"/v1/audit/{what}"] = server.told["GET", f"/v1/audit/{what}"][:1]
    ended = angelia("audit", "verify")
    assert ended.err.splitlines()[0].endswith("(bad_answer)")
    assert len(server.asked("GET", f"/v1/audit/{what}")) == 2


def test_a_changed_event_is_named_at_its_exact_entry(server: Recorder, angelia: Angelia) -> None:
    ledger = Ledger(10)
    ledger.entries[6]["event"]["actor"] = "mallory"
    ledger.tell(server)
    ended = angelia("audit", "verify")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err == (
        "error: entry 7 does not match its hash; the 6 before it are sound (audit_broken)\n"
        "hint: angelia audit show 7 --around 3\n"
    )


def test_several_faults_are_listed_and_the_first_is_the_error(server: Recorder, angelia: Angelia) -> None:
    ledger = Ledger(10)
    ledger.entries[2]["event"] = None
    ledger.entries[6]["event"]["actor"] = "mallory"
    ledger.tell(server)
    ended = angelia("audit", "verify")
    assert ended.code == 3
    assert [line.split()[0] for line in ended.out.splitlines()] == ["POSITION", "3", "7"]
    assert ended.err.startswith(
        "error: entry 3 has lost its event; the 2 before it are sound; 1 more fault (audit_broken)"
    )


def test_a_removed_and_an_inserted_row_are_found(server: Recorder, angelia: Angelia) -> None:
    ledger = Ledger(10)
    del ledger.entries[3]
    ledger.strays.append({**ledger.event(99), "position": None})
    ledger.tell(server)
    broken = json.loads(angelia("audit", "verify", "--json").out)["broken"]
    assert {(fault["position"], fault["what"]) for fault in broken} >= {
        (4, "is missing from the chain"),
        (None, "is in no entry of the chain"),
    }


def test_an_empty_ledger_is_sound(server: Recorder, angelia: Angelia) -> None:
    Ledger(0).tell(server)
    assert angelia("audit", "verify").out == "0 entries sound, 0 checkpoints\n"


def test_events_are_filtered_by_the_server(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/audit/events", {"events": [Ledger(0).event(3)], "next": "c"})
    ended = angelia("audit", "show", "--since", "2026-11-15", "--type", "token_created", "--actor", "alice", "-n", "1")
    assert server.seen[0].query == "type=token_created&actor=alice&from=2026-11-15T00%3A00%3A00Z&limit=1"
    assert ended.out.splitlines() == [
        "POSITION  TIME                  TYPE           ACTOR  OBJECT        DETAIL",
        "       3  2026-11-15 12:00:03Z  token_created  alice  3f0c9d1e-7d3  label=x\\x1b n=3",
    ]
    assert ended.err == "1 shown; --all or --cursor c\n"


def test_one_entry_is_shown_with_its_hashes_and_its_fault(server: Recorder, angelia: Angelia) -> None:
    entry = Ledger(7).entries[6]
    entry["event"]["actor"] = "mallory"
    server.tell("GET", "/v1/audit/chain", {"entries": [entry], "sealed_to": 7})
    out = angelia("audit", "show", "7").out
    assert server.seen[0].query == "after=6&limit=1"
    assert f"entry hash  {entry['entry_hash']}\n" in out
    assert "fault       does not match its hash\n" in out


def test_the_neighbourhood_of_an_entry_is_a_table(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/audit/chain", {"entries": Ledger(5).entries, "sealed_to": 5})
    out = angelia("audit", "show", "2", "--around", "3").out
    assert server.seen[0].query == "after=0&limit=5"
    assert [line.split()[0] for line in out.splitlines()] == ["POSITION", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("said", "code"), [(["9"], 8), (["seven"], 2), (["0"], 2), (["--around", "3"], 2), (["1,204"], 8)]
)
def test_a_position_that_is_none_is_refused(server: Recorder, angelia: Angelia, said: list[str], code: int) -> None:
    server.tell("GET", "/v1/audit/chain", {"entries": [], "sealed_to": 7})
    assert angelia("audit", "show", *said).code == code
