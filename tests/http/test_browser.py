"""A real browser visits a hostile page while a server runs in open mode: nothing is read, nothing is executed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from angelia.settings import Settings
from angelia.stores.ledger import Ledger
from angelia.stores.valkey import HotTier
from probe_edge import Doorway

CHROMIUM = shutil.which("chromium")
REBOUND = "rebound.example"
PATHS = ("/api/v1/probe", "/api/v1/pop", "/probe", "/v1/probe", "/page")

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

# Each resolves to what the page learnt; a fetch that may not be read rejects, or is opaque with status 0.
FETCH = """async ([url, options]) => {
  try {
    const answer = await fetch(url, options);
    return [answer.type, answer.status, answer.type === 'opaque' ? '' : await answer.text()];
  } catch (error) { return ['refused', 0, '']; }
}"""
IMAGE = """url => new Promise(resolve => {
  const image = new Image();
  image.onload = () => resolve('loaded');
  image.onerror = () => resolve('refused');
  image.src = url;
})"""
SCRIPT = """url => new Promise(resolve => {
  const script = document.createElement('script');
  script.onload = () => resolve('loaded');
  script.onerror = () => resolve('refused');
  script.src = url;
  document.head.append(script);
})"""
FRAME = """url => new Promise(resolve => {
  const frame = document.createElement('iframe');
  frame.onload = () => {
    try { resolve(frame.contentDocument ? 'read: ' + frame.contentDocument.body.innerText : 'closed'); }
    catch (error) { resolve('closed'); }
  };
  frame.src = url;
  document.body.append(frame);
})"""
FORM = """([url, kind]) => {
  const form = document.createElement('form');
  form.method = 'POST'; form.action = url; form.enctype = kind;
  const field = document.createElement('input');
  field.name = '{"a":"'; field.value = '"}';
  form.append(field); document.body.append(form); form.submit();
}"""
LINK = """url => {
  const link = document.createElement('a');
  link.href = url; document.body.append(link); link.click();
}"""


@pytest.fixture(scope="module")
def hostile_port() -> Iterator[int]:
    """Another program of this machine that serves a web page."""

    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>hostile</title><body></body>")

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A browser that hangs up is nothing to write about."""

    server = Server(("127.0.0.1", 0), Hostile)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    flags += ["--disable-sync", "--no-first-run", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=flags)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(stores: Any) -> AsyncIterator[tuple[Doorway, int]]:
    ledger, hot = await Ledger.open(stores.database_url, 2), HotTier(stores.redis_url)
    doorway = Doorway(ledger, hot, Settings(), open_mode=True)
    async with doorway.listening() as port:
        yield doorway, port
    await doorway.client.aclose()
    await doorway.wake.close()
    await hot.close()
    await ledger.close()


@pytest_asyncio.fixture(loop_scope="module")
async def doorway(served: tuple[Doorway, int]) -> Doorway:
    served[0].executed.clear()
    return served[0]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser: Browser) -> Page:
    return await browser.new_page()


@pytest_asyncio.fixture(loop_scope="module", params=["same site, other port", "other site"])
async def hostile(request: Any, page: Page, hostile_port: int) -> str:
    """A page of another origin is open: on another port of the same name, or under another name altogether."""
    host = "localhost" if request.param.startswith("same") else "127.0.0.1"
    url = f"http://{host}:{hostile_port}/"
    await page.goto(url)
    return url


@pytest.fixture
def target(served: tuple[Doorway, int]) -> str:
    return f"http://localhost:{served[1]}"


async def test_a_page_of_the_server_itself_may_use_it(page: Page, doorway: Doorway, target: str) -> None:
    await page.goto(f"{target}/page")
    answer = await page.evaluate(FETCH, ["/api/v1/probe", {"method": "POST"}])
    assert (answer[1], len(doorway.executed)) == (200, 1)


async def test_a_hostile_script_can_neither_read_nor_execute(
    hostile: str, page: Page, doorway: Doorway, target: str
) -> None:
    for path, method, mode in product(PATHS, ("GET", "POST"), ("cors", "no-cors")):
        answer = await page.evaluate(FETCH, [f"{target}{path}", {"method": method, "mode": mode}])
        assert (answer[1], answer[2]) == (0, ""), (path, method, mode)
    assert doorway.executed == []


async def test_a_hostile_preflight_is_not_passed(hostile: str, page: Page, doorway: Doorway, target: str) -> None:
    options = {"method": "POST", "headers": {"content-type": "application/json"}, "body": "{}"}
    assert await page.evaluate(FETCH, [f"{target}/api/v1/probe", options]) == ["refused", 0, ""]
    assert doorway.executed == []


async def test_a_hostile_form_executes_nothing(hostile: str, page: Page, doorway: Doorway, target: str) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        await page.goto(hostile)
        assert await _followed(page, FORM, [f"{target}/api/v1/probe", kind]) in (403, 415), kind
    assert doorway.executed == []


async def test_a_hostile_image_or_script_executes_nothing(
    hostile: str, page: Page, doorway: Doorway, target: str
) -> None:
    for path, load in product(PATHS, (IMAGE, SCRIPT)):
        assert await page.evaluate(load, f"{target}{path}") == "refused", path
    assert doorway.executed == []


async def test_a_hostile_frame_shows_and_executes_nothing(
    hostile: str, page: Page, doorway: Doorway, target: str
) -> None:
    for path in PATHS:
        assert await page.evaluate(FRAME, f"{target}{path}") == "closed", path
    assert "a page of this server" not in "".join([await frame.content() for frame in page.frames])
    assert doorway.executed == []


async def test_a_hostile_link_executes_nothing(hostile: str, page: Page, doorway: Doorway, target: str) -> None:
    assert await _followed(page, LINK, f"{target}/api/v1/pop") == 403
    assert doorway.executed == []


async def test_a_link_to_a_page_may_be_followed(hostile: str, page: Page, target: str) -> None:
    assert await _followed(page, LINK, f"{target}/page") == 200


async def test_a_rebound_name_is_not_answered(page: Page, served: tuple[Doorway, int], doorway: Doorway) -> None:
    """DNS rebinding: the page's own name now points at this machine, so that to the browser all is one origin."""
    answer = await page.goto(f"http://{REBOUND}:{served[1]}/page")
    assert answer is not None
    fetched = await page.evaluate(FETCH, ["/api/v1/pop", {}])
    assert (answer.status, fetched[1] in (0, 403), doorway.executed) == (403, True, [])


async def _followed(page: Page, act: str, argument: object) -> int:
    """The status of the page that an act leads to."""
    async with page.expect_navigation() as navigation:
        await page.evaluate(act, argument)
    answer = await navigation.value
    assert answer is not None
    return answer.status
