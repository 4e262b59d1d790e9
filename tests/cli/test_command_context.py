"""Which server, which agent, which token: found in the order that is promised, and never sent astray."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from angelia.cli.command_context import CommandContext
from angelia.cli.errors import Usage
from angelia.cli.flags import SharedFlags
from angelia.cli.output import Manner, Output
from angelia.errors import NotFound, Unauthenticated
from angelia.mailbox import identity

TOML = """
[context.prod]
url = "https://angelia.example"
token_file = "prod.token"
as = "bob"
"""


def session(**flags: object) -> CommandContext:
    return CommandContext(SharedFlags(**flags), Output(Manner()))  # type: ignore[arg-type]


@pytest.fixture
def running(shell: Path) -> Iterator[str]:
    """A data directory whose lock is held, as by a running server."""
    data = shell / "data"
    data.mkdir()
    runtime = {"pid": 1, "url": "http://localhost:9191", "database_url": "", "redis_url": "", "sockets": ""}
    (data / "runtime.json").write_text(json.dumps(runtime))
    with (data / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield "http://localhost:9191"


def test_without_a_word_the_server_is_the_default_one(shell: Path) -> None:
    assert session().url == "http://localhost:8080"


def test_a_server_that_runs_here_is_found(running: str) -> None:
    assert session().url == running


def test_a_file_left_by_a_dead_server_is_ignored(shell: Path) -> None:
    data = shell / "data"
    data.mkdir()
    (data / "lock").touch()
    (data / "runtime.json").write_text(
        '{"pid":1,"url":"http://localhost:9","database_url":"","redis_url":"","sockets":""}'
    )
    assert session().url == "http://localhost:8080"


def test_the_order_is_flag_context_setting_runtime(shell: Path, running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell / "angelia.toml").write_text(TOML)
    monkeypatch.setenv("ANGELIA_URL", "http://setting:1")
    assert session().url == "http://setting:1"
    assert session(context="prod").url == "https://angelia.example"
    assert session(url="http://flag:2/").url == "http://flag:2"


def test_two_servers_at_once_are_refused(shell: Path) -> None:
    with pytest.raises(Usage, match="both name a server"):
        _ = session(url="http://a", context="prod").url


def test_an_unknown_context_is_answered_with_the_known_ones(shell: Path) -> None:
    (shell / "angelia.toml").write_text(TOML)
    with pytest.raises(Usage) as refused:
        _ = session(context="prd").url
    assert refused.value.hint.startswith("it has: prod; a table [context.")
    assert "(docs/settings.md)" in refused.value.hint


@pytest.mark.parametrize("url", ["localhost", "http://x/path", "ftp://x"])
def test_a_bad_url_is_a_usage_error(shell: Path, url: str) -> None:
    with pytest.raises(Usage):
        _ = session(url=url).url


def test_tokens_are_found_in_order(shell: Path, running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell / "data" / "admin.token").write_text("agt_data\n")
    assert session().token == "agt_data"
    monkeypatch.setenv("ANGELIA_TOKEN", "agt_env")
    assert session().token == "agt_env"
    (shell / "angelia.toml").write_text(TOML)
    (shell / "prod.token").write_text("agt_prod\nsecond line\n")
    assert session(context="prod").token == "agt_prod"
    (shell / "flag.token").write_text("agt_flag")
    assert session(context="prod", token_file=str(shell / "flag.token")).token == "agt_flag"


@pytest.mark.parametrize(
    "url", ["https://angelia.example", "http://localhost:1", "http://127.evil.example", "http://127.0.0.1.evil.example"]
)
def test_the_token_of_this_server_is_shown_to_no_other_program(shell: Path, running: str, url: str) -> None:
    (shell / "data" / "admin.token").write_text("agt_data\n")
    away = session(url=url)
    assert away.token is None
    with pytest.raises(Unauthenticated):
        away.as_operator()


def test_without_a_running_server_its_token_is_shown_to_nobody(shell: Path) -> None:
    (shell / "data").mkdir()
    (shell / "data" / "admin.token").write_text("agt_data\n")
    assert session().token is None


def test_a_file_without_a_token_is_named(shell: Path) -> None:
    for content in (b"", b"\n\n", b"\xff\xfe", "tök".encode()):
        (shell / "t").write_bytes(content)
        with pytest.raises(Usage, match="holds no token"):
            _ = session(token_file=str(shell / "t")).token


def test_the_only_agent_signs(shell: Path) -> None:
    identity.create(shell / "home", "alice")
    assert session().identity.name == "alice"


def test_of_several_agents_one_must_be_named(shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alice", "bob", "carol"):
        identity.create(shell / "home", name)
    with pytest.raises(Usage, match="3 agents have keys here: alice, bob, carol") as refused:
        _ = session().identity
    assert refused.value.hint == "say which: --as alice"
    monkeypatch.setenv("ANGELIA_AS", "carol")
    assert session().identity.name == "carol"
    (shell / "angelia.toml").write_text(TOML)
    assert session(context="prod").identity.name == "bob"
    assert session(context="prod", identity="alice").identity.name == "alice"


def test_an_agent_is_found_by_its_handle_too(shell: Path) -> None:
    from uuid import uuid4

    made = identity.create(shell / "home", "alice")
    identity.record_registration(shell / "home", made, id=uuid4(), handle="alice-7", server="http://h")
    assert session(identity="alice-7").identity.name == "alice"


def test_an_unknown_agent_is_answered_with_the_known_ones(shell: Path) -> None:
    with pytest.raises(Usage, match="no agent has keys"):
        _ = session().identity
    identity.create(shell / "home", "alice")
    for wanted in ("zoe", "../alice", "A"):
        with pytest.raises(NotFound) as refused:
            _ = session(identity=wanted).identity
        assert refused.value.hint.endswith("here are: alice")


def test_without_a_terminal_no_passphrase_can_be_asked(shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity.create(shell / "home", "alice", "geheim")
    monkeypatch.setattr("sys.stdin", (shell / "home" / "alice" / "agent.json").open())
    with pytest.raises(Usage, match="no terminal to ask"):
        _ = session().identity
