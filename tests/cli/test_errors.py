"""One sentence, one hint, and the exit code of the table."""

from __future__ import annotations

import io
import json

import pytest

from angelia.cli.errors import exit_code, nearest, of_system, report
from angelia.cli.output import Manner
from angelia.client.api_errors import Unreachable, fault
from angelia.client.exchange import Response
from angelia.errors import AngeliaError, AuditBroken, NotFound, SettingsError


def coded(code: str) -> AngeliaError:
    return type("E", (AngeliaError,), {"code": code})("words")


@pytest.mark.parametrize(
    ("exit_", "codes"),
    [
        (1, "rate_limited queue_full conflict message_id_conflict disk_full already_exists internal whatever"),
        (2, "usage ambiguous_id confirmation_required bad_setting"),
        (3, "signature_verification_failed open_failed corrupt_record audit_broken log_faults"),
        (4, "replay_rejected"),
        (5, "unauthenticated authorization_denied not_member suite_refused key_revoked"),
        (6, "message_expired clock_skew stale from_future lease_lost"),
        (7, "network unavailable deadline_exceeded"),
        (8, "not_found key_not_found no_group offset_gone"),
    ],
)
def test_each_code_has_the_exit_of_the_table(exit_: int, codes: str) -> None:
    assert {code: exit_code(coded(code)) for code in codes.split()} == dict.fromkeys(codes.split(), exit_)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_is_away_is_a_network_failure_whatever_it_calls_it(status: int) -> None:
    assert exit_code(fault(Response("GET", "/", status, {}, b'{"code":"policy_error","title":"t"}'), now=0)) == 7


def said(error: AngeliaError, manner: Manner) -> str:
    stream = io.StringIO()
    report(error, manner, stream)
    return stream.getvalue()


def test_an_error_is_a_sentence_with_its_code_and_a_hint() -> None:
    error = NotFound("carol has no key bundle", hint="carol runs `angelia key publish`")
    assert said(error, Manner()) == (
        "error: carol has no key bundle (not_found)\nhint: carol runs `angelia key publish`\n"
    )
    assert said(error, Manner(quiet=True)) == "error: carol has no key bundle (not_found)\n"
    assert said(AuditBroken("x"), Manner()) == "error: x (audit_broken)\n"


def test_an_error_as_json_is_one_object() -> None:
    error = fault(Response("GET", "/", 404, {}, b'{"code":"not_found","title":"no","request_id":"r1"}'), now=0)
    assert json.loads(said(error, Manner(json=True))) == {
        "code": "not_found",
        "message": "no",
        "hint": "",
        "exit": 8,
        "request_id": "r1",
    }


def test_a_hostile_servers_words_sit_still() -> None:
    error = SettingsError("a\x1b[2J\nerror: b", hint="c\u202ed")
    assert said(error, Manner()) == "error: a\\x1b[2J\\nerror: b (bad_setting)\nhint: c\\u202ed\n"


def test_a_full_disk_has_its_own_code() -> None:
    assert of_system(OSError(28, "No space left on device", "x.json")).code == "disk_full"
    assert of_system(OSError(13, "Permission denied", "x.json")).message == "x.json: Permission denied"


def test_https_to_a_server_that_speaks_http_is_said_in_words() -> None:
    why = "cannot be reached ([SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006))"
    assert said(Unreachable(f"https://localhost:8080 {why}", hint="is it up?"), Manner()) == (
        "error: https://localhost:8080 speaks http, not https (network)\nhint: --url http://localhost:8080\n"
    )


@pytest.mark.parametrize(("word", "near"), [("--jsn", "--json"), ("--file", None), ("--quit", "--quiet"), ("-x", None)])
def test_only_what_is_close_is_suggested(word: str, near: str | None) -> None:
    assert nearest(word, ["--json", "--quiet", "--timeout"]) == near
