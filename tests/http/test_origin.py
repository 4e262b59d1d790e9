"""What web pages may do: nothing in open mode, and with tokens what CORS allows."""

from __future__ import annotations

import pytest

from probe_edge import Doorway

PATHS = [("GET", "/probe"), ("GET", "/v1/probe"), ("POST", "/api/v1/probe"), ("GET", "/api/v1/pop"), ("GET", "/page")]
LOOPBACK_HOSTS = [
    "localhost",
    "localhost:8080",
    "LOCALHOST",
    "LocalHost:1",
    "127.0.0.1",
    "127.0.0.1:65535",
    "[::1]",
    "[::1]:8080",
]
FOREIGN_HOSTS = [
    "",
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "evil.localhost",
    "localhost.",
    "127.0.0.1.nip.io",
    "127.0.0.1.nip.io:8080",
    "127.0.0.2",
    "0.0.0.0",  # noqa: S104
    "192.168.0.5:8080",
    "[::]",
    "[::ffff:127.0.0.1]",
    "::1",
    "user@localhost",
    "localhost@evil.example",
    "localhost:8080@evil.example",
    "localhost#evil.example",
    "localhost/evil.example",
    "localhost:",
    "localhost:evil",
    "localhost:123456",
    "localhost evil.example",
    "127.1",
    "2130706433",
    "0x7f000001",
]
CORS = [
    "access-control-allow-origin",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-allow-credentials",
    "access-control-allow-private-network",
    "access-control-expose-headers",
    "access-control-max-age",
]


def cors_of(headers: object) -> dict[str, str]:
    return {name: headers[name] for name in CORS if name in headers}  # type: ignore[index, operator]


def words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",")}


# Open mode.


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
async def test_open_mode_answers_to_the_names_of_this_machine(make, host: str) -> None:
    doorway: Doorway = await make(open_mode=True)
    assert (await doorway.send("GET", "/api/v1/pop", [("host", host)])).status == 200
    assert len(doorway.executed) == 1


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_open_mode_refuses_every_other_name(make, host: str) -> None:
    doorway: Doorway = await make(open_mode=True)
    for method, path in [*PATHS, ("GET", "/nothing"), ("OPTIONS", "/api/v1/probe")]:
        answer = await doorway.send(method, path, [("host", host)])
        assert (answer.status, cors_of(answer.headers)) == (403, {}), path
    assert doorway.executed == []


async def test_open_mode_refuses_a_request_without_a_host(make) -> None:
    doorway: Doorway = await make(open_mode=True)
    assert (await doorway.send("GET", "/api/v1/pop", [])).status == 403


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://localhost",
        "http://localhost:3000",
        "https://localhost:8080",
        "http://127.0.0.1:8080",
        "http://[::1]:8080",
        "http://localhost:8080.evil.example",
        "http://evil.example/http://localhost:8080",
        "localhost:8080",
        "file://",
        "chrome-extension://abcdefghijklmnop",
    ],
)
async def test_open_mode_refuses_a_foreign_origin_and_sends_it_no_cors_header(make, origin: str) -> None:
    doorway: Doorway = await make(open_mode=True)
    for method, path in [*PATHS, ("OPTIONS", "/api/v1/probe"), ("GET", "/nothing")]:
        answer = await doorway.send(method, path, [("host", "localhost:8080"), ("origin", origin)])
        assert (answer.status, cors_of(answer.headers)) == (403, {}), path
    assert doorway.executed == []


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost"])
async def test_open_mode_lets_a_page_of_its_own_in(make, host: str) -> None:
    doorway: Doorway = await make(open_mode=True)
    headers = [("host", host), ("origin", f"http://{host}"), ("sec-fetch-site", "same-origin")]
    answer = await doorway.send("POST", "/api/v1/probe", headers)
    assert (answer.status, cors_of(answer.headers), len(doorway.executed)) == (200, {}, 1)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "unheard-of", ""])
@pytest.mark.parametrize(
    ("mode", "dest"), [("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe"), ("navigate", "document")]
)
async def test_open_mode_refuses_what_another_site_makes_a_browser_fetch(make, site: str, mode: str, dest: str) -> None:
    doorway: Doorway = await make(open_mode=True)
    headers = [("host", "localhost"), ("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)]
    for method, path in PATHS[:-1]:
        assert (await doorway.send(method, path, headers)).status == 403, path
    assert doorway.executed == []


async def test_a_link_from_elsewhere_may_be_followed_to_a_page(make) -> None:
    doorway: Doorway = await make(open_mode=True)
    headers = [
        ("host", "localhost"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "document"),
    ]
    assert (await doorway.send("GET", "/page", headers)).status == 200


@pytest.mark.parametrize(("mode", "dest"), [("navigate", "iframe"), ("no-cors", "image"), ("cors", "empty")])
async def test_a_page_is_neither_framed_nor_fetched_from_elsewhere(make, mode: str, dest: str) -> None:
    doorway: Doorway = await make(open_mode=True)
    headers = [
        ("host", "localhost"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-mode", mode),
        ("sec-fetch-dest", dest),
    ]
    assert (await doorway.send("GET", "/page", headers)).status == 403


async def test_the_address_bar_and_programs_are_let_in(make) -> None:
    doorway: Doorway = await make(open_mode=True)
    typed = [("host", "localhost"), ("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")]
    for headers in (typed, [("host", "localhost")]):
        assert (await doorway.send("GET", "/api/v1/pop", headers)).status == 200


async def test_open_mode_sends_no_cors_header_on_any_answer(make) -> None:
    doorway: Doorway = await make(open_mode=True)
    for method, path in [*PATHS, ("OPTIONS", "/probe"), ("OPTIONS", "/api/v1/probe"), ("GET", "/nothing")]:
        answer = await doorway.send(method, path)
        assert cors_of(answer.headers) == {}, path


async def test_refusals_of_open_mode_have_the_shape_of_their_surface(make) -> None:
    doorway: Doorway = await make(open_mode=True)
    problem = await doorway.client.get("/v1/probe", headers={"origin": "http://evil.example"})
    text = await doorway.client.get("/probe", headers={"origin": "http://evil.example"})
    assert (problem.json()["code"], list(text.json())) == ("authorization_denied", ["error"])


async def test_an_open_server_beyond_loopback_still_refuses_foreign_pages(make) -> None:
    """It goes by names that only its operator knows, so any Host is taken; other sites are refused all the same."""
    doorway: Doorway = await make(open_mode=True, host="0.0.0.0", insecure=True)  # noqa: S104
    assert (await doorway.send("GET", "/api/v1/pop", [("host", "queue.lan:8080")])).status == 200
    foreign = [("host", "queue.lan:8080"), ("origin", "http://evil.example")]
    assert (await doorway.send("GET", "/api/v1/pop", foreign)).status == 403


# With tokens or JWT.


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.nip.io", "angelia.example"])
async def test_with_tokens_any_host_is_answered(make, host: str) -> None:
    doorway: Doorway = await make()
    assert (await doorway.send("GET", "/probe", [("host", host)])).status == 200


@pytest.mark.parametrize("path", ["/probe", "/v1/probe", "/nothing", "/signed", "/conflict", "/broken"])
async def test_with_tokens_any_origin_may_read_without_credentials(make, path: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.get(path, headers={"origin": "http://app.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers
    exposed = words(answer.headers["access-control-expose-headers"])
    assert {"link", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"} <= exposed


@pytest.mark.parametrize("path", ["/probe", "/signed", "/v1/probe", "/never/heard/of"])
async def test_the_preflight_of_the_root_surface_is_an_empty_200(make, path: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.options(
        path, headers={"origin": "http://app.example", "access-control-request-method": "POST"}
    )
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-max-age"] == "300"
    assert {"get", "post", "put", "delete", "options"} <= words(answer.headers["access-control-allow-methods"])
    allowed = words(answer.headers["access-control-allow-headers"])
    old = {f"x-aicq-{name}" for name in ("agent", "nonce", "timestamp", "signature", "room-key")}
    new = {"signature", "signature-input", "content-digest"}
    assert {"accept", "authorization", "content-type"} | old | new <= allowed


@pytest.mark.parametrize("path", ["/api/v1/probe", "/api/v1/never/heard/of", "/streams/v1/anyone"])
async def test_options_on_the_queue_surface_is_204_everywhere(make, path: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.options(path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("path", ["/api/v1/probe", "/api/v1/anyone", "/api/v1/nothing"])
async def test_every_answer_of_the_queue_surface_names_methods_and_headers(make, path: str) -> None:
    doorway: Doorway = await make()
    answer = await doorway.client.post(path)
    assert cors_of(answer.headers) == {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "GET, POST, PUT, DELETE, OPTIONS",
        "access-control-allow-headers": "Content-Type, Authorization",
    }


async def test_options_executes_nothing(make) -> None:
    doorway: Doorway = await make()
    for path in ("/probe", "/api/v1/probe", "/v1/probe"):
        await doorway.client.options(path)
    assert doorway.executed == []
