"""Verification in words: sound, or the exact entry that is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.audit.model import GENESIS, Event, Floor, checkpoint_bytes, entry_hash
from angelia.cli import audit
from angelia.envelope.ids import KeyType, key_id
from angelia.pipeline.lake.audit_chain import properties
from angelia.pipeline.lake.commit import Mark, commit, opened
from angelia.pipeline.lake.tables import AUDIT
from angelia.pipeline.lake.writer import Files
from angelia.stores.objects import Objects
from angelia.stores.private_files import write_private
from cli.running import Angelia
from client.recorder import Recorder
from lake_tables import rows

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
NO_FLOOR = {"position": 0, "entry_hash": "00" * 32}
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
    floor: dict[str, Any] = field(default_factory=lambda: plain(Floor()))

    def __post_init__(self) -> None:
        previous = GENESIS
        for position in range(1, self.count + 1):
            event = self.event(position)
            previous = entry_hash(previous, position, bytes.fromhex(event["event_hash"]))
            self.entries.append(
                {"position": position, "event_id": event["event_id"], "entry_hash": previous.hex(), "event": event}
            )
        if self.count:
            self.sign(self.count, SIGNED)

    def sign(self, position: int, at: datetime) -> None:
        head = self.entries[position - 1]["entry_hash"]
        signature = KEY.sign(checkpoint_bytes(position, bytes.fromhex(head), at)).hex()
        named = str(key_id(KeyType.ED25519, PUBLIC))
        self.checkpoints.insert(
            0,
            {"position": position, "entry_hash": head, "node_key_id": named,
             "signed_at": plain(at), "signature": signature},
        )  # fmt: skip

    def let_go(self, position: int) -> list[bytes]:
        """The first entries leave, as an archive run says, or SQL in its place; returns their hashes."""
        self.sign(position, NOON + timedelta(seconds=position))
        gone, self.entries = self.entries[:position], self.entries[position:]
        self.floor = {"position": position, "entry_hash": gone[-1]["entry_hash"]}
        run = Event(
            event_id=UUID(int=99),
            occurred_at=SIGNED,
            event_type="archive_run",
            detail={"job": "archive audit", "to": position},
        )
        self.tail.append({**plain(run), "event_hash": run.hash().hex(), "redacted_at": None, "position": None})
        return [bytes.fromhex(entry["entry_hash"]) for entry in gone]

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
        node = {"key_id": str(key_id(KeyType.ED25519, PUBLIC)), "public_key": plain(PUBLIC), "signed": None}
        server.tell("GET", "/v1/node", node)
        server.tell("GET", "/v1/audit/checkpoints", {"checkpoints": self.checkpoints})
        server.tell("GET", "/v1/audit/checkpoints", {"checkpoints": []})
        half = len(self.entries) // 2
        for entries in (self.entries[:half], self.entries[half:]):
            page = {"entries": entries, "sealed_to": self.count, "floor": self.floor}
            server.tell("GET", "/v1/audit/chain", page)
        server.tell("GET", "/v1/audit/unsealed", {"strays": self.strays, "tail": self.tail})


def test_a_sound_chain_is_counted(server: Recorder, angelia: Angelia) -> None:
    ledger = Ledger(10)
    ledger.tail.append({**ledger.event(11), "position": None})
    ledger.tell(server)
    ended = angelia("audit", "verify")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "10 entries sound, 1 checkpoint, 1 not sealed yet\n"
    assert [seen.query for seen in server.asked("GET", "/v1/audit/chain")] == ["", "after=5"]


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


def archive(lake: Path, hashes: list[bytes]) -> None:
    """An archive with the first entries of a chain."""
    objects = Objects.at(str(lake))
    batch = rows(AUDIT, NOON.date(), len(hashes), 1)
    kept = pa.array(hashes, AUDIT.schema.field("entry_hash").type)
    batch = batch.set_column(AUDIT.schema.get_field_index("entry_hash"), AUDIT.schema.field("entry_hash"), kept)
    with Files(objects, AUDIT, "archive-audit-1") as made:
        made.add(batch)
    assert commit(objects, AUDIT, made.written, Mark("archive audit", len(hashes)))


def test_entries_that_left_are_looked_up_in_the_archive(server: Recorder, angelia: Angelia, shell: Path) -> None:
    ledger = Ledger(10)
    hashes = [bytes.fromhex(entry["entry_hash"]) for entry in ledger.entries]
    ledger.let_go(4)
    ledger.tell(server)
    archive(shell / "lake", hashes[:6])
    ended = angelia("audit", "verify", "--lake", str(shell / "lake"))
    assert (ended.code, ended.out) == (0, "6 entries sound, 2 checkpoints, 1 not sealed yet\n")
    assert ended.err == "4 entries before them are in the archive: angelia pipeline run verify audit\n"


@pytest.mark.parametrize("kept", ["nothing", "too little", "another chain"])
def test_history_that_sql_removed_as_if_it_had_left_for_the_archive_is_found(
    server: Recorder, angelia: Angelia, shell: Path, kept: str
) -> None:
    ledger = Ledger(10)
    hashes = ledger.let_go(4)
    ledger.tell(server)
    data = shell / "data"
    data.mkdir(mode=0o700)
    write_private(data / "node.key", bytes(range(32)))
    if kept != "nothing":
        archive(data / "lake", hashes[:3] if kept == "too little" else [bytes(32)] * 4)
    ended = angelia("audit", "verify")
    assert (ended.code, ended.out) == (3, "")
    what = (
        "is another one in the archive than the ledger says"
        if kept == "another chain"
        else f"is said to have left for the archive, and {data / 'lake'} does not have it"
    )
    assert ended.err.splitlines()[0] == f"error: entry 4 {what} (audit_broken)"


def test_an_archive_that_is_not_read_is_said_not_to_be(server: Recorder, angelia: Angelia) -> None:
    ledger = Ledger(10)
    ledger.let_go(4)
    ledger.tell(server)
    ended = angelia("audit", "verify")
    assert ended.code == 0
    assert ended.err == (
        "4 entries before them are said to be in the archive, which was not read: it lies with the server;"
        " --lake names it\n"
    )


def test_an_archive_that_begins_where_the_ledger_does_proves_nothing(
    server: Recorder, angelia: Angelia, shell: Path
) -> None:
    ledger = Ledger(10)
    ledger.let_go(4)
    ledger.tell(server)
    begun = Floor(4, ledger.floor["entry_hash"])
    table = opened(Objects.at(str(shell / "lake")), AUDIT)
    table.alter.set_table_properties(dict(properties(begun)), raise_if_not_exists=False)
    ended = angelia("audit", "verify", "--lake", str(shell / "lake"))
    assert (ended.code, ended.err) == (
        0,
        "4 entries before them are said to be in the archive, which begins behind them\n",
    )


def witnessed(ledger: Ledger, server: Recorder, path: Path, position: int) -> None:
    """A node that signed all of the ledger, and a witness that was shown so much of it."""
    ledger.sign(position, NOON + timedelta(seconds=position))
    with path.open("ab") as file:
        file.write(json.dumps(ledger.checkpoints[0]).encode() + b"\n")
    node = {"key_id": str(key_id(KeyType.ED25519, PUBLIC)), "public_key": plain(PUBLIC)}
    signed = {"position": ledger.count, "entry_hash": ledger.entries[-1]["entry_hash"]}
    server.tell("GET", "/v1/node", node | {"signed": signed})
    ledger.tell(server)


def test_a_witness_that_is_behind_is_said_to_be(
    server: Recorder, angelia: Angelia, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit.time, "sleep", lambda _seconds: None)
    witnessed(Ledger(10), server, shell / "witness", 4)
    ended = angelia("audit", "verify", "--witness", str(shell / "witness"))
    assert (ended.code, ended.out) == (0, "10 entries sound, 2 checkpoints, 1 as the witness has them\n")
    assert ended.err == "the witness is 6 entries behind what the node signed: the server's log says why\n"


def test_a_checkpoint_that_is_on_its_way_to_the_witness_is_waited_for(
    server: Recorder, angelia: Angelia, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, path = Ledger(10), shell / "witness"
    newest = ledger.checkpoints[0]
    witnessed(ledger, server, path, 4)
    monkeypatch.setattr(
        audit.time, "sleep", lambda _: path.write_bytes(path.read_bytes() + json.dumps(newest).encode() + b"\n")
    )
    ended = angelia("audit", "verify", "--witness", str(path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "10 entries sound, 2 checkpoints, 2 as the witness has them\n"


def test_an_empty_ledger_is_sound(server: Recorder, angelia: Angelia) -> None:
    Ledger(0).tell(server)
    assert angelia("audit", "verify").out == "0 entries sound, 0 checkpoints\n"


def test_events_are_filtered_by_the_server(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/audit/events", {"events": [Ledger(0).event(3)], "next": "c"})
    ended = angelia("audit", "show", "--since", "2026-11-15", "--type", "token_created", "--actor", "alice", "-n", "1")
    assert server.seen[0].query == "limit=1&type=token_created&actor=alice&from=2026-11-15T00%3A00%3A00Z"
    assert ended.out.splitlines() == [
        "POSITION  TIME                  TYPE           ACTOR  OBJECT        DETAIL",
        "       3  2026-11-15 12:00:03Z  token_created  alice  3f0c9d1e-7d3  label=x\\x1b n=3",
    ]
    assert ended.err == "1 shown; --all or --cursor c\n"


def test_one_entry_is_shown_with_its_hashes_and_its_fault(server: Recorder, angelia: Angelia) -> None:
    entry = Ledger(7).entries[6]
    entry["event"]["actor"] = "mallory"
    server.tell("GET", "/v1/audit/chain", {"entries": [entry], "sealed_to": 7, "floor": NO_FLOOR})
    out = angelia("audit", "show", "7").out
    assert server.seen[0].query == "after=6&limit=1"
    assert f"entry hash  {entry['entry_hash']}\n" in out
    assert "fault       does not match its hash\n" in out


def test_the_neighbourhood_of_an_entry_is_a_table(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/audit/chain", {"entries": Ledger(5).entries, "sealed_to": 5, "floor": NO_FLOOR})
    out = angelia("audit", "show", "2", "--around", "3").out
    assert server.seen[0].query == "limit=5"
    assert [line.split()[0] for line in out.splitlines()] == ["POSITION", "1", "2", "3", "4", "5"]


def test_a_gap_in_the_neighbourhood_of_an_entry_has_a_line(server: Recorder, angelia: Angelia) -> None:
    entries = [entry for entry in Ledger(5).entries if entry["position"] != 3]
    server.tell("GET", "/v1/audit/chain", {"entries": entries, "sealed_to": 5, "floor": NO_FLOOR})
    lines = angelia("audit", "show", "2", "--around", "3").out.splitlines()
    assert lines[3].split()[0] == "3"
    assert lines[3].endswith("is missing from the chain")


@pytest.mark.parametrize(
    ("said", "code"), [(["9"], 8), (["seven"], 2), (["0"], 2), (["--around", "3"], 2), (["1,204"], 8)]
)
def test_a_position_that_is_none_is_refused(server: Recorder, angelia: Angelia, said: list[str], code: int) -> None:
    server.tell("GET", "/v1/audit/chain", {"entries": [], "sealed_to": 7, "floor": NO_FLOOR})
    assert angelia("audit", "show", *said).code == code
