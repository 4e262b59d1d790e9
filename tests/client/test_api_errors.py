"""A server's refusal becomes the error that its code names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.client.api_errors import ApiError, NotAngelia, Unreachable, fault
from angelia.client.exchange import Response
from angelia.errors import AngeliaError, Denied, FromFuture, NotFound, RateLimited, Stale, Unauthenticated

NOW = 1_800_000_000.0


def refusal(status: int, body: object = None, **headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response("GET", "/v1/x", status, {k.replace("_", "-"): v for k, v in headers.items()}, raw)


def in_our_words(**members: object) -> dict[str, object]:
    return {"title": "no", "code": "not_found", "request_id": "r1", **members}


def test_a_problem_document_keeps_its_words_code_hint_and_request_id() -> None:
    body = {
        "title": "no such agent",
        "code": "not_found",
        "hint": "angelia agent new",
        "request_id": "r1",
        "status": 404,
    }
    error = fault(refusal(404, body), now=NOW)
    assert isinstance(error, NotFound)
    assert isinstance(error, ApiError)
    assert (error.message, error.code, error.hint) == ("no such agent", "not_found", "angelia agent new")
    assert (error.status, error.request_id) == (404, "r1")


def test_the_detail_says_more_than_the_title() -> None:
    assert fault(refusal(400, in_our_words(detail="name is too long")), now=NOW).message == "name is too long"


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (403, "no", Denied),
        (404, "agent not found", NotFound),
        (429, "rate limit exceeded", RateLimited),
        (401, "missing headers", Unauthenticated),
        (401, "the request was signed before the nonce memory began", Stale),
        (401, "the request was signed later than now", FromFuture),
    ],
)
def test_a_plain_error_text_is_classified_by_its_status_and_words(
    status: int, text: str, kind: type[AngeliaError]
) -> None:
    said = json.dumps({"error": text}).encode()
    error = fault(Response("GET", "/who", status, {}, said), now=NOW)
    assert isinstance(error, kind)
    assert error.message == text


def test_a_code_from_the_future_is_kept_though_no_class_knows_it() -> None:
    error = fault(refusal(409, in_our_words(code="level_gap")), now=NOW)
    assert error.code == "level_gap"
    assert type(error).__mro__[1] is ApiError
    assert ApiError.code == "internal"


def test_a_proxy_page_is_not_quoted() -> None:
    error = fault(refusal(502, b"<html>\x1b[31mBad Gateway</html>"), now=NOW)
    assert error.message == "GET /v1/x was answered with status 502 (Bad Gateway): this is no Angelia server"
    assert error.code == "network"


@pytest.mark.parametrize("status", [301, 302, 403, 404, 413, 429, 500, 502])
@pytest.mark.parametrize(
    "body", [b"", b"<html>nginx</html>", {"error": "x"}, {"code": "not_found"}, {"code": 404, "request_id": "r"}, [1]]
)
def test_a_refusal_that_is_not_in_our_words_says_that_this_is_no_angelia_server(status: int, body: object) -> None:
    error = fault(refusal(status, body), now=NOW)
    assert isinstance(error, NotAngelia)
    assert isinstance(error, Unreachable)
    assert not isinstance(error, ApiError)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("Fri, 15 Jan 2027 08:00:30 GMT", 30), ("Fri, 15 Jan 2027 07:00:00 GMT", 0), ("soon", None), ("", None),
     ("9" * 5000, 3600), ("Fri, 15 Jan 2127 08:00:30 GMT", 3600)],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(text: str, seconds: int | None) -> None:
    assert fault(refusal(429, in_our_words(), retry_after=text), now=NOW).retry_after == seconds


@pytest.mark.parametrize(
    ("ours", "hint"),
    [
        (NOW + 41, "this machine's clock is 41 s ahead of the server's; run a time service"),
        (NOW - 75, "this machine's clock is 75 s behind the server's; run a time service"),
        (NOW + 1.5, "sign it again"),
    ],
)
def test_a_stale_request_is_told_how_far_its_clock_is_off(ours: float, hint: str) -> None:
    body = in_our_words(code="stale", hint="sign it again")
    assert fault(refusal(401, body, date="Fri, 15 Jan 2027 08:00:00 GMT"), now=ours).hint == hint


@given(st.binary(max_size=200), st.integers(300, 599))
def test_whatever_comes_back_becomes_an_error_and_never_a_crash(body: bytes, status: int) -> None:
    error = fault(refusal(status, body), now=NOW)
    assert error.status == status
    assert error.message
