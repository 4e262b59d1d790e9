"""What every error carries: a code, a sentence, and a hint that a traceback shows too."""

from __future__ import annotations

import traceback

from angelia.errors import AngeliaError, NotFound


def shown(error: AngeliaError) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_a_traceback_shows_the_hint() -> None:
    error = NotFound("there is no agent bob", hint="angelia agent new bob --register")
    assert shown(error)[-1] == "hint: angelia agent new bob --register"
    assert str(error) == "there is no agent bob"


def test_an_error_without_a_hint_has_no_note() -> None:
    assert shown(NotFound("there is no agent bob")) == ["angelia.errors.NotFound: there is no agent bob"]


def test_a_better_hint_takes_the_place_of_the_first_and_of_no_other_note() -> None:
    error = NotFound("there is no agent bob", hint="look again")
    error.add_note("while serving alice")
    error.hint = "angelia agent list"
    assert error.__notes__ == ["while serving alice", "hint: angelia agent list"]
    error.hint = ""
    assert error.__notes__ == ["while serving alice"]
