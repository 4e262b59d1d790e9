"""With stdout and stderr in one pipe, as coding agents run commands, every line comes where it was written."""

from __future__ import annotations

import io
import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from angelia.cli.main import root, run
from angelia.cli.output import Remarks
from cli.pasting import commands_in, refused
from cli.running import PROGRAM, Angelia
from server_process import ServerProcess

Joined = Callable[..., str]


class _Data(io.TextIOWrapper):
    """stdout into a file, remembering what was written when."""

    def __init__(self, descriptor: int, order: list[str]) -> None:
        super().__init__(open(descriptor, "wb", closefd=False), encoding="utf-8", newline="\n")  # noqa: SIM115
        self._order = order

    def write(self, text: str, /) -> int:
        self._order.append(text)
        return super().write(text)


class _Said(Remarks):
    """stderr into the same file, remembering likewise."""

    def __init__(self, descriptor: int, order: list[str]) -> None:
        super().__init__(descriptor)
        self._order = order

    def write(self, text: str, /) -> int:
        self._order.append(text)
        return super().write(text)


@pytest.fixture
def joined(shell: Path, monkeypatch: pytest.MonkeyPatch) -> Joined:
    """Run a command with both streams on one descriptor; what came, which must be what was written, in its order."""

    def command(*argv: str) -> str:
        order: list[str] = []
        path = shell / "both"
        descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND)
        try:
            with monkeypatch.context() as patch:
                patch.setattr("sys.stdout", data := _Data(descriptor, order))
                patch.setattr("sys.stderr", said := _Said(descriptor, order))
                run(list(argv))
                said.flush()
                data.flush()
        finally:
            os.close(descriptor)
        came = path.read_text("utf-8")
        assert came == "".join(order), argv
        return came

    return command


def every_verb() -> set[tuple[str, ...]]:
    context = click.Context(root)
    nouns = {name: root.get_command(context, name) for name in root.list_commands(context)}
    verbs = {(name, verb) for name, noun in nouns.items() if isinstance(noun, click.Group) for verb in noun.commands}
    return verbs | {(name,) for name, noun in nouns.items() if not isinstance(noun, click.Group)}


def tour(ann: str, ben: str, id_: str) -> list[str]:
    """Commands that touch every verb; many fail or find nothing, since errors and remarks are what has an order."""
    talk = f"""
        agent new {ann} --register
        agent new {ann} --register
        agent new {ben} --register
        agent show {ann}
        agent register --as {ann}
        agent handle {ann}-2 --as {ann}
        key publish --as {ann}
        key show {ben} --as {ann}
        key pin {ben} --as {ann}
        key revoke 00000000 --as {ann}
        mail inbox --as {ben}
        mail send {ben} words --as {ann}
        mail receive --as {ben}
        mail allow {ann} --as {ben}
        mail send {ben} more --as {ann} -v
        mail send {ben} most --as {ann}
        mail receive --as {ben} -v
        mail inbox --as {ben} -n 1
        mail outbox --as {ann} -n 1
        mail open 00000000 --as {ben}
        mail withdraw 00000000 --as {ann}
        mail dead --as {ben}
        mail requeue {id_} --as {ben}
        mail ack 00000000 --as {ben}
        mail delete 00000000 --as {ben}
        mail receipts --as {ann} -n 1
        mail deny {ann} --as {ben}
        mail deny {ann} --as {ben}
        mail block {ann} --as {ben}
        mail block --as {ben}
        mail unblock {ann} --as {ben}
        mail prune --retention-hours 1 --as {ben}
        mail migrate --from nowhere --as {ben}
        mail verify --as {ben}
        channel create news --policy open --as {ann}
        channel list --as {ben}
        channel show {ann}/news --as {ben}
        channel subscribe {ann}/news --as {ben}
        channel update news --as {ann}
        channel sign news --as {ann}
        channel publish news green --as {ann}
        channel publish news blue --as {ann}
        channel tail {ann}/news --as {ben} -n 1
        channel pause {ann}/news --as {ben}
        channel resume {ann}/news --as {ben}
        channel allow news {ben} --as {ann}
        channel deny news {ben} --as {ann}
        channel unsubscribe {ann}/news --as {ben}
        channel forget {ann}/news --as {ben}
        channel delete news --as {ann}
        log create team --member {ben} --as {ann}
        log append team words --as {ann}
        log list --as {ben}
        log read team --as {ben}
        log vector team --as {ben}
        log members team --as {ann}
        log nodes team --as {ann}
        log compact team --as {ann}
        log verify team --as {ben}
        log repair team --as {ben}
        log storage team --as {ben}
        log export team exported --as {ben}
        log import team /dev/null --as {ann}
        log follow nowhere --as {ben}
        log members team --remove {ben} --yes --as {ann}
        log read team --as {ben}
        log forget team --yes --as {ben}
        log drop team --yes --as {ann}
        key rotate --as {ben}
        room create talk-{ann} --as {ann}
        room create talk-{ann} --private --as {ann}
        room list
        room show talk-{ann}
        room update talk-{ann} --as {ann}
        room update talk-{ann} --keep 7d --as {ann}
        room read talk-{ann}
        room post talk-{ann} words --as {ann}
        room post talk-{ann} words --reply-to 00000000 --as {ann}
        room read talk-{ann} --verify
        room thread talk-{ann} 00000000
        room tail nowhere
        room search words nowhere
        room delete talk-{ann} 00000000 --as {ann}
        dm send {ben} words --as {ann}
        dm send {ben}-3 words --as {ann}
        dm read --as {ben}
        dm delete {id_} --as {ben}
        queue push jobs-{ann} 1
        queue push jobs-{ann} words
        queue push jobs-{ann} 2 --as {ann}
        queue tail nowhere
        queue read jobs-{ann} -n 1
        queue pop jobs-{ann}
        queue pop jobs-{ann} --group {ben} --ack
        queue ack {id_} --partition-id {id_}
    """
    operate = f"""
        token create --role read-only
        token list -n 1
        token revoke {id_}
        guard blocks
        guard block 203.0.113.7 --expires 1h
        guard unblock 203.0.113.7
        policy list -n 1
        policy add deny send --subject {ann}-3 --object {ben}-3
        policy check send --subject {ann}-3 --object {ben}-3
        policy remove {id_}
        key rotate-data queue
        queue list -n 1
        queue show nowhere
        queue show jobs-{ann}
        queue partitions jobs-{ann}
        queue groups jobs-{ann}
        queue lag jobs-{ann} --group nobody
        queue configure jobs-{ann} --keep 1d
        queue replay jobs-{ann} --from beginning
        queue dlq list jobs-{ann}
        queue dlq show jobs-{ann} {id_}
        queue dlq requeue jobs-{ann}
        queue dlq purge jobs-{ann}
        queue pause --push
        queue resume --push
        queue resume
        queue pause --nothing
        queue clear jobs-{ann}
        queue delete jobs-{ann}
        audit show -n 1
        audit verify
        config show -v
        config completion bash
        doctor
        serve --port 99999
        spool serve --port 99999
        pipeline run nothing
        pipeline stream nothing
        pipeline status
        pipeline history
        pipeline report --out nowhere/report.html
        pipeline tables --lake relative
        pipeline sql DELETE
    """
    return [line.strip() for line in (talk + operate).splitlines() if line.strip()]


def test_every_verb_keeps_its_order_in_one_pipe_and_hints_at_commands_that_parse(
    live_server: ServerProcess, shell: Path, joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGELIA_DATA_DIR", str(live_server.data_dir))
    ann, ben = f"ann-{secrets.token_hex(4)}", f"ben-{secrets.token_hex(4)}"
    lines = tour(ann, ben, "0" * 8)
    touched = {tuple(line.split()[:2]) for line in lines} | {(line.split()[0],) for line in lines}
    assert every_verb() <= touched
    offered = [command for line in lines for command in commands_in(joined(*line.split()))]
    assert len(offered) > 10
    assert [why for command in offered if (why := refused(command))] == []


def test_who_sent_a_message_stands_right_before_it(live: str, shell: Path, angelia: Angelia) -> None:
    ann, ben = f"ann-{secrets.token_hex(4)}", f"ben-{secrets.token_hex(4)}"
    for argv in (["agent", "new", ann, "--register"], ["agent", "new", ben, "--register"]):
        assert angelia(*argv).code == 0
    assert angelia("mail", "allow", ann, "--as", ben).code == 0
    for words in ("one", "two", "three"):
        assert angelia("mail", "send", ben, words, "--as", ann).code == 0
    ended = subprocess.run(
        [*PROGRAM, "mail", "receive", "--as", ben],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    lines = ended.stdout.splitlines()
    bodies = [at for at, line in enumerate(lines) if any(line.endswith(words) for words in ("one", "two", "three"))]
    assert len(bodies) == 3
    assert all(lines[at - 1].startswith(f"from {ann}, ") for at in bodies)
    assert all(lines[at + 1].startswith("acknowledged; ") for at in bodies)


def test_a_full_disk_under_stdout_is_still_reported_once(shell: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*PROGRAM, "config", "show", "-v"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (1, "error: No space left on device (disk_full)\n")
