"""A witness holds a node to what it signed, even when the node itself has forgotten."""

from __future__ import annotations

import asyncio
import base64
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import msgspec
import pytest
import structlog

from angelia.audit import service
from angelia.audit.model import Checkpoint, Verdict, Verifier
from angelia.audit.service import Audit
from angelia.audit.witness_client import CheckpointHandover, FileWitness, NodeWitness, Witness, witness_at
from angelia.audit.witness_service import MOST_NODES, Witnessed
from angelia.errors import Conflict, Denied, InvalidArgument, Unavailable
from angelia.keys.node_key import NodeKey, load_or_make
from angelia.stores.ledger import Ledger
from angelia.stores.private_files import write_private
from client.recorder import recording
from http_agents import Server
from server_process import ServerProcess

NOW = datetime(2026, 11, 15, 20, 0, tzinfo=UTC)


@pytest.fixture
def node(tmp_path: Path) -> NodeKey:
    return load_or_make(tmp_path / "node.key")


async def seal(ledger: Ledger, node: NodeKey, now: datetime, count: int = 3) -> None:
    async with ledger.transaction() as tx:
        await service.record(tx, [service.event("tested", NOW, detail={"n": n}) for n in range(count)])
    assert (await Audit(ledger).seal(node, now)).refused is None


async def verify(ledger: Ledger, node: NodeKey, witness: Witness) -> Verdict:
    audit, verifier = Audit(ledger), Verifier(node.key_id, node.public_key, node.signed())
    verifier.compare(await asyncio.to_thread(lambda: list(witness.checkpoints(node.key_id))))
    verifier.expect(await audit.checkpoints(0, 1000))
    page = await audit.chain(0, 1000)
    verifier.feed(page.entries, page.floor)
    return verifier.finish(page.sealed_to, *await audit.unsealed(1000))


async def rebuild(connection: asyncpg.Connection, node: NodeKey, ledger: Ledger, directory: Path) -> None:
    """What SQL and the files of the node can do together: leave out an event, and have all of it signed anew."""
    (directory / "node.signed").unlink()
    await connection.execute(
        "DELETE FROM audit_events WHERE event_id = (SELECT event_id FROM audit_chain WHERE position = 2)"
    )
    await connection.execute("TRUNCATE audit_chain, audit_checkpoints")
    await connection.execute("UPDATE audit_sealer SET position = 0, next_xid = '0', entry_hash = $1", bytes(32))
    await Audit(ledger).seal(node, NOW + timedelta(minutes=5))


async def test_a_file_keeps_every_checkpoint_and_finds_a_chain_that_was_signed_anew(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    witness = FileWitness(tmp_path / "elsewhere", begins=True)
    handing = CheckpointHandover(node, witness)
    for second in range(4):
        await seal(ledger, node, NOW + timedelta(seconds=second))
        await handing.hand_over(NOW)
    assert [one.position for one in witness.checkpoints(node.key_id)] == [3, 6, 9, 12]
    sound = await verify(ledger, node, witness)
    assert (sound.broken, sound.witnessed) == ([], 4)

    await rebuild(connection, node, ledger, tmp_path)
    found = (await verify(ledger, node, witness)).broken
    assert [(fault.position, fault.what) for fault in found] == [
        (3, "is not what the witness was shown"),
        (6, "is not what the witness was shown"),
        (9, "is not what the witness was shown"),
        (12, "was shown to the witness, but the chain ends before it"),
    ]


async def test_two_forms_of_one_checkpoint_are_found_whichever_the_ledger_has(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    witness = FileWitness(tmp_path / "elsewhere", begins=True)
    await seal(ledger, node, NOW)
    await CheckpointHandover(node, witness).hand_over(NOW)
    await rebuild(connection, node, ledger, tmp_path)
    await seal(ledger, node, NOW + timedelta(minutes=6), count=1)
    last = node.checkpoint()
    assert last is not None
    witness.take(node.public_key, last)
    found = (await verify(ledger, node, witness)).broken
    assert (3, "was shown to the witness in two forms") in [(fault.position, fault.what) for fault in found]


async def test_a_file_that_a_power_cut_tore_goes_on_behind_the_tear(
    ledger: Ledger, node: NodeKey, tmp_path: Path
) -> None:
    path = tmp_path / "elsewhere"
    handing = CheckpointHandover(node, FileWitness(path, begins=True))
    await seal(ledger, node, NOW)
    await handing.hand_over(NOW)
    with path.open("ab") as file:
        file.write(b'{"position": 6, "entry_ha')
    await seal(ledger, node, NOW + timedelta(seconds=1))
    await CheckpointHandover(node, FileWitness(path)).hand_over(NOW)
    assert [one.position for one in FileWitness(path).checkpoints(node.key_id)] == [3, 6]


async def test_a_changed_line_of_the_file_is_no_proof(ledger: Ledger, node: NodeKey, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere"
    await seal(ledger, node, NOW)
    await CheckpointHandover(node, FileWitness(path, begins=True)).hand_over(NOW)
    (line,) = FileWitness(path).checkpoints(node.key_id)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(line, entry_hash="00" * 32)) + b"\n")
    (fault,) = (await verify(ledger, node, FileWitness(path))).broken
    assert (fault.position, fault.what) == (3, "is kept by the witness with a wrong signature")


@pytest.mark.parametrize("claimed", ["by another key", "by the node's own"])
async def test_rows_that_sql_writes_keep_nothing_from_the_witness(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, tmp_path: Path, claimed: str
) -> None:
    witness = FileWitness(tmp_path / "elsewhere", begins=True)
    handing = CheckpointHandover(node, witness)
    await seal(ledger, node, NOW)
    await handing.hand_over(NOW)
    await connection.execute(
        """INSERT INTO audit_checkpoints (position, entry_hash, node_key_id, signed_at, signature)
           VALUES ($1, $2, $3, $4, $5)""",
        2**50,
        bytes(32),
        node.key_id if claimed == "by the node's own" else uuid4(),
        NOW,
        bytes(64),
    )
    await handing.hand_over(NOW + timedelta(seconds=1))
    await seal(ledger, node, NOW + timedelta(seconds=2))
    await handing.hand_over(NOW + timedelta(seconds=2))
    assert [one.position for one in witness.checkpoints(node.key_id)] == [3, 6]


@pytest.mark.parametrize(
    "statement",
    [
        """INSERT INTO audit_checkpoints (position, entry_hash, node_key_id, signed_at, signature)
           SELECT n, sha256('x'), gen_random_uuid(), now(), decode(repeat('00', 64), 'hex')
           FROM generate_series(4, 500) n""",
        """CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
           CREATE TRIGGER swallow BEFORE INSERT ON audit_checkpoints FOR EACH ROW EXECUTE FUNCTION swallow()""",
    ],
    ids=["rows in the way", "a trigger"],
)
async def test_a_ledger_that_keeps_no_checkpoint_keeps_none_from_the_witness(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, tmp_path: Path, statement: str
) -> None:
    witness = FileWitness(tmp_path / "elsewhere", begins=True)
    handing = CheckpointHandover(node, witness)
    await seal(ledger, node, NOW)
    await handing.hand_over(NOW)
    await connection.execute(statement)
    for second in (1, 2):
        await seal(ledger, node, NOW + timedelta(seconds=second))
        await handing.hand_over(NOW + timedelta(seconds=second))
    assert [one.position for one in witness.checkpoints(node.key_id)] == [3, 6, 9]


async def test_what_the_build_before_remembered_is_signed_again_for_the_witness(
    ledger: Ledger, node: NodeKey, tmp_path: Path
) -> None:
    """Its memory has no signature; and the ledger's copy of it may have been removed."""
    for second in range(3):
        await seal(ledger, node, NOW + timedelta(seconds=second))
    (*_, newest) = kept = await Audit(ledger).checkpoints(0, 10)
    memory = {"position": newest.position, "entry_hash": newest.entry_hash}
    write_private(tmp_path / "node.signed", msgspec.json.encode(memory))
    witness = FileWitness(tmp_path / "elsewhere", begins=True)
    handing = CheckpointHandover(node, witness)
    await handing.hand_over(NOW)
    assert list(witness.checkpoints(node.key_id)) == []
    assert (await Audit(ledger).seal(node, NOW + timedelta(hours=1))).refused is None
    await handing.hand_over(NOW + timedelta(hours=1))
    assert [one.position for one in witness.checkpoints(node.key_id)] == [9]
    assert await Audit(ledger).checkpoints(0, 10) == kept
    assert (await verify(ledger, node, witness)).broken == []


async def test_a_line_that_the_node_did_not_sign_is_not_the_newest(
    ledger: Ledger, node: NodeKey, tmp_path: Path
) -> None:
    path = tmp_path / "elsewhere"
    witness = FileWitness(path, begins=True)
    await seal(ledger, node, NOW)
    await CheckpointHandover(node, witness).hand_over(NOW)
    (line,) = witness.checkpoints(node.key_id)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(msgspec.structs.replace(line, position=2**50)) + b"\n")
    assert witness.newest(node.public_key) == 3
    await seal(ledger, node, NOW + timedelta(seconds=1))
    await CheckpointHandover(node, witness).hand_over(NOW)
    assert [one.position for one in witness.checkpoints(node.key_id)] == [3, 2**50, 6]


async def test_a_witness_that_is_away_stops_no_sealing_and_gets_the_newest_when_it_is_back(
    ledger: Ledger, node: NodeKey, tmp_path: Path
) -> None:
    place = tmp_path / "not-mounted/elsewhere"
    handing = CheckpointHandover(node, FileWitness(place, begins=True))
    for minute in range(3):
        at = NOW + timedelta(minutes=minute)
        await seal(ledger, node, at)
        assert not await handing.hand_over(at)
    place.parent.mkdir()
    assert not await handing.hand_over(at)  # not asked again so soon
    assert not place.exists()
    await handing.hand_over(at + timedelta(seconds=30))
    assert [one.position for one in FileWitness(place).checkpoints(node.key_id)] == [9]


async def test_the_log_says_how_far_a_witness_falls_behind(ledger: Ledger, node: NodeKey, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    handing = CheckpointHandover(node, FileWitness(place, begins=True))
    await seal(ledger, node, NOW)
    await handing.hand_over(NOW)
    place.unlink()
    place.mkdir()
    await seal(ledger, node, NOW + timedelta(seconds=1))
    with structlog.testing.capture_logs() as lines:
        await handing.hand_over(NOW + timedelta(seconds=1))
    (line,) = lines
    assert (line["log_level"], line["witness_has"], line["signed_to"]) == ("warning", 3, 6)
    assert (await verify(ledger, node, FileWitness(tmp_path / "missing"))).witness_behind == 6


async def test_a_witness_that_knows_more_than_the_node_remembers_is_told(
    ledger: Ledger, node: NodeKey, tmp_path: Path
) -> None:
    """A data directory of before, with its ledger, or a memory that was replaced."""
    witness = FileWitness(tmp_path / "elsewhere", begins=True)
    await seal(ledger, node, NOW)
    before = (tmp_path / "node.signed").read_bytes()
    await seal(ledger, node, NOW + timedelta(seconds=1))
    await CheckpointHandover(node, witness).hand_over(NOW)
    write_private(tmp_path / "node.signed", before)
    with structlog.testing.capture_logs() as lines:
        await CheckpointHandover(node, witness).hand_over(NOW)
    (line,) = lines
    assert line["log_level"] == "error"
    assert line["why"] == "it has checkpoint 6 of this node, which remembers 3 as its last"


def test_a_node_that_repeats_a_page_is_not_asked_for_ever(node: NodeKey) -> None:
    page = {"checkpoints": [msgspec.to_builtins(signed(node, position, bytes(32))) for position in (1, 2)]}
    with recording() as liar:
        liar.tell("GET", "/v1/audit/witnessed", page)
        witness = NodeWitness(liar.url.replace("://", "://:agt_x@"))
        with pytest.raises(Unavailable, match="after 2, and gave earlier ones"):
            list(witness.checkpoints(node.key_id))
        assert len(liar.asked("GET", "/v1/audit/witnessed")) == 2


async def test_a_witness_that_is_not_mounted_gets_no_second_file(ledger: Ledger, node: NodeKey, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    witness = FileWitness(place, begins=True)
    handing = CheckpointHandover(node, witness)
    await seal(ledger, node, NOW)
    await handing.hand_over(NOW)
    kept = place.rename(tmp_path / "not mounted")
    for started_again in (handing, CheckpointHandover(node, FileWitness(place))):
        await seal(ledger, node, NOW + timedelta(minutes=1))
        with structlog.testing.capture_logs() as lines:
            await started_again.hand_over(NOW + timedelta(minutes=1))
        assert "is not there: is its disk mounted?" in lines[0]["why"]
        assert not place.exists()
    kept.rename(place)
    await handing.hand_over(NOW + timedelta(minutes=2))
    assert [one.position for one in witness.checkpoints(node.key_id)] == [3, 9]


async def test_a_witness_refuses_what_goes_back_or_tells_another_story(ledger: Ledger, node: NodeKey) -> None:
    witnessed = Witnessed(ledger)
    for minute in range(3):
        await seal(ledger, node, NOW + timedelta(minutes=minute))
    told = await Audit(ledger).checkpoints(0, 10)
    assert await witnessed.take(node.public_key, told[:2], NOW) == 6
    assert await witnessed.take(node.public_key, told[1:2], NOW) == 6  # the same once more
    with pytest.raises(Conflict):
        await witnessed.take(node.public_key, told[:1], NOW)
    other = signed(node, 6, bytes(32))
    with pytest.raises(Conflict):
        await witnessed.take(node.public_key, [other], NOW)
    forged = msgspec.structs.replace(told[2], entry_hash="00" * 32)
    with pytest.raises(InvalidArgument):
        await witnessed.take(node.public_key, [forged], NOW)
    assert await witnessed.take(node.public_key, told[2:], NOW) == 9
    assert await witnessed.of_node(node.key_id, 0, 10) == told


async def test_of_two_stories_told_at_once_one_is_kept(ledger: Ledger, node: NodeKey) -> None:
    witnessed = Witnessed(ledger)
    stories = [signed(node, 5, secrets.token_bytes(32)) for _ in range(8)]
    ended = await asyncio.gather(
        *(witnessed.take(node.public_key, [story], NOW) for story in stories), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in ended) == ["Conflict"] * 7 + ["int"]
    assert len(await witnessed.of_node(node.key_id, 0, 10)) == 1


async def test_who_may_not_write_is_no_node_to_witness_for(start, node: NodeKey) -> None:
    server: Server = await start()
    told = {"public_key": base64.b64encode(node.public_key).decode(), "checkpoints": []}
    assert (await server.post("/v1/audit/witnessed", json=told)).status_code == 401
    made = (await server.post("/v1/tokens", json={"role": "read-only"}, headers=server.admin)).json()
    reading = {"authorization": f"Bearer {made['token']}"}
    assert (await server.post("/v1/audit/witnessed", json=told, headers=reading)).status_code == 403
    answer = await server.post("/v1/audit/witnessed", json=told, headers=server.admin)
    assert (answer.status_code, answer.json()) == (200, {"position": 0})
    for wrong in ("****", base64.b64encode(b"short").decode()):
        answer = await server.post("/v1/audit/witnessed", json=told | {"public_key": wrong}, headers=server.admin)
        assert answer.status_code == 400
    listed = await server.get(f"/v1/audit/witnessed?node={node.key_id}", headers=reading)
    assert listed.json() == {"checkpoints": []}


async def test_an_agent_is_no_node_to_witness_for(start, node: NodeKey, connection: asyncpg.Connection) -> None:
    server: Server = await start()
    mallory = await server.register()
    await server.hot_tier_is_old_enough()
    told = {"public_key": base64.b64encode(node.public_key).decode(), "checkpoints": [signed(node, 1, bytes(32))]}
    answer = await server.send_signed(mallory, "POST", "/v1/audit/witnessed", msgspec.json.encode(told))
    assert answer.status_code == 403
    bound = {"role": "read-write", "agent": mallory.id}
    token = (await server.post("/v1/tokens", json=bound, headers=server.admin)).json()["token"]
    answer = await server.post(
        "/v1/audit/witnessed",
        content=msgspec.json.encode(told),
        headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
    )
    assert answer.status_code == 403
    assert await connection.fetchval("SELECT count(*) FROM audit_witnessed") == 0


async def test_a_server_witnesses_for_so_many_nodes_and_no_more(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, tmp_path: Path
) -> None:
    witnessed = Witnessed(ledger)
    await connection.execute(
        """INSERT INTO audit_witnessed
           SELECT gen_random_uuid(), 1, sha256('x'), now(), decode(repeat('00', 64), 'hex'), now()
           FROM generate_series(2, $1)""",
        MOST_NODES,
    )
    assert await witnessed.take(node.public_key, [signed(node, 1, bytes(32))], NOW) == 1
    other = load_or_make(tmp_path / "other.key")
    with pytest.raises(Denied):
        await witnessed.take(other.public_key, [signed(other, 1, bytes(32))], NOW)
    assert await witnessed.take(node.public_key, [signed(node, 2, bytes(32))], NOW) == 2


@pytest.mark.parametrize(("position", "size"), [(2**63, 32), (1, 31)])
async def test_a_checkpoint_that_no_chain_can_have_is_refused(
    ledger: Ledger, node: NodeKey, position: int, size: int
) -> None:
    with pytest.raises(InvalidArgument):
        await Witnessed(ledger).take(node.public_key, [signed(node, position, bytes(size))], NOW)


async def test_another_node_is_a_witness_that_comes_and_goes(
    ledger: Ledger, node: NodeKey, connection: asyncpg.Connection, tmp_path: Path, directory: Path
) -> None:
    other = ServerProcess(directory / f"witness-{secrets.token_hex(4)}")
    runtime = await asyncio.to_thread(other.start)
    try:
        token = (other.data_dir / "admin.token").read_text().strip()
        witness = witness_at(runtime.url.replace("://", f"://:{token}@"))
        assert isinstance(witness, NodeWitness)
        handing = CheckpointHandover(node, witness)
        await seal(ledger, node, NOW)
        await handing.hand_over(NOW)
        assert await asyncio.to_thread(other.stop) == 0

        for minute in (1, 2):
            await seal(ledger, node, NOW + timedelta(minutes=minute))
            assert not await handing.hand_over(NOW + timedelta(minutes=minute))
        with pytest.raises(Unavailable):
            await asyncio.to_thread(witness.newest, node.public_key)

        await asyncio.to_thread(other.start)
        await handing.hand_over(NOW + timedelta(minutes=3))
        sound = await verify(ledger, node, witness)
        assert (sound.broken, sound.witnessed, sound.witness_behind) == ([], 2, 0)

        await rebuild(connection, node, ledger, tmp_path)
        await seal(ledger, node, NOW + timedelta(minutes=6), count=20)
        await CheckpointHandover(node, witness).hand_over(NOW + timedelta(minutes=7))
        told = (await verify(ledger, node, witness)).broken
        assert {fault.position for fault in told} == {3, 9}
    finally:
        other.stop()


def signed(node: NodeKey, position: int, head: bytes) -> Checkpoint:
    signature = node.sign(service.checkpoint_bytes(position, head, NOW))
    return Checkpoint(
        position=position, entry_hash=head.hex(), node_key_id=node.key_id, signed_at=NOW, signature=signature.hex()
    )
