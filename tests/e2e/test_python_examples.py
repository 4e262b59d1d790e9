"""Every example of Python in the documentation works when pasted, blocking and awaited."""

from __future__ import annotations

import csv
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aicq_files import registered
from e2e.test_tour import README, environment
from server_process import ServerProcess

DOCS = README.parent / "docs"
FLAVOURS = {"blocking": 0, "awaited": 1}
# An example that a newcomer reads first has so many lines; what is awaited needs a function around it.
MOST_LINES = {"blocking": 8, "awaited": 11}


def examples(page: Path, after: str = "") -> list[str]:
    """The examples of a section, up to the next heading."""
    section = page.read_text("utf-8").split(after, 1)[1] if after else page.read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", re.split(r"^## ", section, flags=re.MULTILINE)[0], re.DOTALL)


def commands(page: Path) -> list[str]:
    """The examples of shell commands of a page."""
    return re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@dataclass(frozen=True)
class Desk:
    """A server, and a home with alice, bob and their channel `alice/news`."""

    server: ServerProcess
    home: Path

    def angelia(self, *words: str) -> str:
        command = [Path(sys.executable).parent / "angelia", *words]
        return self._run([str(word) for word in command])

    def paste(self, *lines: str) -> str:
        return self._run(["sh", "-euc", "\n".join(lines)])

    def run(self, script: str) -> str:
        return self._run([sys.executable, "-c", self._here(script)])

    @contextmanager
    def running(self, script: str) -> Iterator[subprocess.Popen[str]]:
        """An example that goes on until Ctrl-C."""
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", self._here(script)],
            env=environment(self.server, self.home) | {"PYTHONFAULTHANDLER": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGINT)
            try:
                _, said = child.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGABRT)  # it ends, and says where it was
                _, said = child.communicate(timeout=30)
        assert said.rstrip().endswith("KeyboardInterrupt"), said

    def _here(self, script: str) -> str:
        return script.replace("http://localhost:8080", self.server.start_url)

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=environment(self.server, self.home), cwd=self.home, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def desk(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    server = ServerProcess(directory / f"examples-{secrets.token_hex(4)}")
    server.start()
    desk = Desk(server, tmp_path_factory.mktemp("home"))
    for name in ("alice", "bob", "mallory"):
        desk.angelia("agent", "new", name, "--register", "-q")
    desk.angelia("mail", "allow", "alice", "--as", "bob")
    desk.angelia("channel", "create", "news", "--allow", "bob", "--as", "alice")
    desk.angelia("channel", "subscribe", "alice/news", "--as", "bob")
    yield desk
    server.stop()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_echo_bot_answers_the_question(desk: Desk, flavour: str) -> None:
    bot = examples(DOCS / "python.md", "# From Python")[FLAVOURS[flavour]]
    question = examples(DOCS / "python.md", "## A question and its answer")[FLAVOURS[flavour]]
    with desk.running(bot):
        assert desk.run(question) == "ARE YOU THERE?\n"


def test_the_bot_and_the_question_of_the_readme_work(desk: Desk) -> None:
    bot, question = examples(README, "## Five minutes")
    with desk.running(bot):
        assert desk.run(question) == "ARE YOU THERE?\n"


def test_the_readers_of_a_channel_go_on_after_what_was_committed(desk: Desk) -> None:
    blocking, awaited = examples(DOCS / "python.md", "## A channel's reader")
    for offset, reader in enumerate((blocking, awaited, blocking), start=1):
        desk.angelia("channel", "publish", "news", f"build {offset} is green", "--as", "alice")
        with desk.running(reader) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == f"{offset} alice build {offset} is green\n"
            while desk.angelia("channel", "tail", "alice/news", "--as", "bob"):
                assert child.poll() is None


def test_two_agents_edit_one_map_in_a_group_log(desk: Desk) -> None:
    (shared_map,) = examples(DOCS / "logs.md", "## State of your own")
    told, same = desk.run(shared_map).splitlines()
    assert told == "{'deploy': 'running', 'review': 'done'}"
    assert same == "True"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_receipts_are_exported_with_whose_word_they_are(desk: Desk, flavour: str) -> None:
    for text in ("received", "waits"):
        sent = desk.angelia("mail", "send", "bob", text, "-q", "--as", "alice").strip()
        if text == "received":
            desk.angelia("mail", "receive", "--as", "bob")
    rows = csv.reader(desk.run(examples(DOCS / "python.md", "## Receipts as a table")[FLAVOURS[flavour]]).splitlines())
    newest, before, *_ = [row[:-1] for row in rows]
    assert newest == [sent, "bob", "pending", ""]
    assert before[1:] == ["bob", "delivered", "recipient"]
    desk.angelia("mail", "receive", "--as", "bob")


def test_an_error_has_a_code_and_words(desk: Desk) -> None:
    (script,) = examples(DOCS / "python.md", "## Errors")
    assert re.fullmatch(r"not_found \| .*nobody-of-that-name.*\n", desk.run(script))


def test_the_longer_forms_work(desk: Desk) -> None:
    short, longer, served = examples(DOCS / "python.md", "## The longer form")
    assert re.fullmatch(r"alice\n\d+ [0-9a-f]{64}\n", desk.run(short))
    assert desk.run(longer) == "queued\n"
    desk.angelia("mail", "receive", "--as", "bob")
    question = examples(DOCS / "python.md", "## A question and its answer")[0]
    with desk.running(served):
        assert desk.run(question) == "thank you\n"


def test_the_examples_of_the_guides_work(desk: Desk) -> None:
    (channel,) = examples(DOCS / "channels.md", "## Five minutes")
    assert desk.run(channel) == "alice release 12 is out\n"
    (keys,) = examples(DOCS / "keys.md", "## From Python")
    assert re.fullmatch(r"\d+ [\w-]{43}\n", desk.run(keys))
    (blocks,) = examples(DOCS / "policy.md", "## Block lists")
    assert desk.run(blocks) == "['mallory']\n"


def test_the_guides_to_rooms_and_from_aicq_work_when_pasted(desk: Desk) -> None:
    said = desk.paste(*commands(DOCS / "rooms.md"))
    assert re.search(r"^\d\d:\d\d:\d\dZ  [0-9A-Z]{12}  alice  build 418 is green$", said, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\dZ  [0-9A-Z]{12}  alice    yes$", said, re.MULTILINE), "below its parent"
    assert re.search(r"^[0-9a-f-]{12}  build-talk +3 +\d+s +7d  no$", said, re.MULTILINE)
    assert said.endswith("  bob  psst\n")
    following, proof = examples(DOCS / "rooms.md", "## Five minutes") + examples(DOCS / "rooms.md", "## Who wrote")
    assert desk.run(following) == "or at 19:00\n"
    assert desk.run(proof) == "rfc9421 True False\n"
    id_ = registered(desk.server.start_url, desk.home / ".aicq")
    taken = desk.paste(*commands(DOCS / "aicq.md"))
    assert f"registered   {id_}\n" in taken
    assert "posted in global\n" in taken


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_a_newcomer_reads_first_is_short(flavour: str) -> None:
    sections = ("# From Python", "## A question and its answer", "## A channel's reader", "## Receipts as a table")
    for section in sections:
        example = examples(DOCS / "python.md", section)[FLAVOURS[flavour]]
        assert sum(bool(line.strip()) for line in example.splitlines()) <= MOST_LINES[flavour], section
    bots = [examples(DOCS / "python.md", "# From Python")[FLAVOURS[flavour]], examples(README, "## Five minutes")[0]]
    for bot in bots:
        assert sum(bool(line.strip()) for line in bot.splitlines()) <= 8


def test_no_example_is_left_untried() -> None:
    """A page is named here when its examples run above, or in a test of its own."""
    tried = {
        "README.md",
        "python.md",
        "mail.md",
        "channels.md",
        "keys.md",
        "policy.md",
        "envelopes.md",
        "rooms.md",
        "queues.md",
        "logs.md",
        "slices.md",
    }
    python = re.compile(r"```python\n(.*?)```", re.DOTALL)
    of_ours = {
        page.name
        for page in [README, *DOCS.glob("*.md")]
        for script in python.findall(page.read_text("utf-8"))
        if "from angelia" in script
    }
    assert of_ours <= tried
