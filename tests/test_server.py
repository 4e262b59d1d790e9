"""The processes of a server: they start in order, survive each other's death, and leave nothing behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from angelia.errors import StartFailed
from angelia.listener import bind, local_url
from angelia.runtime_file import Runtime, read_runtime
from angelia.settings import Context, Settings, load
from angelia.stores.embedded.process import exists
from angelia.worker import Handover

SERVE = """
import sys
from angelia import server, settings
from angelia.errors import AngeliaError
try:
    sys.exit(server.serve(settings.load(dict(pair.split("=", 1) for pair in sys.argv[1:]))))
except AngeliaError as error:
    sys.exit(f"error: {error.message}\\nhint: {error.hint}")
"""


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


class Server:
    """`serve` in a process of its own, with a stub for the application."""

    def __init__(self, data_dir: Path, environ: dict[str, str] | None = None, **flags: Any) -> None:
        self.data_dir = data_dir
        pairs = [f"{name}={value}" for name, value in {"data_dir": data_dir, "port": 0, **flags}.items()]
        stub = Path(__file__).with_name("stub_app")
        path = os.pathsep.join(filter(None, [str(stub), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *pairs],
            env={
                **os.environ,
                "PYTHONPATH": path,
                **(environ or {}),
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Runtime:
        found: Runtime = until(lambda: read_runtime(self.data_dir) or self.process.poll() is not None)
        assert isinstance(found, Runtime), self.end()
        return found

    def get(self, path: str = "/") -> Any:
        connection = http.client.HTTPConnection(self.ready().url.removeprefix("http://"), timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Stop it; what it wrote on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=30)[1]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="angelia-test-", dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def shared(place: Path) -> Iterator[Server]:
    """A server for the tests that only look."""
    secrets = {"ANGELIA_LIMITS": "who=off", "ANGELIA_JWT_SECRET": "hush-hush-hush"}
    server = Server(place / "shared", environ=secrets, drain_seconds=5)
    yield server
    server.end()


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_one(data_dir: Path = place / "data", **options: Any) -> Server:
        servers.append(Server(data_dir, **options))
        return servers[-1]

    yield start_one
    for server in servers:
        server.end()


def test_a_server_says_when_it_is_ready_and_leaves_nothing_behind(start: Callable[..., Server]) -> None:
    server = start(workers=2)
    runtime = server.ready()
    until(lambda: {server.get()["worker"] for _ in range(10)} == {0, 1})
    children = server.children()
    assert len(children) == 5  # PostgreSQL, Valkey, the spool, and two web processes
    said = server.end()

    assert server.process.returncode == 0
    first, second, third = said.splitlines()
    assert first.startswith("starting PostgreSQL 18")
    assert ", Valkey 9" in first
    assert second.endswith(f"is ready   {runtime.url}   open mode: this machine only, no token needed")
    assert third.startswith("next: in another terminal, ")
    assert third.endswith("`angelia agent new alice --register`")
    assert not any(exists(pid) for pid in children)
    assert not Path(runtime.sockets).exists()
    assert not (server.data_dir / "runtime.json").exists()


def test_a_worker_knows_every_setting_and_where_it_came_from(shared: Server) -> None:
    settings = shared.get()["settings"]
    assert settings["limits"] == ["who=off", "ANGELIA_LIMITS"]
    assert settings["drain_seconds"] == ["5", "--drain-seconds"]
    assert settings["database_url"][1] == "our own"
    assert "***" in settings["database_url"][0]


def test_a_worker_gets_its_secrets_by_pipe_alone(shared: Server) -> None:
    process = psutil.Process(shared.get()["pid"])
    assert "hush" not in str(process.environ()) + str(process.cmdline())
    assert Path(process.environ()["PROMETHEUS_MULTIPROC_DIR"]).is_dir()


def test_a_second_server_and_a_taken_port_are_refused_in_one_sentence(
    shared: Server, start: Callable[..., Server], place: Path
) -> None:
    port = shared.ready().url.rpartition(":")[2]
    second = start(shared.data_dir)
    other = start(place / "other", port=port)
    holder = f"another server (pid {shared.process.pid}) uses this data directory"
    assert f"error: {holder}" in second.process.communicate()[1]
    assert f"error: port {port} of 127.0.0.1 is taken by another program" in other.process.communicate()[1]
    assert (second.process.returncode, other.process.returncode) == (1, 1)
    assert shared.get()["worker"] == 0


def test_killed_workers_and_stores_are_replaced(start: Callable[..., Server]) -> None:
    server = start()
    before = server.get()["pid"]
    children = server.children()
    for pid in children:
        os.kill(pid, signal.SIGKILL)

    def is_whole_again() -> bool:
        now = server.children()
        return len(now) == len(children) and not set(now) & set(children)

    until(is_whole_again)
    assert server.get()["pid"] != before
    said = server.end()
    assert "PostgreSQL was started again" in said
    assert f"worker 0 (pid {before}) ended with signal 9" in said


def test_a_request_in_hand_is_finished_before_the_end(start: Callable[..., Server]) -> None:
    server = start()
    answers = asking_slowly(server)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: answers)
    assert answers == [200]
    assert server.process.wait(10) == 0


def test_a_second_signal_does_not_wait_for_requests(start: Callable[..., Server]) -> None:
    server = start()
    answers = asking_slowly(server)
    server.process.send_signal(signal.SIGINT)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: answers)
    assert answers == ["cut off"]
    assert server.process.wait(10) == 0


def asking_slowly(server: Server) -> list[Any]:
    """Send a request that takes a second, and return as soon as the worker has it."""
    port = int(server.ready().url.rpartition(":")[2])
    answers: list[Any] = []
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    server.get()

    def read() -> None:
        with connection:
            status = connection.recv(12)
        answers.append(int(status[9:]) if status else "cut off")

    threading.Thread(target=read).start()
    return answers


@pytest.mark.parametrize("stage", ["build", "lifespan"])
def test_a_worker_that_never_gets_ready_ends_the_start_and_says_why(stage: str, start: Callable[..., Server]) -> None:
    server = start(environ={"STUB_FAILS": stage})
    said = server.process.communicate(timeout=30)[1]
    assert server.process.returncode == 1
    error, hint = said.rsplit("error: ", 1)[1].split("hint: ")
    assert error.startswith("the web process ended 3 times before it was ready")
    assert "the stub was told to fail" in hint


def test_nothing_outlives_a_killed_server_and_the_next_takes_its_port(start: Callable[..., Server]) -> None:
    server = start()
    port = server.ready().url.rpartition(":")[2]
    children = server.children()
    server.end(signal.SIGKILL)
    again = start(port=port)
    assert again.get()["worker"] == 0
    assert not any(exists(pid) for pid in children)


def test_a_signal_during_the_start_undoes_it(start: Callable[..., Server], place: Path) -> None:
    server = start(place / "interrupted")
    until(lambda: list((place / "interrupted").glob("postgres.new-*")))
    server.end(signal.SIGINT)
    assert server.process.returncode == 128 + signal.SIGINT
    assert not (place / "interrupted/postgres").exists()


def test_given_urls_mean_no_stores_of_our_own(shared: Server, start: Callable[..., Server], place: Path) -> None:
    lender = shared.ready()
    borrower = start(place / "borrower", environ={"DATABASE_URL": lender.database_url, "REDIS_URL": lender.redis_url})
    settings = borrower.get()["settings"]
    assert settings["database_url"][1] == "DATABASE_URL"
    assert len(borrower.children()) == 2  # the spool, and a web process
    assert "starting" not in borrower.end()


def test_settings_survive_the_way_to_a_worker(tmp_path: Path) -> None:
    config = tmp_path / "angelia.toml"
    config.write_text(
        'limits = {who = "off"}\ntrusted_proxies = ["10.0.0.0/8"]\n[context.home]\nurl = "http://h"\nas = "me"\n'
    )
    loaded = load({"data_dir": tmp_path, "jwt_public_key": "key.pem"}, {"REDIS_URL": "redis://:p@h"}, config)
    handover = Handover(
        loaded=loaded,
        open_mode=True,
        worker=3,
        node_public_key=bytes(range(32)),
        listener=4,
        report=5,
    )
    back = Handover.decode(handover.encode())
    assert back == handover
    assert back.loaded.settings.context["home"] == Context(url="http://h", identity="me")
    assert isinstance(back.loaded.settings.jwt_public_key, Path)


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET), ("[::1]", socket.AF_INET6)]
)
def test_a_free_port_is_found_on_either_family(host: str, family: socket.AddressFamily) -> None:
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with bind(Settings(host=host, port=0), patient=False) as listener:
        assert listener.family == family
        assert listener.getsockname()[1] > 0


@pytest.mark.parametrize(
    ("host", "says"), [("192.0.2.1", "is not an address of this machine"), ("no.such.invalid", "is not known")]
)
def test_an_impossible_address_is_refused_with_advice(host: str, says: str) -> None:
    with pytest.raises(StartFailed, match=says) as refused:
        bind(Settings(host=host, port=0), patient=False)
    assert "--host" in refused.value.hint


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (Settings(), "http://localhost:8080"),
        (Settings(host="0.0.0.0"), "http://localhost:8080"),  # noqa: S104
        (Settings(host="[::1]", port=1), "http://[::1]:1"),
        (Settings(host="192.0.2.7"), "http://192.0.2.7:8080"),
        (Settings(public_url="https://angelia.example/"), "https://angelia.example"),
    ],
)
def test_the_url_is_one_that_works_from_this_machine(settings: Settings, url: str) -> None:
    assert local_url(settings) == url
