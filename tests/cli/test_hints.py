"""What a hint tells to type works when it is pasted: the grammar takes it, and it goes to the same server and agent."""

from __future__ import annotations

import ast
import os
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import angelia as package
from angelia.cli.hints import aimed
from angelia.cli.main import root
from cli.pasting import commands_in, refused
from cli.running import Angelia
from server_process import ServerProcess

HOLE = "\N{REPLACEMENT CHARACTER}"  # what an f-string puts in


def said_in_source() -> Iterator[tuple[str, str]]:
    """Every text of the source that is no docstring, and where it stands."""
    for path in sorted(Path(package.__file__).parent.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        inside = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        inside |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if node in inside:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values]
                yield f"{path.name}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.name}:{node.lineno}", node.value


def test_every_command_that_the_source_names_is_one_that_the_grammar_takes() -> None:
    found = [(where, command) for where, text in said_in_source() for command in commands_in(text)]
    whole = [(where, command) for where, command in found if HOLE not in " ".join(command.split()[1:3])]
    assert len(whole) > 150
    assert [f"{where} {why}" for where, command in whole if (why := refused(command))] == []


@pytest.fixture
def two_agents(live: str, angelia: Angelia) -> tuple[str, str]:
    names = f"ann-{os.urandom(4).hex()}", f"ben-{os.urandom(4).hex()}"
    for name in names:
        assert angelia("agent", "new", name, "--register", "-q").code == 0
    return names


def test_hints_name_the_agent_again_when_there_are_several(two_agents: tuple[str, str], angelia: Angelia) -> None:
    ann, ben = two_agents
    assert angelia("mail", "send", ben, "hello", "--as", ann).code == 0
    received = angelia("mail", "receive", "--as", ben)
    allow = f"angelia mail allow {ann} --as {ben}"
    assert received.err.splitlines()[0].endswith(f"not allowed: {allow}")
    assert angelia(*shlex.split(allow)[1:]).code == 0
    nothing = angelia("mail", "receive", "--as", ann)
    assert nothing.err.splitlines()[-1] == f"hint: angelia mail receive --wait --as {ann}"


def test_a_hint_does_not_name_an_agent_that_is_the_only_one(live: str, angelia: Angelia) -> None:
    name = f"one-{os.urandom(4).hex()}"
    angelia("agent", "new", name, "--register", "-q")
    assert angelia("mail", "receive", "--as", name).err.splitlines()[-1] == "hint: angelia mail receive --wait"


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("angelia mail allow carol", "angelia mail allow carol --as bob --url http://h:1"),
        ("see `angelia mail open 5b0f > FILE`", "see `angelia mail open 5b0f --as bob --url http://h:1 > FILE`"),
        ("angelia mail allow x --as y; angelia doctor", "angelia mail allow x --as y --url http://h:1; angelia doctor"),
        ("carol runs `angelia key publish`", "carol runs `angelia key publish`"),
        ("the next `mail send` does", "the next `mail send` does"),
        ("angelia's own words, angelia nowhere", "angelia's own words, angelia nowhere"),
        ("`angelia mail send bob 'it`", "`angelia mail send bob 'it`"),
    ],
)
def test_commands_in_a_text_get_the_flags_that_they_take(text: str, becomes: str) -> None:
    assert aimed(text, root, lambda: [("--as", "bob"), ("--url", "http://h:1")]) == becomes


def test_a_failed_registration_goes_on_with_register_however_often_it_is_tried(shell: Path, angelia: Angelia) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        first = angelia("agent", "new", "alice", "--register", "--url", url)
        again = angelia("agent", "new", "alice", "--register", "--url", url)
    for ended in (first, again):
        assert ended.code != 0
        assert commands_in(ended.err) == [f"angelia agent register --as alice --url {url}"]


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("mail read", "angelia mail open"),
        ("mail list", "angelia mail inbox"),
        ("mail watch", "angelia mail receive --wait"),
        ("channel watch", "angelia channel tail -f"),
        ("channel read", "angelia channel tail"),
        ("agent create", "angelia agent new"),
        ("token delete", "angelia token revoke"),
        ("guard list", "angelia guard blocks"),
        ("mail sned", "angelia mail send"),
    ],
)
def test_a_verb_of_another_name_is_known(angelia: Angelia, said: str, meant: str) -> None:
    ended = angelia(*said.split())
    assert (ended.code, ended.err.splitlines()[1]) == (2, f"hint: did you mean `{meant}`?")


def test_an_unknown_handle_is_answered_with_near_ones(two_agents: tuple[str, str], angelia: Angelia) -> None:
    ann, ben = two_agents
    wrong = ben[:-1] + ("0" if ben[-1] != "0" else "1")
    ended = angelia("mail", "send", wrong, "hello", "--as", ann)
    assert ended.code == 8
    assert ended.err.splitlines()[1].startswith(f"hint: did you mean {ben}?")
    ended = angelia("mail", "inbox", "--as", ann[:-1])
    assert ended.err.splitlines()[1].startswith(f"hint: did you mean --as {ann}?")


@pytest.mark.parametrize("date", ["2026-13-45", "2026-02-30T10:00:00Z", "yesterday", "2026-11-15T25:00:00Z"])
def test_a_date_that_is_none_is_quoted(angelia: Angelia, date: str) -> None:
    ended = angelia("audit", "show", "--since", date)
    assert ended.code == 2
    assert f"--since: '{date}' is " in ended.err.splitlines()[0]


def test_the_name_of_a_file_as_a_text_is_noticed(two_agents: tuple[str, str], angelia: Angelia, shell: Path) -> None:
    ann, ben = two_agents
    (shell / "big file.bin").write_bytes(b"\x00\x01")
    ended = angelia("mail", "send", ben, "big file.bin", "--as", ann)
    assert ended.code == 0
    command = f"angelia mail send {ben} --as {ann} < 'big file.bin'"
    assert ended.err.splitlines()[0] == f"'big file.bin' is sent as text; the content of that file: `{command}`"
    assert angelia("mail", "send", ben, "no file", "--as", ann).err == ""


def test_a_port_that_is_none_has_a_hint(angelia: Angelia) -> None:
    ended = angelia("serve", "--port", "99999")
    assert ended.code == 2
    assert "99999 is not between 0 and 65535" in ended.err
    assert commands_in(ended.err) == ["angelia serve --port 0"]


def test_the_greeting_leads_to_the_server_that_greets(live_server: ServerProcess) -> None:
    said = live_server.log.read_text()
    assert re.search(r"next: in another terminal, .*`angelia agent new alice --register`", said)
    assert f"`export ANGELIA_DATA_DIR={live_server.data_dir.resolve()}`, then" in said
