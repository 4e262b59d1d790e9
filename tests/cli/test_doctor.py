"""What the doctor found, as a person reads it."""

from __future__ import annotations

import json

import pytest

from angelia.cli.doctor import lines
from angelia.cli.tables import Paint
from angelia.doctor import Diagnosis, Severity
from cli.running import Angelia


def found(name: str, state: str = "ok", detail: str = "", hint: str = "") -> Diagnosis:
    return Diagnosis(name, Severity(state), detail, hint)


WELL = [found(name) for name in ("python", "data directory", "disk", "postgres")]
ILL = [
    found("clock", "warn", "PostgreSQL is 1.8 s ahead", "run a time service; the server refuses to start at 5 s"),
    found(
        "archive", "warn", "1,204,311 receipts wait, the oldest is 12d late", "angelia pipeline run archive receipts"
    ),
]


def test_what_is_well_takes_one_line_and_what_is_not_has_a_hint() -> None:
    assert list(lines([*WELL, *ILL], Paint(False), each=False)) == [
        "ok    python, data directory, disk, postgres",
        "warn  clock    PostgreSQL is 1.8 s ahead",
        "               hint: run a time service; the server refuses to start at 5 s",
        "warn  archive  1,204,311 receipts wait, the oldest is 12d late",
        "               hint: angelia pipeline run archive receipts",
        "4 ok (-v shows each), 2 warnings, 0 failures",
    ]


def test_verbose_shows_each() -> None:
    assert list(lines([found("python", detail="3.11.7"), *ILL[:1]], Paint(False), each=True)) == [
        "ok    python  3.11.7",
        "warn  clock   PostgreSQL is 1.8 s ahead",
        "              hint: run a time service; the server refuses to start at 5 s",
        "1 ok, 1 warning, 0 failures",
    ]


def test_many_that_are_well_stay_within_a_hundred_columns() -> None:
    many = [found(f"part number {i}") for i in range(40)]
    assert max(map(len, lines(many, Paint(False), each=False))) <= 100


def test_states_are_coloured() -> None:
    first, warned, *_ = lines([*WELL, *ILL], Paint(True), each=False)
    assert first.startswith("\x1b[32mok\x1b[0m    python")
    assert warned.startswith("\x1b[33mwarn\x1b[0m  clock")


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_only_a_failure_fails(angelia: Angelia, monkeypatch: pytest.MonkeyPatch, state: str, code: int) -> None:
    async def examine(_: object) -> list[Diagnosis]:
        return [found("disk", state, "detail", "hint")]

    monkeypatch.setattr("angelia.doctor.examine", examine)
    ended = angelia("doctor", "--json")
    assert ended.code == code
    assert json.loads(ended.out) == {"name": "disk", "state": state, "detail": "detail", "hint": "hint"}
