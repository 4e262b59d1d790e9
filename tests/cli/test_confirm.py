"""Before something is destroyed, a person is asked and a script is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from angelia.cli import confirm
from angelia.cli.command_context import CommandContext
from angelia.cli.confirm import Declined, Deed
from angelia.cli.errors import ConfirmationRequired
from angelia.cli.flags import SharedFlags
from angelia.cli.output import Manner, Output
from cli.running import Angelia, Ended
from cli.test_output import Terminal
from client.recorder import Recorder
from client.test_verbs import TOKEN

LETTERS = Deed("purge", "purging", "3 dead letters of orders", look="angelia queue dlq list orders", count=3)


def told(server: Recorder) -> None:
    server.tell("GET", "/v1/tokens", {"tokens": [TOKEN], "next": None, "total": 1})
    server.tell("DELETE", f"/v1/tokens/{TOKEN['id']}", status=204)


def deleted(server: Recorder) -> int:
    return len([seen for seen in server.seen if seen.method == "DELETE"])


@pytest.mark.parametrize(("typed", "done"), [("y\n", 1), ("yes\n", 1), ("n\n", 0), ("\n", 0), ("\x04", 0)])
def test_a_person_is_asked_once_what_and_where(
    server: Recorder, terminal: Callable[..., Ended], typed: str, done: int
) -> None:
    told(server)
    ended = terminal("token", "revoke", "32a040ba", typed=[("[y/N] ", typed)])
    assert f"Revoke token 32a040ba-429 (dash) at {server.url}, for good? [y/N] " in ended.out
    assert deleted(server) == done
    assert ended.code == (0 if done else 1)
    assert ("revoked token 32a040ba-429 (dash), role read-only" in ended.out) is bool(done)


def test_a_script_must_have_said_yes(server: Recorder, angelia: Angelia) -> None:
    told(server)
    refused = angelia("token", "revoke", "32a040ba")
    assert refused.code == 2
    assert refused.err == (
        "error: revoking token 32a040ba-429 (dash) needs a yes, "
        "and there is no terminal to ask (confirmation_required)\n"
        "hint: look first with `angelia token list`, then add --yes\n"
    )
    assert deleted(server) == 0
    done = angelia("token", "revoke", "32a040ba", "--yes")
    assert (done.code, done.out) == (0, "revoked token 32a040ba-429 (dash), role read-only\n")
    assert deleted(server) == 1


def test_a_dry_run_changes_nothing(server: Recorder, angelia: Angelia) -> None:
    told(server)
    ended = angelia("token", "revoke", TOKEN["id"], "--dry-run", "--yes")
    assert (ended.code, ended.out, deleted(server)) == (0, "", 0)
    assert ended.err.startswith("dry run: would revoke token 32a040ba-429")


class Typing(Terminal):
    pass


@pytest.mark.parametrize(
    ("deed", "wanted"),
    [
        (LETTERS, "y"),
        (Deed("purge", "purging", "1,204 dead letters of orders", look="x", count=1204), "1204"),
        (Deed("delete", "deleting", "the queue orders", look="x", whole="orders"), "orders"),
    ],
)
def test_very_many_or_a_whole_thing_want_more_than_a_y(
    shell: object, monkeypatch: pytest.MonkeyPatch, deed: Deed, wanted: str
) -> None:
    for answer in ("y", wanted, f"{wanted}s"):
        monkeypatch.setattr("sys.stdin", Typing(answer + "\n"))
        out = Output(Manner(), Terminal(), Terminal())
        session = CommandContext(SharedFlags(url="http://localhost:1"), out)
        if answer == wanted:
            assert confirm.may(session, deed)
        else:
            with pytest.raises(Declined):
                confirm.may(session, deed)


def test_without_a_terminal_the_way_on_is_named(shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    session = CommandContext(SharedFlags(), Output(Manner()))
    with pytest.raises(ConfirmationRequired) as refused:
        confirm.may(session, LETTERS)
    assert refused.value.hint == "look first with `angelia queue dlq list orders`, then add --yes"
