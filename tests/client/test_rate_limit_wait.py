"""A server that was asked too often is asked again when it says, and not for ever."""

from __future__ import annotations

import pytest

from angelia.client.api_errors import NotAngelia
from angelia.client.exchange import Exchange, Request, Response
from angelia.client.rate_limit_wait import Patience, patiently
from angelia.client.transport import Line, Pause, Send
from angelia.errors import NotFound, RateLimited


def asked(times: int = 1) -> Exchange[int]:
    """Asks so often, and tells the statuses together."""
    total = 0
    for _ in range(times):
        answer = yield Request("GET", "/v1/thing")
        total += answer.status
    return total


def test_a_request_that_came_too_often_is_sent_again_after_the_time_that_was_named() -> None:
    patience = Patience(left=100)
    call = patiently(asked(2), patience)
    assert next(call).after == 0
    assert call.throw(RateLimited("slowly", retry_after=7)).after == 7
    assert call.throw(RateLimited("slowly")).after == 1
    assert call.send(answer(200)).after == 0
    with pytest.raises(StopIteration) as done:
        call.send(answer(201))
    assert (done.value.value, patience.left) == (401, 92)


@pytest.mark.parametrize("patience", [Patience(left=6), Patience(left=100, at_once=6)])
def test_patience_ends(patience: Patience) -> None:
    call = patiently(asked(), patience)
    next(call)
    with pytest.raises(RateLimited):
        call.throw(RateLimited("slowly", retry_after=7))


def test_any_other_error_is_for_the_call_to_judge() -> None:
    def judging() -> Exchange[str]:
        try:
            yield Request("GET", "/v1/thing")
        except NotFound:
            return "there is none"
        return "there is one"

    call = patiently(judging(), Patience(left=100))
    next(call)
    with pytest.raises(StopIteration) as done:
        call.throw(NotFound("none"))
    assert done.value.value == "there is none"


def test_a_line_pauses_before_it_sends_what_is_to_be_sent_later() -> None:
    steps = Line("http://localhost:8080").run(patiently(asked(), Patience(left=100)))
    assert isinstance(next(steps), Send)
    slowly = Response("GET", "/v1/thing", 429, {"retry-after": "5"}, b'{"code": "rate_limited", "request_id": "r"}')
    assert steps.send(slowly) == Pause(5)
    assert isinstance(steps.send(None), Send)
    with pytest.raises(NotAngelia):
        steps.send(answer(404))


def answer(status: int) -> Response:
    return Response("GET", "/v1/thing", status, {}, b"{}")
