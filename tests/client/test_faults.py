"""A server's refusal becomes the error that its code names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angelia.client.faults import ApiError, fault
from angelia.client.wire import Response
from angelia.errors import AngeliaError, Denied, FromFuture, NotFound, RateLimited, Stale, Unauthenticated

NOW = 1_800_000_000.0


def refusal(status: int, body: object = None, **headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response("GET", "/v1/x", status, {k.replace("_", "-"): v for k, v in headers.items()}, raw)


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
    assert fault(refusal(400, {"title": "bad", "detail": "name is too long"}), now=NOW).message == "name is too long"


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
    error = fault(refusal(status, {"error": text}), now=NOW)
    assert isinstance(error, kind)
    assert error.message == text


def test_a_code_from_the_future_is_kept_though_no_class_knows_it() -> None:
    error = fault(refusal(409, {"title": "t", "code": "level_gap"}), now=NOW)
    assert error.code == "level_gap"
    assert type(error).__mro__[1] is ApiError
    assert ApiError.code == "internal"


def test_a_proxy_page_is_not_quoted() -> None:
    error = fault(refusal(502, b"<html>\x1b[31mBad Gateway</html>"), now=NOW)
    assert error.message == "GET /v1/x was answered with status 502 (Bad Gateway)"
    assert error.code == "unavailable"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("Fri, 15 Jan 2027 08:00:30 GMT", 30), ("Fri, 15 Jan 2027 07:00:00 GMT", 0), ("soon", None), ("", None)],
)
def test_retry_after_is_a_number_or_a_date(text: str, seconds: int | None) -> None:
    assert fault(refusal(429, {}, retry_after=text), now=NOW).retry_after == seconds


@pytest.mark.parametrize(
    ("ours", "hint"),
    [
        (NOW + 41, "this machine's clock is 41 s ahead of the server's; run a time service"),
        (NOW - 75, "this machine's clock is 75 s behind the server's; run a time service"),
        (NOW + 1.5, "sign it again"),
    ],
)
def test_a_stale_request_is_told_how_far_its_clock_is_off(ours: float, hint: str) -> None:
    body = {"title": "too old", "code": "stale", "hint": "sign it again"}
    assert fault(refusal(401, body, date="Fri, 15 Jan 2027 08:00:00 GMT"), now=ours).hint == hint


@given(st.binary(max_size=200), st.integers(300, 599))
def test_whatever_comes_back_becomes_an_error_and_never_a_crash(body: bytes, status: int) -> None:
    error = fault(refusal(status, body), now=NOW)
    assert error.status == status
    assert error.message
