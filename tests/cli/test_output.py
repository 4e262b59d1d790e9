"""stdout carries data, stderr the rest; colour and width are all that a terminal changes."""

from __future__ import annotations

import io
import json

import pytest

from angelia.cli.output import Manner, Output
from angelia.cli.tables import Column


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def output(manner: Manner, *, tty: bool = False) -> Output:
    kind = Terminal if tty else io.StringIO
    return Output(manner, kind(), kind())


def written(out: Output) -> tuple[str, str]:
    assert isinstance(out.stdout, io.StringIO)
    assert isinstance(out.stderr, io.StringIO)
    return out.stdout.getvalue(), out.stderr.getvalue()


@pytest.mark.parametrize(
    ("wish", "tty", "environ", "coloured"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, wish: str, tty: bool, environ: dict[str, str], coloured: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert output(Manner(color=wish), tty=tty).paint.on is coloured


def test_json_is_one_object_per_line_and_shows_what_would_act() -> None:
    out = output(Manner(json=True))
    out.rows([{"name": "a\u202eb\x1b"}, {"name": "c\nd"}], [Column("NAME", lambda r: r["name"])])
    lines = written(out)[0].splitlines()
    assert [json.loads(line) for line in lines] == [{"name": "a\u202eb\x1b"}, {"name": "c\nd"}]
    assert "\u202e" not in lines[0]
    assert "\\u202e" in lines[0]


def test_an_empty_list_prints_nothing() -> None:
    out = output(Manner())
    out.rows([], [Column("NAME", str)])
    assert written(out) == ("", "")


def test_quiet_keeps_the_id_and_drops_the_remarks() -> None:
    out = output(Manner(quiet=True))
    out.thing({"id": 7, "name": "x"}, [("id", "7"), ("name", "x")], quietly="7")
    out.note("next: something")
    out.done({"id": 7}, "revoked 7")
    assert written(out) == ("7\n", "")


def test_details_are_for_those_who_ask() -> None:
    for verbose, err in ((True, "GET /x\n"), (False, "")):
        out = output(Manner(verbose=verbose))
        out.detail("GET /x")
        assert written(out) == ("", err)


def test_a_body_keeps_its_lines_and_ends_with_one() -> None:
    out = output(Manner())
    out.text("one\n\ttwo\x1b[2J")
    assert written(out)[0] == "one\n\ttwo\\x1b[2J\n"
