"""With SQL as the owner of the ledger, or as a member of that role, nothing outside the database is within reach."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from angelia.stores.embedded.binaries import postgres_for
from angelia.stores.embedded.datadir import DataDir
from angelia.stores.embedded.postgres import Postgres
from postgres_superuser import as_superuser

# Each is tried from both roles. PostgreSQL's own user can read the file {secret} and write the file {out}.
ATTACKS = [
    "COPY stolen FROM '{secret}'",
    "COPY stolen FROM PROGRAM 'cat {secret}'",
    "COPY stolen TO '{out}'",
    "COPY stolen TO PROGRAM 'cat > {out}'",
    "COPY (SELECT 'x') TO PROGRAM 'touch {out}'",
    "SELECT pg_read_file('{secret}')",
    "SELECT pg_read_file('postgresql.conf')",
    "SELECT pg_read_binary_file('{secret}')",
    "SELECT pg_read_file('{secret}', 0, 10, true)",
    "SELECT pg_stat_file('{secret}')",
    "SELECT pg_ls_dir('.')",
    "SELECT pg_ls_dir('{place}')",
    "SELECT * FROM pg_ls_waldir()",
    "SELECT * FROM pg_ls_logdir()",
    "SELECT * FROM pg_ls_tmpdir()",
    "SELECT * FROM pg_ls_archive_statusdir()",
    "SELECT pg_current_logfile()",
    "SELECT lo_import('{secret}')",
    "SELECT lo_export(lo_from_bytea(0, 'x'), '{out}')",
    "SELECT pg_file_write('{out}', 'x', false)",
    "SELECT * FROM pg_hba_file_rules",
    "SELECT * FROM pg_file_settings",
    "SELECT rolpassword FROM pg_authid",
    "SELECT passwd FROM pg_shadow",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT pg_switch_wal()",
    "SELECT pg_backup_start('x')",
    "SELECT pg_promote()",
    "SELECT pg_create_physical_replication_slot('x')",
    "SELECT pg_create_logical_replication_slot('x', 'pgoutput')",
    "SELECT pg_replication_origin_create('x')",
    "SELECT pg_log_backend_memory_contexts(pg_backend_pid())",
    "SELECT set_config('session_preload_libraries', '{out}', false)",
    "CREATE EXTENSION file_fdw",
    "CREATE EXTENSION adminpack",
    "CREATE EXTENSION dblink",
    "CREATE EXTENSION postgres_fdw",
    "CREATE EXTENSION plpython3u",
    "CREATE EXTENSION plperlu",
    "CREATE EXTENSION pageinspect",
    "CREATE LANGUAGE plpythonu",
    "CREATE LANGUAGE plpython3u",
    "CREATE LANGUAGE mine HANDLER plpgsql_call_handler",
    "CREATE FUNCTION run(text) RETURNS int AS '{libc}', 'system' LANGUAGE C STRICT",
    "CREATE FUNCTION run(internal) RETURNS internal AS 'pg_read_file' LANGUAGE internal",
    "CREATE SERVER other FOREIGN DATA WRAPPER postgres_fdw",
    "CREATE FOREIGN DATA WRAPPER mine",
    "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 dbname=postgres' PUBLICATION p",
    "CREATE TABLESPACE t LOCATION '{place}'",
    "CREATE DATABASE other",
    "CREATE ROLE other SUPERUSER",
    "CREATE ROLE other",
    "CREATE EVENT TRIGGER t ON ddl_command_start EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE CAST (text AS int) WITHOUT FUNCTION",
    "CREATE ACCESS METHOD mine TYPE INDEX HANDLER bthandler",
    "LOAD '{libc}'",
    "LOAD 'plpgsql'",
    "ALTER SYSTEM SET archive_command = 'touch {out}'",
    "SET session_preload_libraries = 'x'",
    "SET dynamic_library_path = '{place}'",
    "SET log_directory = '{place}'",
    "SET log_statement = 'all'",
    "SET session_replication_role = replica",
    "SET shared_preload_libraries = 'x'",
    "ALTER DATABASE angelia SET session_preload_libraries = 'x'",
    "ALTER DATABASE angelia SET dynamic_library_path = '{place}'",
    "ALTER DATABASE angelia SET TABLESPACE pg_global",
    "ALTER ROLE angelia SET session_preload_libraries = 'x'",
    "ALTER ROLE angelia SUPERUSER",
    "ALTER ROLE angelia CREATEROLE",
    "ALTER ROLE angelia CREATEDB",
    "ALTER ROLE angelia REPLICATION",
    "ALTER ROLE angelia BYPASSRLS",
    "ALTER ROLE angelia_superuser LOGIN",
    "ALTER ROLE angelia_superuser PASSWORD 'x'",
    "GRANT angelia_superuser TO angelia",
    "GRANT pg_read_server_files TO angelia",
    "GRANT pg_write_server_files TO angelia",
    "GRANT pg_execute_server_program TO angelia",
    "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO angelia",
    "SET ROLE angelia_superuser",
    "SET ROLE pg_execute_server_program",
    "SET ROLE pg_read_server_files",
    "SET ROLE pg_read_all_data",
    "SET SESSION AUTHORIZATION angelia_superuser",
    "ALTER FUNCTION pg_read_file(text) OWNER TO angelia",
    "ALTER TABLE pg_authid OWNER TO angelia",
    "UPDATE pg_authid SET rolsuper = true",
    "UPDATE pg_proc SET proacl = NULL",
    "INSERT INTO pg_auth_members SELECT 1, 10, r.oid, 10, true FROM pg_roles r",
    "REASSIGN OWNED BY angelia_superuser TO angelia",
    "DROP ROLE angelia_superuser",
    "CHECKPOINT",
]


def ask(url: str, statement: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url, timeout=5)
        try:
            return await connection.fetch(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def ledger(session_place: Path, start_for: Any) -> Iterator[Any]:
    """A ledger whose owner has a member; a stopped cluster in single-user mode is the only way to make one."""
    first = start_for(session_place / "roles")
    password = first.data_dir.secret(first.data_dir.postgres_password)
    first.stop()
    as_superuser(first.data_dir, f"CREATE ROLE member LOGIN PASSWORD '{password}' IN ROLE angelia")
    started = start_for(session_place / "roles")
    ask(started.database_url, "CREATE TABLE stolen (line text)")
    yield started
    started.stop()


@pytest.mark.parametrize("role", ["angelia", "member"])
def test_sql_reaches_nothing_outside_the_database(role: str, ledger: Any) -> None:
    place = ledger.data_dir.postgres.parent / "log"  # PostgreSQL's own user can read and write there
    secret, out = place / "secret", place / "out"
    secret.write_text("secret")
    os.chown(secret, ledger.data_dir.owner.uid, ledger.data_dir.owner.gid)
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    url = ledger.database_url.replace("//angelia:", f"//{role}:")
    succeeded = []

    async def attack() -> None:
        connection = await asyncpg.connect(url, timeout=5)
        for template in ATTACKS:
            statement = template.format(secret=secret, out=out, place=place, libc=libc)
            try:
                await connection.execute(statement)
            except asyncpg.PostgresSyntaxError:
                raise
            except asyncpg.PostgresError:
                continue
            else:
                succeeded.append(statement)
        await connection.close()

    asyncio.run(attack())
    assert succeeded == []
    assert not out.exists()
    assert ask(url, "SELECT * FROM stolen") == []


@pytest.mark.parametrize("role", ["angelia", "member"])
def test_no_other_database_lets_the_ledgers_role_in(role: str, ledger: Any) -> None:
    url = ledger.database_url.replace("//angelia:", f"//{role}:")
    for database in ("postgres", "template1"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            ask(url.replace("/angelia?", f"/{database}?"), "SELECT 1")


def test_the_superuser_cannot_log_in(ledger: Any) -> None:
    with pytest.raises(asyncpg.PostgresError, match=r"password authentication failed|not permitted to log in"):
        ask(ledger.database_url.replace("//angelia:", "//angelia_superuser:"), "SELECT 1")
    (found,) = ask(ledger.database_url, "SELECT count(*) FROM pg_roles WHERE rolsuper AND rolcanlogin")
    assert found["count"] == 0


def test_the_ledgers_role_belongs_to_no_role_that_touches_files(ledger: Any) -> None:
    granted = ask(
        ledger.database_url,
        """SELECT r.rolname FROM pg_roles r WHERE r.rolname <> 'pg_database_owner' AND r.rolname <> current_user
           AND pg_has_role(current_user, r.oid, 'MEMBER')""",
    )
    assert granted == []


def test_a_start_cut_short_before_the_roles_were_made_is_made_good(session_place: Path, start_for: Any) -> None:
    data_dir = DataDir(session_place / "half")
    data_dir.prepare()
    Postgres(data_dir, postgres_for(data_dir, None), 100).prepare()
    as_superuser(data_dir, "CREATE DATABASE angelia")
    as_superuser(data_dir, "CREATE SCHEMA analysts", "CREATE TABLE analysts.kept (x int)", database="angelia")
    started = start_for(data_dir.path)
    (role,) = ask(started.database_url, "SELECT rolname, rolsuper FROM pg_roles WHERE rolname = current_user")
    ask(started.database_url, "CREATE TABLE made (x int)")
    ask(started.database_url, "CREATE TABLE analysts.made (x int)")
    started.stop()
    assert (role["rolname"], role["rolsuper"]) == ("angelia", False)
