"""The grammar: flags anywhere after the noun, help that fits, and the nearest word for a wrong one."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from angelia.cli import main
from angelia.cli.command_context import CommandContext
from angelia.cli.flags import Needs
from angelia.cli.grammar import Entry, Noun, Root, VerbCommand
from cli.running import Angelia

thing = Noun("thing", "try the grammar")
inner = Noun("inner", "nouns may nest")
thing.add_command(inner)


@thing.verb(example="angelia thing say hello", needs=Needs.SERVER | Needs.AGENT | Needs.PAGES)
@click.argument("word", metavar="WORD")
@click.option("--loud", is_flag=True)
@click.option("--times", type=int, default=1)
def say(session: CommandContext, word: str, loud: bool, times: int) -> None:
    """Say a word."""
    text = " ".join([word.upper() if loud else word] * times)
    session.out.thing({"word": text, "as": session.shared.identity, "n": session.shared.limit}, [("word", text)])


@inner.verb(example="angelia thing inner purge x", needs=Needs.YES)
@click.argument("name")
def purge(session: CommandContext, name: str) -> int:
    """Purge it."""
    session.out.line(f"{name} {session.shared.yes}")
    return 3


@pytest.fixture(autouse=True)
def with_the_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Root.get_command
    monkeypatch.setattr(
        Root, "get_command", lambda self, ctx, name: thing if name == "thing" else real(self, ctx, name)
    )


@pytest.mark.parametrize(
    "said",
    [
        "thing say hi --loud --times 2 --json --as bob -n 7",
        "thing --json --as bob say hi --loud --times 2 -n 7",
        "thing --loud --times=2 -n7 say --as=bob hi --json",
        "thing --times 2 --as bob --limit 7 --loud --json say hi",
        "thing say --loud --as bob --times 2 -n 7 --json -- hi",
    ],
)
def test_flags_stand_anywhere_after_the_noun(angelia: Angelia, said: str) -> None:
    ended = angelia(*said.split())
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == '{"word":"HI HI","as":"bob","n":7}\n'


def test_a_value_that_looks_like_a_verb_stays_a_value(angelia: Angelia) -> None:
    assert '"as":"say"' in angelia("thing", "--as", "say", "--json", "say", "hi").out


def test_nouns_nest_and_a_verb_gives_its_exit_code(angelia: Angelia) -> None:
    ended = angelia("thing", "--yes", "inner", "-q", "purge", "x")
    assert (ended.out, ended.code) == ("x True\n", 3)


@pytest.mark.parametrize(
    ("said", "error", "hint"),
    [
        ("agnt", "there is no `angelia agnt`", "did you mean `angelia agent`?"),
        ("zzz", "there is no `angelia zzz`", "`angelia --help` lists them"),
        ("agent nwe x", "`angelia agent` has no verb 'nwe'", "did you mean `angelia agent new`?"),
        ("agent new x --regster", "`angelia agent new` has no flag --regster", "did you mean --register?"),
        ("agent --jsn show", "`angelia agent` has no flag --jsn", "did you mean --json?"),
        ("agent new", "`angelia agent new` needs NAME", "as in `angelia agent new alice --register`"),
        ("agent new a b", "`angelia agent new` takes no argument 'b'", "as in `angelia agent new alice --register`"),
        ("agent --quiet", "`angelia agent` needs a verb", "one of new, show, register, handle"),
        ("agent new --name", "--name needs a value", "`angelia agent new --help` lists what it takes"),
        ("agent new a --register=1", "--register takes no value", "`angelia agent new --help` lists what it takes"),
        ("--quiet agent show", "flags stand after the noun", "angelia NOUN VERB --quiet"),
        ("token create --role king", "--role: 'king' is not one of 'admin', 'read-write', 'read-only'", None),
        (
            "token list -n 0",
            "--limit: a whole number from 1 to 1,000",
            "`angelia token list --help` lists what it takes",
        ),
        ("token list -n x", "--limit: a whole number from 1 to 1,000", None),
        ("token list --timeout x", "--timeout: a number above 0, up to 3600", None),
        ("mail send b x --priority h", "--priority: 'h' is not one of 'low', 'normal', 'high', 'critical'", None),
        ("mail send b x --ttl x", "--ttl: 'x' is no duration; write it as 90s, 15m, 2h, 7d or 1h30m", None),
        (
            "mail send b --file",
            "`angelia mail send` has no flag --file",
            "`angelia mail send --help` lists what it takes",
        ),
        (
            "mail send b x --correlation",
            "--correlation needs a value",
            "`angelia mail send --help` lists what it takes",
        ),
        (
            "channel tail a --skip",
            "--skip goes with --commit: only what is committed can pass over what cannot be opened",
            "angelia channel tail a --commit --skip",
        ),
        ("agent new A", "NAME: 'A' is no handle: a-z 0-9 . _ -, a letter or digit at both ends, no '..'", None),
        ("agent new me", "NAME: the handle me is reserved", None),
        ("room post", "`angelia room post` needs NAME", 'as in `angelia room post build-talk "build 418 is green"`'),
        ("room follow x", "`angelia room` has no verb 'follow'", "did you mean `angelia room tail -f`?"),
        ("room create a --keep 1s", "--keep: 1s is not between 1m and 365d", None),
        ("guard block 1.2.3", "ADDRESS: '1.2.3' is no IP address", None),
    ],
)
def test_a_wrong_word_is_answered_with_the_way_on(angelia: Angelia, said: str, error: str, hint: str | None) -> None:
    ended = angelia(*said.split())
    lines = ended.err.splitlines()
    assert (ended.code, ended.out) == (2, "")
    assert lines[0] == f"error: {error} (usage)"
    if hint and "--quiet" not in said:
        assert lines[1] == f"hint: {hint}"


def test_a_wrong_command_fails_in_the_manner_asked_for(angelia: Angelia) -> None:
    assert angelia("agent", "nwe", "--json").err.startswith('{"code":"usage"')


@pytest.mark.parametrize("said", [[], ["--help"], ["-h"]])
def test_the_first_help_fits_a_small_terminal(angelia: Angelia, said: list[str]) -> None:
    ended = angelia(*said)
    assert ended.code == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "config completion" in ended.out


def test_the_first_help_will_fit_with_every_noun_of_the_design() -> None:
    nouns = "serve doctor config agent mail key dm room channel queue log spool token guard policy audit pipeline demo"
    groups = ["start"] * 4 + ["talk"] * 8 + ["operate"] * 4 + ["analyse"] * 2
    entries = [Entry(g, n, "x" * 60) for g, n in zip(groups, nouns.split(), strict=True)]
    help_ = Root("a message platform for AI agents", entries, "1.0.0")
    with click.Context(help_, info_name="angelia") as context:
        lines = help_.get_help(context).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def every_verb() -> list[tuple[str, VerbCommand]]:
    found: list[tuple[str, VerbCommand]] = []

    def walk(path: str, command: click.Command | None) -> None:
        if isinstance(command, VerbCommand):
            found.append((path, command))
        elif isinstance(command, click.Group):
            with click.Context(command) as context:
                for name in command.list_commands(context):
                    walk(f"{path} {name}", command.get_command(context, name))

    walk("angelia", main.root)
    return found


@pytest.mark.parametrize(("path", "verb"), every_verb(), ids=lambda v: v if isinstance(v, str) else "")
def test_each_verbs_help_opens_with_an_example_of_itself(angelia: Angelia, path: str, verb: VerbCommand) -> None:
    help_ = angelia(*path.split()[1:], "--help").out
    assert help_.startswith("example: ")
    assert path in help_.splitlines()[0]
    assert max(map(len, help_.splitlines())) <= 100


def test_short_flags_are_few_and_each_flag_takes_a_value_everywhere_or_nowhere() -> None:
    takes: dict[str, bool] = {}
    for _, verb in every_verb():
        for option in (p for p in verb.params if isinstance(p, click.Option)):
            for name in option.opts:
                assert takes.setdefault(name, option.is_flag) == option.is_flag, name
            assert any(name.startswith("--") for name in option.opts)
    assert {name for name in takes if not name.startswith("--")} <= {"-q", "-v", "-h", "-n", "-f"}


def test_every_noun_of_the_list_lives_in_the_module_of_its_name() -> None:
    with click.Context(main.root) as context:
        for name in main.root.list_commands(context):
            assert main.root.get_command(context, name) is not None


def test_help_needs_no_heavy_module(shell: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys; from angelia.cli.main import run; run(['--help'])\n"
        "heavy = {'httpx', 'cryptography', 'asyncpg', 'uvicorn', 'starlette', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
