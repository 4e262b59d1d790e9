"""A data directory of an earlier build opens, is brought up to date, and is sound; and SQL on it finds no way out."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from angelia.runtime_file import Runtime
from server_process import ServerProcess
from store_probes import until

FIXTURE = Path(__file__).parents[1] / "fixtures/before/data.tar.xz"
SECRETS = ("node.key", "node.signed", "master.key", "admin.token", "postgres.password", "valkey.password")
PROGRAM = [sys.executable, "-c", "from angelia.cli.main import main; main()"]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


class Upgraded(ServerProcess):
    """The server on a copy of the earlier build's directory."""

    runtime: Runtime

    def verify(self, *options: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "ANGELIA_DATA_DIR": str(self.data_dir), "ANGELIA_HOME": str(self.data_dir / "agents")}
        return subprocess.run(
            [*PROGRAM, "audit", "verify", *options],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Upgraded]:
    place = directory / f"upgraded-{secrets.token_hex(4)}"
    place.mkdir(mode=0o755)
    owners = ["--same-owner"] if os.geteuid() == 0 else ["--no-same-owner"]
    subprocess.run(["tar", "-xJpf", FIXTURE, *owners, "-C", place], check=True)
    (place / "witness").touch()  # by hand, since this node has signed before
    server = Upgraded(place / "data", audit_witness=str(place / "witness"))
    server.runtime = server.start()
    yield server
    server.stop()


def test_a_data_directory_of_the_build_before_opens_and_verifies(server: Upgraded) -> None:
    told = server.verify()
    assert (told.returncode, told.stderr) == (0, ""), told
    assert "sound" in told.stdout


def test_a_witness_named_by_a_setting_is_handed_the_checkpoints_and_compared(server: Upgraded) -> None:
    witness = server.data_dir.with_name("witness")
    until(lambda: witness.exists() and witness.stat().st_size > 0)
    told = server.verify("--witness", str(witness))
    assert (told.returncode, told.stderr) == (0, ""), told
    assert "as the witness has them" in told.stdout
    assert server.verify("--witness").returncode == 2  # this command line has no setting that names one


async def test_the_ledger_of_the_build_before_gets_an_owner_that_is_no_superuser(server: Upgraded) -> None:
    connection = await asyncpg.connect(server.runtime.database_url)
    role = await connection.fetchrow("SELECT rolname, rolsuper FROM pg_roles WHERE rolname = current_user")
    others = await connection.fetch(
        """SELECT c.oid::regclass::text AS name FROM pg_class c
           WHERE relnamespace = 'public'::regnamespace AND relowner <> 'angelia'::regrole"""
    )
    agents = await connection.fetchval("SELECT count(*) FROM agents")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("COPY agents TO PROGRAM 'true'")
    await connection.close()
    assert (role["rolname"], role["rolsuper"], agents, list(others)) == ("angelia", False, 3, [])


@needs_root
def test_keys_and_tokens_lie_outside_what_postgresql_can_reach(server: Upgraded) -> None:
    """Its user may neither read nor remove nor replace them, and could before: the directory was its own."""
    user = Path(f"/proc/{server.pid_of('postgres')}").stat()
    assert user.st_uid != 0
    assert server.data_dir.stat().st_uid == 0
    assert stat.S_IMODE(server.data_dir.stat().st_mode) == 0o710
    for name in SECRETS:
        assert (server.data_dir / name).stat().st_uid == 0
        for command in (["cat", name], ["rm", "-f", name], ["mv", name, f"{name}.away"], ["cp", "/dev/null", name]):
            tried = subprocess.run(
                command,
                cwd=server.data_dir,
                user=user.st_uid,
                group=user.st_gid,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
            assert tried.returncode != 0, (command, tried)
    assert subprocess.run(["ls"], cwd=server.data_dir, user=user.st_uid, check=False, capture_output=True).returncode


@needs_root
def test_no_web_process_has_the_node_key_in_its_memory(server: Upgraded) -> None:
    key = (server.data_dir / "node.key").read_bytes()
    assert not holds(server.pid_of("worker"), key)
    assert holds(server.pid_of("server"), key), "the search finds it where it is"


async def test_sql_on_the_real_ledger_forges_nothing_that_verification_believes(server: Upgraded) -> None:
    """Last, since it leaves the audit broken: remove what is signed, rebuild the chain, and look for a signature."""
    connection = await asyncpg.connect(server.runtime.database_url)
    for forbidden in (
        "COPY (SELECT 1) TO PROGRAM 'rm node.signed'",
        f"COPY (SELECT 1) TO '{server.data_dir}/node.signed'",
        f"SELECT pg_read_file('{server.data_dir}/node.key')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(forbidden)
    assert (server.data_dir / "node.signed").exists()

    async with connection.transaction():
        await connection.execute(
            "DELETE FROM audit_events WHERE event_id = (SELECT event_id FROM audit_chain ORDER BY position LIMIT 1)"
        )
        await connection.execute("TRUNCATE audit_chain, audit_checkpoints")
        await connection.execute("UPDATE audit_sealer SET position = 0, next_xid = '0', entry_hash = $1", bytes(32))
    async with asyncio.timeout(30):
        while not await connection.fetchval("SELECT count(*) FROM audit_chain"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    until(lambda: "the node does not sign this audit chain" in server.log.read_text())
    assert await connection.fetchval("SELECT count(*) FROM audit_checkpoints") == 0
    await connection.close()
    assert "witness" in server.verify("--witness", str(server.data_dir.with_name("witness")), "--json").stdout
    told = server.verify()
    assert told.returncode == 3
    assert "this node" in told.stdout + told.stderr


def holds(pid: int, wanted: bytes) -> bool:
    """Whether bytes stand anywhere in a process's own memory."""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, mode = line.split()[:2]
            if not mode.startswith("rw"):
                continue
            first, last = (int(bound, 16) for bound in place.split("-"))
            try:
                memory.seek(first)
                if wanted in memory.read(last - first):
                    return True
            except OSError:
                continue
    return False
