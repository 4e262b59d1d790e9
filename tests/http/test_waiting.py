"""Requests that wait, streams, and bodies of other types: what the edge does when callers hang up or handlers fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from starlette.types import Send

from angelia.api import EVENT_STREAM, HEARTBEAT, Access, Answer, Call, sse
from angelia.errors import Unavailable
from angelia.http import edge
from angelia.http.edge import MOST_WAITS
from angelia.stores.wake import about_to_wait
from edge_setup import route
from http_agents import HOST
from probe_edge import ADDRESS, Doorway

OTHER = "application/vnd.example"


class Patience:
    """Routes that wait until they are told to go on, and know how they ended."""

    def __init__(self) -> None:
        self.began, self.go_on, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.how = ""
        self.tasks = 0
        anyone = Access.ANYONE
        self.routes = [
            route("GET", "/v1/wait", self._wait, anyone, waits=True),
            route("POST", "/v1/wait", self._wait, anyone, waits=True),
            route("GET", "/v1/work", self._wait, anyone),
            route("GET", "/v1/at-once", self._answer_at_once, anyone, waits=True),
            route("POST", "/api/v1/wait", self._wait, anyone, waits=True),
            route("GET", "/v1/stream", self._stream, anyone, media=EVENT_STREAM, waits=True),
            route("GET", "/v1/broken-stream", self._break, anyone, media=EVENT_STREAM, waits=True),
            route("GET", "/v1/tidy-stream", self._tidy, anyone, media=EVENT_STREAM, waits=True),
            route("GET", "/v1/broken-wait", self._fail, anyone, waits=True),
            route("POST", "/v1/other", self._other, anyone, reads=("application/json", OTHER)),
        ]

    async def _wait(self, call: Call) -> Answer:
        about_to_wait()
        self.began.set()
        try:
            await self.go_on.wait()
            self.how = "finished"
        except asyncio.CancelledError:
            self.how = "cancelled"
            raise
        finally:
            self.ended.set()
        return Answer(body={"bytes": len(call.body)})

    async def _answer_at_once(self, call: Call) -> Answer:
        self.tasks = len(asyncio.all_tasks())
        return Answer(body={})

    async def _stream(self, call: Call) -> Answer:
        async def lines() -> AsyncIterator[bytes]:
            try:
                yield sse("first", b"{}", "1")
                yield HEARTBEAT
                self.began.set()
                await self.go_on.wait()
                yield sse("second", b"{}")
                self.how = "finished"
            except (asyncio.CancelledError, GeneratorExit):
                self.how = "cancelled"
                raise
            finally:
                self.ended.set()

        return Answer(stream=lines(), content_type=EVENT_STREAM)

    async def _break(self, call: Call) -> Answer:
        async def lines() -> AsyncIterator[bytes]:
            yield sse("first", b"{}")
            raise RuntimeError("in mid-stream")

        return Answer(stream=lines(), content_type=EVENT_STREAM)

    async def _tidy(self, call: Call) -> Answer:
        async def lines() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield HEARTBEAT
            finally:
                self.began.set()
                await asyncio.sleep(0.01)
                self.how = "tidied"

        return Answer(stream=lines(), content_type=EVENT_STREAM)

    async def _fail(self, call: Call) -> Answer:
        raise RuntimeError("while waiting")

    async def _other(self, call: Call) -> Answer:
        return Answer(body={"bytes": len(call.body), "type": call.headers["content-type"]})


@pytest.fixture
def patience() -> Patience:
    return Patience()


@pytest.fixture
async def doorway(make, patience: Patience) -> Doorway:
    doorway: Doorway = await make(more=patience.routes)
    return doorway


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers={"host": HOST})


async def hang_up_during(doorway: Doorway, patience: Patience, method: str, path: str) -> None:
    async with doorway.listening() as port, client(port) as caller:
        body = {} if method == "GET" else {"json": {}}
        asking = asyncio.create_task(caller.request(method, path, **body))  # type: ignore[arg-type]
        await asyncio.wait_for(patience.began.wait(), 5)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(patience.ended.wait(), 5)


async def logged(captured_log: list[Any]) -> dict[str, Any]:
    """The line of a request, which is written after its end."""
    async with asyncio.timeout(5):
        while not (lines := [one for one in captured_log if one["event"] == "request"]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found: dict[str, Any] = lines[-1]
    return found


# Waiting.


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_handler_that_waits_is_cancelled_when_its_caller_hangs_up(
    doorway: Doorway, patience: Patience, captured_log: list[Any], method: str
) -> None:
    await hang_up_during(doorway, patience, method, "/v1/wait")
    assert patience.how == "cancelled"
    line = await logged(captured_log)
    assert (line["status"], line["path"], line["code"]) == (499, "/v1/wait", None)
    assert not any(one["log_level"] == "error" for one in captured_log)


async def test_a_caller_that_hung_up_is_counted_as_such(doorway: Doorway, patience: Patience, captured_log) -> None:
    labels = {"method": "GET", "path": "/v1/wait", "status": "499"}
    before = REGISTRY.get_sample_value("aicq_http_requests_total", labels) or 0
    await hang_up_during(doorway, patience, "GET", "/v1/wait")
    await logged(captured_log)
    assert (REGISTRY.get_sample_value("aicq_http_requests_total", labels) or 0) == before + 1


async def test_work_that_does_not_wait_is_finished_whoever_hangs_up(
    doorway: Doorway, patience: Patience, captured_log: list[Any]
) -> None:
    async with doorway.listening() as port, client(port) as caller:
        asking = asyncio.create_task(caller.get("/v1/work"))
        await asyncio.wait_for(patience.began.wait(), 5)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        patience.go_on.set()
        await asyncio.wait_for(patience.ended.wait(), 5)
        assert (await logged(captured_log))["status"] == 200
    assert patience.how == "finished"


async def test_a_caller_that_stays_gets_its_answer(doorway: Doorway, patience: Patience) -> None:
    async with doorway.listening() as port, client(port) as caller:
        asking = asyncio.create_task(caller.post("/v1/wait", json={"a": 1}))
        await asyncio.wait_for(patience.began.wait(), 5)
        patience.go_on.set()
        answer = await asking
    assert (answer.status_code, answer.json()) == (200, {"bytes": 7})


async def test_a_second_request_on_the_line_of_one_that_waited_is_served(doorway: Doorway, patience: Patience) -> None:
    patience.go_on.set()
    async with doorway.listening() as port, client(port) as caller:
        for _ in range(3):
            assert (await caller.get("/v1/wait")).status_code == 200


async def test_a_waiting_handler_that_fails_is_500_without_a_word_about_itself(doorway: Doorway) -> None:
    answer = await doorway.client.get("/v1/broken-wait")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "while waiting" not in answer.text


# Streams.


async def test_a_stream_is_passed_on_as_it_comes_and_ends(doorway: Doorway, patience: Patience) -> None:
    async with doorway.listening() as port, client(port) as caller, caller.stream("GET", "/v1/stream") as answer:
        assert answer.headers["content-type"] == EVENT_STREAM
        assert "content-length" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        parts = answer.aiter_text()
        said = await anext(parts)
        while HEARTBEAT.decode() not in said:
            said += await anext(parts)
        assert said == "id: 1\nevent: first\ndata: {}\n\n: still here\n\n"
        patience.go_on.set()
        rest = "".join([part async for part in parts])
    assert rest == "event: second\ndata: {}\n\n"
    assert patience.how == "finished"


async def test_a_stream_ends_when_nobody_listens_any_more(
    doorway: Doorway, patience: Patience, captured_log: list[Any]
) -> None:
    async with doorway.listening() as port, client(port) as caller:
        async with caller.stream("GET", "/v1/stream") as answer:
            await anext(answer.aiter_bytes())
            await asyncio.wait_for(patience.began.wait(), 5)
        await asyncio.wait_for(patience.ended.wait(), 5)
        assert (await logged(captured_log))["status"] == 200
    assert patience.how == "cancelled"
    assert not any(one["log_level"] == "error" for one in captured_log)


@pytest.mark.parametrize("send", [1, 4, 5], ids=["head", "last event", "end"])
async def test_a_caller_that_hangs_up_during_a_send_ends_its_stream_without_an_error(
    doorway: Doorway, patience: Patience, captured_log: list[Any], send: int
) -> None:
    patience.go_on.set()
    begun, gone = 0, asyncio.Event()

    async def hang_up(message: Any) -> None:
        nonlocal begun
        begun += 1
        if begun == send:
            gone.set()
            await asyncio.sleep(0.01)  # a send waits while its peer does not read

    await ended_well(doorway, "/v1/stream", gone, hang_up, captured_log)
    assert begun >= send


async def test_a_caller_that_hangs_up_while_its_stream_is_closed_does_not_cut_the_clean_up_short(
    doorway: Doorway, patience: Patience, captured_log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angelia.http.edge.STREAM_SECONDS", 0.0)

    async def send(message: Any) -> None:
        pass

    await ended_well(doorway, "/v1/tidy-stream", patience.began, send, captured_log)
    assert patience.how == "tidied"


async def ended_well(doorway: Doorway, path: str, gone: asyncio.Event, send: Send, captured_log: list[Any]) -> None:
    """Asks for a stream, hangs up when `gone` is set, and checks that this was no error."""
    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", HOST.encode())],
        "client": (ADDRESS, 50000),
    }

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    request = asyncio.create_task(doorway.edge(scope, receive, send))
    await asyncio.wait([request], timeout=5)
    assert request.done()
    assert not request.cancelled()
    assert request.exception() is None
    assert doorway.edge._waits == {}
    assert [(one["event"], one["status"], one["log_level"]) for one in captured_log] == [("request", 200, "info")]


async def test_a_stream_that_breaks_off_is_not_a_whole_one(doorway: Doorway, captured_log: list[Any]) -> None:
    async with doorway.listening() as port, client(port) as caller:
        with pytest.raises(httpx.RemoteProtocolError):
            await caller.get("/v1/broken-stream")
        assert (await caller.get("/v1/probe")).status_code == 200
    assert any(one["event"] == "a stream broke off" for one in captured_log)


def test_an_event_has_one_line_of_data_and_an_id_only_if_given() -> None:
    assert sse("message", b'{"a":1}', "t") == b'id: t\nevent: message\ndata: {"a":1}\n\n'
    assert sse("message", b"{}") == b"event: message\ndata: {}\n\n"


# Bodies of other types.


@pytest.mark.parametrize("content_type", ["application/json", OTHER, OTHER.upper(), f"{OTHER}; v=1", f" {OTHER} "])
async def test_a_route_reads_the_types_that_it_declares(doorway: Doorway, content_type: str) -> None:
    answer = await doorway.client.post("/v1/other", content=b"\0\xff", headers={"content-type": content_type})
    assert (answer.status_code, answer.json()["bytes"]) == (200, 2)


@pytest.mark.parametrize("content_type", ["text/plain", "", f"{OTHER}2", f"text/plain, {OTHER}"])
async def test_a_route_reads_no_other_type_and_says_which_it_reads(doorway: Doorway, content_type: str) -> None:
    answer = await doorway.client.post("/v1/other", content=b"{}", headers={"content-type": content_type})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert answer.json()["title"] == f"content-type must be application/json or {OTHER}"


async def test_the_type_of_one_route_is_not_that_of_another(doorway: Doorway) -> None:
    answer = await doorway.client.post("/v1/probe", content=b"{}", headers={"content-type": OTHER})
    assert answer.status_code == 415


async def test_nobody_waits_in_more_than_twenty_requests_at_a_time(make, patience: Patience) -> None:
    doorway: Doorway = await make(more=patience.routes)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(doorway.client.get("/v1/wait")) for _ in range(MOST_WAITS)]
        await until(lambda: len(doorway.edge._waits) == 1 and doorway.edge._waits.total() == MOST_WAITS)
        for path in ("/v1/wait", "/v1/stream"):
            refused = await doorway.client.get(path)
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert refused.headers["retry-after"] == "5"
        assert (await doorway.client.get("/v1/at-once")).status_code == 200, "it does not wait"
        elsewhere = httpx.ASGITransport(doorway.edge, client=("192.0.2.77", 50000))
        async with httpx.AsyncClient(transport=elsewhere, base_url=f"http://{HOST}") as other:
            waiting.append(group.create_task(other.get("/v1/wait")))
            await until(lambda: doorway.edge._waits.total() == MOST_WAITS + 1)
            patience.go_on.set()
            await waiting[-1]
    assert {task.result().status_code for task in waiting} == {200}
    assert doorway.edge._waits == {}
    assert (await doorway.client.get("/v1/wait")).status_code == 200


async def test_on_the_queue_surface_a_fleet_may_wait_with_one_token(make, patience: Patience) -> None:
    doorway: Doorway = await make(more=patience.routes)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(doorway.client.post("/api/v1/wait")) for _ in range(MOST_WAITS + 5)]
        await until(lambda: doorway.edge._waits.total() == MOST_WAITS + 5)
        patience.go_on.set()
    assert {task.result().status_code for task in waiting} == {200}
    assert edge.MOST_QUEUE_WAITS == 1_000


async def test_a_request_that_may_wait_and_does_not_is_like_any_other(doorway: Doorway, patience: Patience) -> None:
    before = len(asyncio.all_tasks())
    assert (await doorway.client.get("/v1/at-once")).status_code == 200
    assert (patience.tasks, doorway.edge._waits) == (before, {})


async def test_a_server_that_cancels_a_request_is_no_caller_that_hung_up(
    doorway: Doorway, patience: Patience, captured_log: list[Any]
) -> None:
    asking = asyncio.create_task(doorway.client.get("/v1/wait"))
    await asyncio.wait_for(patience.began.wait(), 5)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (patience.how, doorway.edge._waits) == ("cancelled", {})
    assert not [line for line in captured_log if line["event"] == "request"]


async def test_a_stream_ends_after_a_while_so_that_its_reader_is_asked_again_who_it_is(
    make, patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge, "STREAM_SECONDS", 0.0)
    doorway: Doorway = await make(more=patience.routes)
    answer = await doorway.client.get("/v1/stream")
    assert (answer.status_code, answer.content) == (200, b"")
    assert patience.ended.is_set()


async def test_a_store_that_goes_away_ends_a_stream_with_an_event_that_says_so(
    make, patience: Patience, captured_log: list[Any]
) -> None:
    async def handler(call: Call) -> Answer:
        async def lines() -> AsyncIterator[bytes]:
            yield sse("first", b"{}")
            raise Unavailable("the hot tier is away")

        return Answer(stream=lines(), content_type=EVENT_STREAM)

    away = route("GET", "/v1/away", handler, Access.ANYONE, media=EVENT_STREAM, waits=True)
    doorway: Doorway = await make(more=[away])
    reason = sse("error", b'{"code":"unavailable","title":"the hot tier is away"}')
    assert (await doorway.client.get("/v1/away")).content == sse("first", b"{}") + reason
    assert [line["log_level"] for line in captured_log if line["event"] != "request"] == []
    assert captured_log[-1]["code"] == "unavailable"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - what is looked at tells nobody
            await asyncio.sleep(0.01)
